"""Runs survive a new version: caches and runs that older versions have written are used by this one.

The archives beside this file are never made anew. Each: ten small videos, their features by a tiny encoder, a finished
run (0.1.0: paper, 0.2.0: official) with its results.json, and one that was interrupted after 5 of 40 epochs (cycle).
"""

import json
import shutil
import tarfile
from pathlib import Path

import numpy as np
import pytest

from byov.cache.embeddings import read_embedding
from byov.cache.runs import read_run
from byov.cli.align import main as align_main
from byov.cli.cache import main as cache_main
from byov.cli.embed import main as embed_main
from byov.cli.evaluate import main as evaluate_main
from byov.cli.extract import main as extract_main
from byov.cli.report import main as report_main
from byov.cli.train import main as train_main

ARCHIVES = sorted(Path(__file__).parent.glob("*.tar.xz"))


@pytest.fixture(params=ARCHIVES, ids=lambda path: path.name)
def old(request, tmp_path, monkeypatch):
    """The working folder of somebody who has just updated byov."""
    with tarfile.open(request.param) as archive:
        archive.extractall(tmp_path, filter="data")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def records(run):
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def test_the_archives_are_small():
    assert ARCHIVES
    assert sum(path.stat().st_size for path in ARCHIVES) < 200_000 * len(ARCHIVES)


def test_the_cache_is_complete_and_sound(old, call):
    ran = call(extract_main, "byov-extract", "--manifest", "tiny.csv", "--encoder", "encoder", "--ratios", "0.3,1.0")
    assert ran.code == 0, ran
    assert "0 videos extracted" in ran.out
    assert "10 were cached" in ran.out
    verified = call(cache_main, "byov-cache", "verify", "--json").json
    assert verified["bad"] == {}
    features = [path for path in verified["without_digest"] if path.startswith("features") and path.endswith(".h5")]
    assert len(features) == 10
    assert verified["checked"] == len(verified["without_digest"]) + 1 > 50  # the manifest was written anew
    said = call(cache_main, "byov-cache", "verify").out
    assert "carry no digest of all they hold" in said
    assert (old / "features").is_dir()


def test_a_finished_run_scores_as_it_did(old, call):
    before = json.loads((old / "runs/finished/results.json").read_text())
    ran = call(evaluate_main, "byov-eval", "--run", "finished", "--task", "all", "--json")
    assert ran.code == 0, ran
    for protocol, of_protocol in before["protocols"].items():
        now = {row["name"]: row["scores"] for row in ran.json["protocols"][protocol]["rows"]}
        for row in of_protocol["rows"]:
            assert flat(now[row["name"]]) == pytest.approx(flat(row["scores"]), abs=1e-5), row["name"]


def flat(scores, prefix=""):
    """{"a": {"b": 1}} → {"a/b": 1}"""
    if not isinstance(scores, dict):
        return {prefix: scores}
    return {name: value for key, inner in scores.items() for name, value in flat(inner, f"{prefix}/{key}").items()}


def test_a_finished_run_embeds_its_own_videos_as_it_did(old, call):
    ran = call(
        embed_main, "byov-embed", "--run", "finished", "--encoder", "encoder", "videos/ego_3.mp4", "-o", "new.h5"
    )
    assert ran.code == 0, ran
    now, _ = read_embedding(old / "new.h5")
    then, _ = read_embedding(old / "runs/finished/embeddings/ego/ego_3.h5")
    np.testing.assert_allclose(now, then, atol=1e-4)


def test_a_finished_run_writes_its_embeddings_again(old, call):
    then, _ = read_embedding(old / "runs/finished/embeddings-trimmed/exo" / trimmed_name(old))
    for folder in (old / "runs/finished").glob("embeddings*"):
        shutil.rmtree(folder)
    ran = call(train_main, "byov-train", "--run", "finished", "--embed-only")
    assert ran.code == 0, ran
    now, provenance = read_embedding(old / "runs/finished/embeddings-trimmed/exo" / trimmed_name(old))
    np.testing.assert_allclose(now, then, atol=1e-5)
    assert provenance.run == "finished"


def trimmed_name(old):
    with_clips = json.loads((old / "features/tiny/manifest.json").read_text())["videos"]
    video = next(video for video in with_clips if video["view"] == "exo" and video["split"] == "test")
    from byov.evaluate.protocols import clip_name, trimmed_clips

    return f"{clip_name(video['id'], *trimmed_clips('tiny', 'exo', video['id'], video['frames'])[0])}.h5"


def test_a_finished_run_aligns_and_reports(old, call):
    ran = call(
        align_main,
        *("byov-align", "--run", "finished", "--encoder", "encoder", "--height", "64"),
        *("videos/ego_3.mp4", "videos/exo_3.mp4", "-o", "aligned.mp4"),
    )
    assert ran.code == 0, ran
    ran = call(report_main, "byov-report", "--run", "finished")
    assert ran.code == 0, ran
    assert "data:image/jpeg" in (old / "runs/finished/report.html").read_text()


@pytest.mark.slow
def test_an_interrupted_run_resumes_to_its_end(old, call):
    run = old / "runs/interrupted"
    before = records(run)
    ran = call(train_main, "byov-train", "--run", "interrupted", "--resume")
    assert ran.code == 0, ran
    assert "resuming from step 20 of 160" in ran.err
    after = records(run)
    assert after[: len(before)] == before
    assert [record["epoch"] for record in after] == list(range(41))
    assert after[-1]["loss"] < after[1]["loss"]
    assert call(evaluate_main, "byov-eval", "--run", "interrupted", "--task", "retrieval").code == 0


def test_a_run_that_lacks_a_setting_of_today_is_used_with_its_default(old, call):
    config = old / "runs/finished/config.json"
    raw = json.loads(config.read_text())
    del raw["training"]["settings"]["order_prior"], raw["attention_window"]
    config.write_text(json.dumps(raw))
    assert "order_prior" not in read_run(old / "runs", "finished").settings
    for main, *arguments in (
        (train_main, "byov-train", "--run", "finished", "--embed-only"),
        (evaluate_main, "byov-eval", "--run", "finished", "--task", "tau"),
        (embed_main, "byov-embed", "--run", "finished", "--encoder", "encoder", "videos/ego_3.mp4", "-o", "new.npz"),
    ):
        ran = call(main, *arguments)
        assert ran.code == 0, ran


def test_a_run_of_a_later_version_is_refused_by_name(old, call):
    config = old / "runs/finished/config.json"
    raw = json.loads(config.read_text())
    raw["training"]["settings"]["temperature"] = 0.1
    raw["training"]["versions"]["byov"] = "3.0"
    config.write_text(json.dumps(raw))
    ran = call(train_main, "byov-train", "--run", "finished", "--embed-only")
    assert ran.code == 2
    assert ran.err.endswith(
        "error: runs/finished/config.json: unknown setting 'temperature'; byov 3.0 has written it, use that version\n"
    )
