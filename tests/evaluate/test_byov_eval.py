"""End-to-end tests of byov-eval."""

import io
import json
import re
import shutil
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console
from tests.evaluate.conftest import GOLDEN

from byov.cli.evaluate import parse_ks
from byov.cli.options import UsageError
from byov.cli.score_table import print_table
from byov.evaluate import compare
from byov.evaluate.frames import Score
from byov.evaluate.table import Row, Table
from byov.evaluate.tasks import TASKS, EvaluationOptions, main_columns

RANDOM_FEATURES = ("--features", "merged:0.3", "--encoder", "random/tiny")


@pytest.fixture
def evaluated(byov_eval):
    """Run byov-eval --json and return the parsed output."""

    def run(*arguments):
        code, out, err = byov_eval(*arguments, "--json")
        assert code == 0, err
        return json.loads(out)

    return run


def row_names(document, protocol="standard"):
    return [row["name"] for row in document["protocols"][protocol]["rows"]]


def options_for_runs(*names):
    return [part for name in names for part in ("--run", name)]


def test_without_a_task_the_plan_is_printed(byov_eval, write_run):
    folder = write_run("first")
    code, out, _ = byov_eval()
    assert code == 0
    assert "run first" in out
    assert "test split of tea" in out
    assert all(task in out for task in TASKS)
    assert not (folder / "results.json").exists()


def test_one_task_of_the_newest_run(byov_eval, write_run):
    folder = write_run("first")
    code, out, err = byov_eval("--task", "retrieval")
    assert code == 0, err
    assert "tea, test split, standard protocol: Frame retrieval (6 videos, 3 ego and 3 exo" in out
    assert all(name in out for name in ("Time only", "Untrained (first)", "first"))
    assert re.fullmatch(
        r"first is ahead of Time only in \d of 3 columns of F1 and mAP.", out.splitlines()[-1]
    )
    assert (folder / "results-retrieval.json").is_file()
    assert not (folder / "results.json").exists()


def test_all_tasks_with_baselines_under_all_protocols(evaluated, write_run):
    folder = write_run("first")
    document = evaluated("--run", "first", "--task", "all")
    expected = [
        "Random features (tiny), merged 1.0",
        "Random features (tiny), merged 0.3",
        "CLIP features (vit-base-patch16), cls",
        "CLIP features (vit-base-patch16), merged 0.3",
        "CLIP features (vit-base-patch16), merged 0.3, standardized",
        "Time only",
        "Untrained (first)",
        "first",
    ]
    assert (
        row_names(document)
        == row_names(document, "trimmed")
        == row_names(document, "online")
        == expected
    )
    assert document["protocols"]["trimmed"]["videos"] == 12
    assert (document["split"], document["settings"]["ks"]) == ("test", [5, 10, 15])
    assert document["versions"].keys() == {
        "python",
        "byov",
        "numpy",
        "scipy",
        "scikit-learn",
        "svm",
    }
    rows = document["protocols"]["standard"]["rows"]
    assert len(rows[-1]["origin"]["model_sha256"]) == 64
    assert rows[4]["origin"]["features_sha256"] == rows[3]["origin"]["features_sha256"]
    assert rows[4]["scores"]["retrieval"] != rows[3]["scores"]["retrieval"]
    assert json.loads((folder / "results.json").read_text()) == document
    assert "| first |" in (folder / "results.md").read_text()
    assert r"\begin{tabular}{l" in (folder / "results.tex").read_text()
    online = document["protocols"]["online"]["rows"][-1]["scores"]
    assert online.keys() == {"classification", "retrieval", "progress_error"}
    assert online["progress_error"].keys() == {"mean", "30%", "50%", "70%", "90%"}


def test_results_of_an_unfinished_run_are_flagged(byov_eval, write_run):
    folder = write_run("long")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"settings": {"epochs": 5000}}))
    (folder / "metrics.jsonl").write_text('{"epoch": 62}\n')
    files = [folder / f"results-tau{suffix}" for suffix in (".json", ".md", ".tex")]
    assert byov_eval("--run", "long", "--task", "tau")[0] == 0
    assert ["epoch 62 of 5000" in path.read_text() for path in files] == [True] * 3
    (folder / "model-last.safetensors").write_bytes(b"")
    assert byov_eval("--run", "long", "--task", "tau")[0] == 0
    assert ["unfinished" in path.read_text() for path in files] == [False] * 3


def test_runs_that_differ_in_their_seed_have_a_mean(evaluated, write_run, tmp_path):
    for name, seed, recipe, title in (
        ("a", 0, "x", "TCC"),
        ("b", 1, "x", "TCC"),
        ("c", 0, "y", ""),
    ):
        write_run(name, seed=seed, recipe=recipe, title=title)
    document = evaluated(
        *options_for_runs("a", "b", "c"), "--task", "tau", "--out", tmp_path / "out"
    )
    assert row_names(document) == [
        "Time only",
        "Untrained, mean of a, b: TCC (ViT-B/16, frozen)",  # c has the same initialization as a
        "a: TCC (ViT-B/16, frozen)",
        "b: TCC (ViT-B/16, frozen)",
        "Mean of a, b: TCC (ViT-B/16, frozen)",
        "c",
    ]
    mean = document["protocols"]["standard"]["rows"][4]
    assert mean["details"]["kendalls_tau/all"]["deviation"] > 0
    assert len(mean["origin"]["runs"]) == 2
    assert "±" in (tmp_path / "out" / "results-tau.md").read_text()


@pytest.mark.slow
def test_rows_scored_in_parallel_processes_are_the_same(
    evaluated, write_run, monkeypatch, features_dir
):
    write_run("first")
    # The row of these features is skipped.
    (features_dir / "tea" / "random--tiny" / "ego" / "test_ego_0.h5").unlink()
    in_turn = evaluated("--task", "all")
    monkeypatch.setattr(compare, "MIN_FRAMES", 0)
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert evaluated("--task", "all") == in_turn


def test_cached_features_without_a_run(byov_eval, manifest, tmp_path):
    options = (
        "--dataset",
        manifest.dataset,
        "--features",
        "cls",
        "--encoder",
        "openai/clip-vit-base-patch16",
    )
    code, out, err = byov_eval(*options, "--task", "all")
    assert code == 0, err
    assert "CLIP features" in out
    assert "trimmed protocol" in out
    assert not list(tmp_path.rglob("results*"))


@pytest.fixture
def renamed(features_dir, manifest):
    """Move the random features to a dataset from the paper."""

    def rename(dataset):
        replace(manifest, dataset=dataset).save(features_dir / dataset / "manifest.json")
        shutil.move(features_dir / "tea" / "random--tiny", features_dir / dataset / "random--tiny")
        return ("--dataset", dataset, "--features", "merged:0.3")

    return rename


def test_published_rows_are_shown_for_whole_test_videos(byov_eval, renamed):
    options = (*renamed("break_eggs"), "--task", "classification")
    code, out, err = byov_eval(*options, "--protocol", "both")
    assert code == 0, err
    standard, trimmed = out.split("trimmed protocol")
    assert "74.30" in standard
    assert "published in the paper, not measured here" in " ".join(standard.split())
    assert "74.30" not in trimmed
    assert "74.30" not in byov_eval(*options, "--split", "val")[1]


def test_pour_liquid_uses_the_time_column(byov_eval, evaluated, renamed):
    options = (*renamed("pour_liquid"), "--task", "progression")
    assert "time column" in byov_eval(*options)[1]
    assert (
        evaluated(*options)["protocols"]["standard"]["rows"][0]["scores"]["progression"][
            "time_column"
        ]
        is True
    )


@pytest.mark.parametrize(
    ("name", "options"), [("three_phases", ()), ("missing_phase_time_column", ("--time-column",))]
)
def test_golden_files(evaluated, name, options):
    path = GOLDEN / f"{name}.npz"
    document = evaluated("--embeddings", path, "--task", "all", *options)
    expected = json.loads(str(np.load(path)["expected"]))
    for task, scores in expected.items():
        if isinstance(scores, float):
            assert document[task] == pytest.approx(scores, abs=1e-6)
            continue
        for key, value in scores.items():
            assert document[task][key] == pytest.approx(
                value, abs=1e-4 if task == "classification" else 1e-6
            )
    assert document["time_only"]["kendalls_tau"] > 0.9
    assert document["origin"]["file"] == f"{name}.npz"


def test_own_embeddings_as_a_table_with_intervals(byov_eval, tmp_path):
    options = ("--task", "tau", "--bootstrap", "50", "--out", tmp_path / "out")
    code, out, err = byov_eval("--embeddings", GOLDEN / "three_phases.npz", *options)
    assert code == 0, err
    assert "0.5479" in out
    assert "95% confidence interval from 50 bootstrap samples" in out
    assert (tmp_path / "out" / "results-tau.tex").is_file()


@pytest.mark.usefixtures("manifest")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--embeddings", "none.npz", "--task", "all"), "none.npz: no such file"),
        (("--embeddings", "none.npz"), "--task classification"),
        (("--embeddings", "none.npz", "--task", "all", "--run", "x"), "--run"),
        (("--embeddings", "none.npz", "--task", "all", "--dataset", "tea"), "byov-embed"),
        (("--embeddings", "none.npz", "--task", "tau", "--split", "val"), "--split val"),
        (("--embeddings", "none.npz", "--task", "tau", "--protocol", "both"), "--protocol both"),
        (("--task", "retrieval"), "byov-train --ratio 0.3"),
        (("--run", "gone", "--task", "tau"), "gone"),
        (("--task", "tau", "--features", "cls"), "--encoder openai"),
        (
            ("--task", "tau", "--features", "cls", "--encoder", "random/tiny"),
            "merged:0.3, merged:1.0",
        ),
        (("--task", "tau", "--features", "order", "--encoder", "random/tiny"), "--features order"),
        (("--task", "tau", "--encoder", "random/tiny"), "--features"),
        (("--task", "tau", "--k", "x"), "--k x"),
        (("--task", "tau", "--protocol", "online", *RANDOM_FEATURES), "--task tau"),
        (("--task", "actions", *RANDOM_FEATURES), "no action labels"),
        (("--task", "all", "--dataset", "milk"), "milk"),
    ],
)
def test_usage_errors_are_one_line(byov_eval, options, message):
    code, out, err = byov_eval(*options)
    assert code == 2
    assert out == ""
    (line,) = [line for line in err.splitlines() if line.startswith("error: ")]
    assert message in line


def test_option_values():
    assert parse_ks("10, 5,5") == (5, 10)
    for text in ("", "0", "5;10", "-1", "1e3", "9999999"):
        with pytest.raises(UsageError):
            parse_ks(text)


def test_trimmed_protocol_is_skipped_without_sub_clips_unless_requested(
    byov_eval, evaluated, write_run
):
    write_run("first", trimmed=False)
    assert evaluated("--task", "all")["protocols"].keys() == {"standard"}
    code, _, err = byov_eval("--task", "retrieval", "--protocol", "trimmed")
    assert code == 2
    assert "byov-train --run first --embed-only" in err


def test_videos_never_extracted_are_listed(evaluated, features_dir, manifest, write_run):
    write_run("first")
    videos = tuple(replace(v, frames=None) if v.id == "test_ego_1" else v for v in manifest.videos)
    replace(manifest, videos=videos).save(features_dir / "tea" / "manifest.json")
    assert evaluated("--task", "tau")["left_out"] == ["ego/test_ego_1"]


@pytest.mark.parametrize("width", [20, 60, 100, 200])
def test_numbers_are_never_truncated_in_narrow_terminals(width):
    columns = main_columns(EvaluationOptions())
    wide = {
        column.score: Score(-0.123456, deviation=0.5, interval=(-0.9, 0.9)) for column in columns
    }
    rows = (
        Row("a run with a long name\x1b]0;x\x07[bold]", "run", wide),
        Row("Time only", "time", wide),
    )
    stream = io.StringIO()
    print_table(Table("title", columns, rows), Console(file=stream, width=width))
    text = stream.getvalue()
    assert text.count("-12.35 ± 50.00") == 12
    assert text.count("[-0.9000, 0.9000]") == 4
    assert "…" not in text
    assert "\x1b" not in text
    assert text.count("Exo2Ego") == 2
    assert max(map(len, text.splitlines())) <= max(width, 45)


def test_tasks_that_need_ordered_phases_are_skipped(byov_eval, manifest, features_dir):
    path = features_dir / manifest.dataset / "manifest.json"
    replace(manifest, ordered=False).save(path)
    features = (*RANDOM_FEATURES, "--dataset", manifest.dataset)
    code, out, err = byov_eval(*features, "--task", "all", "--json")
    assert code == 0, err
    assert "its phases have no fixed order; skipped progression, progress-error, events" in err
    tasks = json.loads(out)["tasks"]
    assert {"classification", "retrieval", "tau"} <= {*tasks}
    assert not {"progression", "progress-error", "events"} & {*tasks}
    for task in ("progression", "progress-error", "events"):
        code, _, err = byov_eval(*features, "--task", task)
        assert (code, "has no phases in a fixed order" in err) == (2, True), err
