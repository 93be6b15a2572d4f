"""Tests of the public Python API: results, defaults, errors and stopping."""

import ast
import logging
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.python.conftest import TINY

import byov
from byov.cache.embeddings import read_embedding
from byov.cli.evaluate import main as eval_main
from byov.errors import ApplyError, TrainError, VideoError

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.usefixtures("project")


def test_public_names():
    for name in byov.__all__:
        assert getattr(byov, name) is not None
    assert set(byov.__all__) <= set(dir(byov))
    with pytest.raises(AttributeError, match="'byov' has no attribute 'load_rnu'"):
        byov.load_rnu  # noqa: B018


def test_type_checkers_see_the_same_names():
    tree = ast.parse((ROOT / "byov/__init__.py").read_text())
    imported = {
        alias.name: node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module.startswith("byov.")
        for alias in node.names
    }
    assert imported == byov._MODULES
    assert set(byov.__all__) == {"__version__", *byov._MODULES}


def test_features_are_read_on_access(project):
    features = byov.load_features()
    assert (len(features), features.dataset, len(features.phases)) == (8, "demo", 4)
    assert all(
        array.shape == (features.videos[name].frames, 128) for name, array in features.items()
    )
    assert list(byov.load_features(split="train", view="ego")) == ["train_ego_00", "train_ego_01"]
    assert not np.array_equal(features["test_ego_00"], byov.load_features(ratio=1.0)["test_ego_00"])
    (project / "features/demo/random--tiny/ego/test_ego_00.h5").write_bytes(b"")
    assert features["test_exo_00"].dtype == np.float16
    with pytest.raises(byov.ByovError, match=r"test_ego_00\.h5"):
        features["test_ego_00"]
    with pytest.raises(KeyError):
        features["nobody"]


def test_embed_equals_the_embeddings_of_the_run(project):
    """Check a video file, an array and a tensor."""
    run = byov.load_run(device="cpu")
    features = byov.load_features()
    stored, _ = read_embedding(project / "runs/demo-byov/embeddings/exo/test_exo_00.h5")
    array = features["test_exo_00"]
    video = run.embed_video(project / "datasets/demo/test/exo/test_exo_00.mp4")
    for embedding in (
        run.embed(array),
        run.embed(torch.from_numpy(array)),
        run.embed("datasets/demo/test/exo/test_exo_00.mp4"),
        video.embedding,
        run.embeddings()["test_exo_00"],
    ):
        assert (type(embedding), embedding.dtype) == (np.ndarray, np.float32)
        assert np.array_equal(embedding, stored)
    assert video.pts_seconds.tolist() == pytest.approx([frame / 10 for frame in range(14)])
    assert not np.array_equal(run.embeddings(untrained=True)["test_exo_00"], stored)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (np.zeros((5, 31)), r"\(5, 31\)"),
        (np.zeros((0, 128)), r"\(0, 128\)"),
        (np.zeros(128), r"\(128,\)"),
        (torch.zeros(1, 5, 128), r"\(1, 5, 128\)"),
        (np.zeros((2, 8, 8, 3)), "float64"),
        (np.zeros((2, 8, 8, 4), np.uint8), r"\(2, 8, 8, 4\)"),
        (np.zeros((0, 8, 8, 3), np.uint8), r"\(0, 8, 8, 3\)"),
        ([[1, 2], [3, 4]], "a list"),
        (np.full((5, 128), np.nan), "finite"),
        (np.full((5, 128), "a"), "<U1"),
        ("nowhere.mp4", "nowhere.mp4"),
        ("datasets", "datasets"),
        ("datasets/demo/videos.csv", r"videos\.csv"),
    ],
)
def test_embed_rejects(value, message):
    with pytest.raises((ApplyError, VideoError), match=message):
        byov.load_run().embed(value)


def test_scores_equal_those_of_the_command(call):
    row = byov.load_run("demo-byov").evaluate("retrieval", options=byov.EvaluationOptions(ks=(3,)))
    ran = call(
        eval_main, "byov-eval", "--run", "demo-byov", "--task", "retrieval", "--k", "3", "--json"
    )
    expected = next(
        each for each in ran.json["protocols"]["standard"]["rows"] if each["kind"] == "run"
    )
    assert row.nested_scores() == expected["scores"]
    assert set(row.scores) == {
        f"retrieval/map@3/{setting}" for setting in ("regular", "ego2exo", "exo2ego")
    }


def test_evaluate_without_a_task_scores_all():
    run = byov.load_run()
    standard = run.evaluate()
    trimmed = run.evaluate(protocol="trimmed", split="val")
    tasks = {name.split("/")[0] for name in standard.scores}
    for_whole_videos = {"progression", "kendalls_tau", "event_error"}
    assert tasks == {"classification", "retrieval", "progress_error"} | for_whole_videos
    assert not for_whole_videos & {name.split("/")[0] for name in trimmed.scores}
    assert standard.scores != trimmed.scores
    assert standard.scores != run.evaluate(untrained=True).scores


@pytest.mark.parametrize(
    ("task", "message"), [("actions", "demo"), ("clasification", "clasification")]
)
def test_evaluate_rejects_a_task(task, message):
    with pytest.raises(byov.ByovError, match=message):
        byov.load_run().evaluate(task)


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (lambda: byov.train_run(3), "run 3 cannot"),
        (lambda: byov.train_run(""), "run '' cannot"),
        (lambda: byov.train_run(ratio="30%"), "such as 0.3"),
        (lambda: byov.load_run(device="gpu"), "auto, cuda, mps, cpu"),
        (lambda: byov.load_run().embeddings()["nobody"], "test_ego_00"),
        (lambda: byov.load_run().evaluate(split="train"), "test, val"),
    ],
)
def test_wrong_arguments(use, message):
    with pytest.raises(byov.ByovError, match=message):
        use()


def test_extraction_of_own_videos(project):
    done = byov.extract_features(
        manifest=project / "datasets/demo/videos.csv",
        name="mine",
        encoder="random/tiny",
        ratios=(0.3,),
    )
    assert (done.dataset, done.folder, done.videos) == (
        "mine",
        Path("features/mine/random--tiny"),
        8,
    )
    with pytest.raises(TrainError, match="dataset"):
        byov.load_features()
    assert len(byov.load_features("mine")) == 8


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "dataset"),
        ({"dataset": "demo", "manifest": "a.csv"}, "manifest"),
        ({"dataset": "demo", "name": "a"}, "name"),
        ({"manifest": "demo.csv"}, "demo"),
        ({"dataset": "demo", "shard": (3, 2)}, "shard"),
        ({"dataset": "demo", "ratios": (0.3, 30)}, "30"),
        ({"dataset": "demo", "ratios": "0.3"}, "expected numbers"),
        ({"dataset": "nobodys"}, "nobodys"),
        ({"dataset": 3}, "'3'"),
        ({"dataset": "demo", "device": "gpu"}, "auto, cuda, mps, cpu"),
        ({"dataset": "demo", "on_truncated": "kep"}, "error, keep"),
    ],
)
def test_extraction_rejects(arguments, message):
    with pytest.raises(byov.ByovError, match=message):
        byov.extract_features(**arguments)


def test_defaults_are_the_newest_run_and_the_only_dataset(caplog):
    caplog.set_level(logging.INFO, "byov")
    run = byov.train_run(method="timeline", latent=32, frames=8, epochs=1)
    assert (run.name, run.record.seed, run.model.config.method.name) == (
        "demo-timeline-r0.3-s0",
        0,
        "timeline",
    )
    assert "features/demo/random--tiny" in caplog.text
    assert byov.load_run().name == run.name
    assert byov.load_run("runs/demo-byov").name == "demo-byov"
    with pytest.raises(byov.ByovError, match="demo-byov"):
        byov.load_run("other")


def test_folders_come_from_the_environment(project, monkeypatch):
    monkeypatch.chdir(project.parent)
    monkeypatch.setenv("BYOV_FEATURES", str(project / "features"))
    monkeypatch.setenv("BYOV_RUNS", str(project / "runs"))
    assert len(byov.load_features()) == 8
    assert byov.load_run().evaluate("tau").value("kendalls_tau/all") is not None
    with pytest.raises(byov.ByovError, match="elsewhere"):
        byov.load_run(runs_dir="elsewhere")


def test_stopped_extraction_keeps_finished_videos(project):
    options = {
        "encoder": "random/tiny",
        "features_dir": "new",
        "ratios": (0.3,),
        "batch_size": 4,
        "decoders": 1,
    }
    with pytest.raises(byov.Interrupted):
        byov.extract_features(
            "demo", stop=lambda: any(project.glob("new/demo/*/*/*.h5")), **options
        )
    finished = len(list(project.glob("new/demo/*/*/*.h5")))
    assert 0 < finished < 8
    assert not list(project.glob("new/**/*.partial"))
    assert byov.extract_features("demo", **options).cached == finished


def test_evaluate_and_embed_can_be_stopped():
    run = byov.load_run()
    with pytest.raises(byov.Interrupted):
        run.evaluate(stop=lambda: True)
    with pytest.raises(byov.Interrupted):
        run.embed("datasets/demo/test/exo/test_exo_00.mp4", stop=lambda: True)


def test_nothing_is_printed(capfd):
    byov.extract_features("demo", encoder="random/tiny", features_dir="new", ratios=(0.3,))
    byov.train_run("quiet", **TINY).evaluate("tau")
    assert capfd.readouterr() == ("", "")
