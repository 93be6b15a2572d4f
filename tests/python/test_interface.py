"""import byov: the verbs, their defaults, their errors, how they are stopped."""

import ast
import logging
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch

import byov
from byov.cache.embeddings import read_embedding
from byov.cli.evaluate import main as eval_main
from byov.errors import ApplyError, DatasetError, SettingsError, TrainError, VideoError

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.usefixtures("project")


class Counted:
    """A progress that counts by the names of its bars."""

    def __init__(self):
        self.done = {}

    @contextmanager
    def bar(self, name, *, unit, total=None, done=0, brief=False):  # noqa: ARG002
        self.done[name] = done
        outer = self

        class Bar:
            def advance(self, count=1, *, latest=""):  # noqa: ARG002
                outer.done[name] += count

        yield Bar()


def test_the_names_are_those_of_the_list_and_of_no_others():
    for name in byov.__all__:
        assert getattr(byov, name) is not None
    assert set(byov.__all__) <= set(dir(byov))
    with pytest.raises(AttributeError, match="'byov' has no attribute 'load_rnu'"):
        byov.load_rnu  # noqa: B018


def test_a_type_checker_sees_each_name_where_it_comes_from():
    tree = ast.parse((ROOT / "byov/__init__.py").read_text())
    seen = {
        alias.name: node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module.startswith("byov.")
        for alias in node.names
    }
    assert seen == byov._HOMES
    assert set(byov.__all__) == {"__version__", *byov._HOMES}


def test_features_are_those_of_the_cache_and_read_when_asked_for(project):
    features = byov.load_features()
    assert (len(features), features.dataset, len(features.phases)) == (8, "demo", 3)
    assert all(array.shape == (features.videos[name].frames, 128) for name, array in features.items())
    assert list(byov.load_features(split="train", view="ego")) == ["pour_ego_000", "pour_ego_001"]
    assert not np.array_equal(features["pour_ego_015"], byov.load_features(ratio=1.0)["pour_ego_015"])
    (project / "features/demo/random--tiny/ego/pour_ego_015.h5").write_bytes(b"")
    assert features["pour_exo_015"].dtype == np.float16
    with pytest.raises(byov.ByovError, match=r"pour_ego_015\.h5"):
        features["pour_ego_015"]
    with pytest.raises(KeyError):
        features["nobody"]


def test_a_run_embeds_videos_arrays_and_tensors_as_it_did_its_own(project):
    run, features = byov.load_run(device="cpu"), byov.load_features()
    own, _ = read_embedding(project / "runs/demo-paper/embeddings/exo/pour_exo_015.h5")
    array = features["pour_exo_015"]
    video = run.embed_video(project / "datasets/demo/test/exo/pour_exo_015.mp4")
    for found in (
        run.embed(array),
        run.embed(torch.from_numpy(array)),
        run.embed("datasets/demo/test/exo/pour_exo_015.mp4"),
        video.embedding,
        run.embeddings()["pour_exo_015"],
    ):
        assert (type(found), found.dtype) == (np.ndarray, np.float32)
        assert np.array_equal(found, own)
    assert video.pts_seconds.tolist() == pytest.approx([frame / 10 for frame in range(14)])
    assert not np.array_equal(run.embeddings(untrained=True)["pour_exo_015"], own)


@pytest.mark.parametrize(
    ("what", "said"),
    [
        (np.zeros((5, 31)), r"features of shape \(5, 31\); demo-paper takes \(T, 128\)"),
        (np.zeros((0, 128)), r"shape \(0, 128\)"),
        (np.zeros(128), r"shape \(128,\)"),
        (torch.zeros(1, 5, 128), r"shape \(1, 5, 128\)"),
        (np.full((5, 128), np.nan), "not finite"),
        ("nowhere.mp4", "nowhere.mp4: no such file"),
        ("datasets", "datasets: a folder, not a video"),
    ],
)
def test_what_cannot_be_embedded_is_told(what, said):
    with pytest.raises(ApplyError, match=said):
        byov.load_run().embed(what)


def test_a_file_that_is_no_video_is_told(project):
    (project / "no.mp4").write_text("no video")
    with pytest.raises(VideoError, match=r"no\.mp4"):
        byov.load_run().embed("no.mp4")


def test_scores_are_those_of_the_command(call):
    row = byov.load_run("demo-paper").evaluate("retrieval", options=byov.EvaluationOptions(ks=(3,)))
    ran = call(eval_main, "byov-eval", "--run", "demo-paper", "--task", "retrieval", "--k", "3", "--json")
    theirs = next(each for each in ran.json["protocols"]["standard"]["rows"] if each["kind"] == "run")
    assert row.nested_scores() == theirs["scores"]
    assert set(row.scores) == {f"retrieval/map@3/{setting}" for setting in ("regular", "ego2exo", "exo2ego")}


def test_without_a_task_all_are_scored_on_either_protocol():
    run = byov.load_run()
    standard, trimmed = run.evaluate(), run.evaluate(protocol="trimmed", split="val")
    assert {name.split("/")[0] for name in standard.scores} == {
        "classification",
        "retrieval",
        "progression",
        "kendalls_tau",
    }
    assert standard.scores != trimmed.scores
    assert standard.scores != run.evaluate(untrained=True).scores


def test_a_task_without_labels_is_told():
    with pytest.raises(byov.ByovError, match="demo has no actions of whole videos"):
        byov.load_run().evaluate("actions")
    with pytest.raises(byov.ByovError, match="no task clasification"):
        byov.load_run().evaluate("clasification")


def test_extraction_does_what_is_missing_and_goes_on_after_failures(project):
    damaged = project / "datasets/demo/train/ego/pour_ego_000.mp4"
    whole = damaged.read_bytes()
    damaged.write_bytes(b"no video")
    first = byov.extract_features("demo", encoder="random/tiny", features_dir="new", ratios=(0.3,))
    assert (first.videos, first.cached, list(first.failures)) == (7, 0, ["pour_ego_000"])
    damaged.write_bytes(whole)
    second = byov.extract_features("demo", encoder="random/tiny", features_dir="new", ratios=(0.3,))
    assert (second.videos, second.frames, second.cached, second.failures) == (1, 12, 7, {})
    old, new = (byov.load_features(features_dir=folder)["pour_ego_000"] for folder in ("features", "new"))
    assert np.array_equal(old, new)


def test_ones_own_videos_go_by_their_csv(project):
    done = byov.extract_features(
        manifest=project / "datasets/demo/videos.csv", name="mine", encoder="random/tiny", ratios=(0.3,)
    )
    assert (done.dataset, done.folder, done.videos) == ("mine", Path("features/mine/random--tiny"), 8)
    with pytest.raises(TrainError, match="which dataset"):
        byov.load_features()
    assert len(byov.load_features("mine")) == 8


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "which dataset"),
        ({"dataset": "demo", "manifest": "a.csv"}, "not both"),
        ({"dataset": "demo", "name": "a"}, "goes with a manifest"),
        ({"manifest": "demo.csv"}, "known dataset"),
        ({"dataset": "demo", "shard": (3, 2)}, "shard"),
        ({"dataset": "nobodys"}, "unknown dataset"),
    ],
)
def test_mistakes_of_extraction_are_told(given, said):
    with pytest.raises(DatasetError, match=said):
        byov.extract_features(**given)
    with pytest.raises(byov.ByovError, match="above 0 and at most 1"):
        byov.extract_features("demo", ratios=(0.3, 30))


def test_mistakes_of_training_are_told(tiny):
    with pytest.raises(SettingsError, match="sigma is a setting of timeline"):
        byov.train_run("new", sigma=0.1)
    with pytest.raises(TrainError, match="exists"):
        byov.train_run("demo-paper", **tiny)
    with pytest.raises(TrainError, match="was started with"):
        byov.train_run("demo-paper", resume=True, latent=64)
    with pytest.raises(byov.ByovError, match="no such run; choose one of demo-paper"):
        byov.load_run("other")


def test_the_newest_run_and_the_only_dataset_are_taken_and_said(caplog):
    caplog.set_level(logging.INFO, "byov")
    run = byov.train_run(method="timeline", **{"latent": 32, "depth": 1, "heads": 4, "frames": 8, "epochs": 1})
    assert (run.name, run.record.seed, run.model.settings.method) == ("demo-timeline-r0.3-s0", 0, "timeline")
    assert "features: features/demo/random--tiny at ratio 0.3" in caplog.text
    assert byov.load_run().name == run.name
    assert byov.load_run("runs/demo-paper").name == "demo-paper"


def test_folders_are_those_of_the_environment_unless_they_are_given(project, monkeypatch):
    monkeypatch.chdir(project.parent)
    monkeypatch.setenv("BYOV_FEATURES", str(project / "features"))
    monkeypatch.setenv("BYOV_RUNS", str(project / "runs"))
    assert len(byov.load_features()) == 8
    assert byov.load_run().evaluate("tau").value("kendalls_tau/all") is not None
    with pytest.raises(byov.ByovError, match="elsewhere"):
        byov.load_run(runs_dir="elsewhere")


def test_training_is_stopped_and_goes_on_to_the_same_model(project, tiny):
    counted = Counted()
    with pytest.raises(byov.Interrupted):
        byov.train_run("again", progress=counted, stop=lambda: counted.done.get("training") == 1, **tiny)
    run = byov.train_run("again", resume=True, progress=counted)
    assert counted.done["embedding"] == 8
    for name in ("model.safetensors", "model-last.safetensors"):
        assert (run.folder / name).read_bytes() == (project / "runs/demo-paper" / name).read_bytes()


def test_other_work_is_stopped_and_what_is_finished_is_kept(project):
    counted = Counted()
    how = {"encoder": "random/tiny", "features_dir": "new", "ratios": (0.3,), "batch_size": 4, "decoders": 1}
    with pytest.raises(byov.Interrupted):
        byov.extract_features("demo", progress=counted, stop=lambda: counted.done.get("videos", 0) == 2, **how)
    assert len(list(project.glob("new/demo/*/*/*.h5"))) == 2
    assert not list(project.glob("new/**/*.partial"))
    assert byov.extract_features("demo", **how).cached == 2
    run = byov.load_run()
    for work in (run.evaluate, lambda **how: run.embed("datasets/demo/test/exo/pour_exo_015.mp4", **how)):
        with pytest.raises(byov.Interrupted):
            work(stop=lambda: True)


def test_nothing_is_printed(tiny, capfd):
    byov.extract_features("demo", encoder="random/tiny", features_dir="new", ratios=(0.3,))
    byov.train_run("quiet", **tiny).evaluate("tau")
    assert capfd.readouterr() == ("", "")
