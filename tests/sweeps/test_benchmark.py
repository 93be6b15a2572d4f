"""Tests of `byov-sweep benchmark` with two methods, two seeds and two tiny datasets."""

import json

import pytest
from tests.factories import CLIP
from tests.sweeps.tiny_sweeps import make_cache

from byov.cli.sweep import main
from byov.sweeps import paper_tables
from byov.sweeps.grids import plan_runs
from byov.sweeps.paper_tables import PaperChoice, shipped_grid
from byov.train.registry import METHODS

DATASETS = ("metaworld-door-open", "metaworld-hammer")
GRID = f"""
dataset = {json.dumps(DATASETS)}
encoder = "{CLIP}"
seed = [0, 1]
frames = 6
epochs = 2
validate-every = 1
batch-size = 2
latent = 8

[[runs]]
title = "BYOV"
depth = 1
decoder-depth = 1
heads = 2

[[runs]]
title = "TCC"
method = "tcc"
"""


@pytest.fixture
def byov_sweep(call, tmp_path, monkeypatch):
    """Return a function that runs the benchmark with tiny runs."""
    experiments = tmp_path / "experiments"
    experiments.mkdir()
    (experiments / "benchmark.toml").write_text(GRID)
    monkeypatch.setattr(paper_tables, "EXPERIMENTS", experiments)
    options = (
        "--runs-dir",
        tmp_path / "runs",
        "--features-dir",
        tmp_path / "features",
        "--workers",
        1,
    )
    return lambda *arguments: call(main, "byov-sweep", "benchmark", *arguments, *options)


def test_the_shipped_benchmark_has_every_method(tmp_path):
    runs = plan_runs(
        [shipped_grid("benchmark", tmp_path, PaperChoice())], tmp_path, allow_missing=True
    )
    assert {run.config.method.name for run in runs} == METHODS.keys()
    # byov is run with two recipes, and timeline also with --online and one seed
    assert len(runs) == 6 * (3 * (len(METHODS) + 1) + 1)
    assert {run.missing for run in runs} >= {
        "byov-extract --dataset metaworld/peg-insert-side --encoder imagenet/efficientnet-lite0"
    }


def test_missing_datasets_are_named_with_the_command_to_type(byov_sweep, tmp_path):
    make_cache(tmp_path / "features", DATASETS[0], CLIP)
    command = f"byov-extract --dataset metaworld/hammer --encoder {CLIP}"
    ran = byov_sweep()
    assert ran.code == 2
    assert ran.err.count(command) == 1


@pytest.mark.slow
def test_benchmark_means_counts_and_resumes(byov_sweep, tmp_path):
    for dataset in DATASETS:
        make_cache(tmp_path / "features", dataset, CLIP)
    ran = byov_sweep("--out", tmp_path / "out", "--json")
    assert ran.code == 0, ran.err
    assert "expected time: about " in ran.err
    mean, *documents = ran.json["datasets"].values()
    assert list(ran.json["datasets"]) == ["Mean of 2 datasets", *DATASETS]
    ahead = 0
    for protocol in ("standard", "trimmed"):
        rows = {row["name"]: row for row in mean["protocols"][protocol]["rows"]}
        untrained = [name for name in rows if name.startswith("Untrained")]
        assert untrained == ["Untrained: BYOV", "Untrained: TCC"]
        for name in ("Time only", "BYOV", "TCC"):
            values = [
                row["scores"]["classification"]["regular"]
                for document in documents
                for row in document["protocols"][protocol]["rows"]
                if row["name"] == name
            ]
            assert rows[name]["scores"]["classification"]["regular"] == pytest.approx(
                sum(values) / 2
            )
        assert "deviation" in rows["BYOV"]["details"]["classification/regular"]
        assert "deviation" not in rows["Time only"]["details"].get("classification/regular", {})
        assert rows["BYOV"]["scores"]["ahead"].keys() == {
            "frozen",
            "standardized",
            "time",
            "untrained",
        }
        assert rows["Time only"]["scores"]["ahead"].keys() == {"frozen", "standardized"}
        own = rows["BYOV"]["scores"]
        clock = rows["Time only"]["scores"]
        pairs = [(own["classification"], clock["classification"])]
        pairs += [(own["retrieval"]["map@10"], clock["retrieval"]["map@10"])]
        ahead += sum(
            score > other[setting] for scores, other in pairs for setting, score in scores.items()
        )
    assert 0 < own["ahead"]["time"] == ahead < 12
    text = (tmp_path / "out/results.md").read_text()
    titles = [line for line in text.splitlines() if line.startswith("**")]
    assert [title.split(",")[0] for title in titles[:9]] == [
        f"**{name}" for name in ("Mean of 2 datasets", *DATASETS) for _ in range(3)
    ]
    assert "Columns ahead, of 12: Time only" in text

    finished = {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").glob("*/scores.json")}
    assert len(finished) == 8
    again = byov_sweep("--json")
    assert again.json == ran.json
    assert {path: path.stat().st_mtime_ns for path in finished} == finished
    part = byov_sweep("--dataset", DATASETS[1], "--seeds", 3, "--dry-run")
    assert part.out.count(": finished") == 4
    assert part.out.count("to train (about ") == 2
