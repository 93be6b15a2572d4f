"""Tests that unusable caches, names and options lead to one-line errors and that nothing is
written.
"""

import json
import shutil

import numpy as np
import pytest
from tests import factories
from tests.train.runs.run_files import EMBED, RESUME, START, contents, records, train_run

from byov.cache.hdf5 import read_array
from byov.errors import ByovError


@pytest.fixture
def error_of(tmp_path):
    """Return a function that calls `train_run`, which must fail without writing files, and returns
    its error.
    """

    def train(run=None, **options):
        with pytest.raises(ByovError) as raised:
            train_run(
                run, features_dir=tmp_path / "features", runs_dir=tmp_path / "runs", **options
            )
        assert not (tmp_path / "runs").exists()
        assert "\n" not in str(raised.value)
        return str(raised.value)

    return train


def test_features_or_settings_that_cannot_be_used(error_of, tmp_path, write_cache):
    assert "byov-extract" in error_of()
    (tmp_path / "features").mkdir()
    assert "no features" in error_of()
    write_cache(train=(1, 0))
    assert "no exo video" in error_of()
    assert "at least 2" in error_of(method="timeline")
    assert "--sigma" in error_of(sigma=0.1)


@pytest.mark.parametrize(
    "options",
    [
        ("--crop", "a,b"),
        ("--crop", "\x1b[2J"),
        ("--select", "f1"),
        ("--checkpoint-every", "0"),
        ("--preload-gib", "inf"),
        ("--epochs", "1.5"),
        ("--ratio", "nan"),
        ("--resume", "--embed-only"),
    ],
)
@pytest.mark.usefixtures("cache")
def test_bad_usage_of_the_command(refused, tmp_path, options):
    message = refused(*options)
    assert options[0] in message
    assert "\x1b[2J" not in message
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("package", ["tensorboard", "wandb"])
@pytest.mark.usefixtures("cache")
def test_a_tracker_that_is_not_installed(refused, tiny, package, tmp_path):
    assert f"pip install {package}" in refused(*tiny, f"--{package}", without=package)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("ego", "exo", "constant"),
    [
        ((30,), (25,), False),
        ((30, 22), (), False),
        ((3, 2), (1, 3), False),
        ((1, 1), (1,), False),
        ((30, 20), (25, 28), True),
        ((2,), (3,), True),
    ],
    ids=[
        "one video per view",
        "one view",
        "short",
        "one frame",
        "constant features",
        "short and constant",
    ],
)
def test_timeline_trains_on_few_short_or_constant_videos(
    byov_train, tmp_path, run, ego, exo, constant
):
    videos = {
        ("train", view, f"{view}{n}"): frames
        for view, own in (("ego", ego), ("exo", exo))
        for n, frames in enumerate(own)
    }
    videos |= {
        (split, view, f"{split}_{view}"): 9 for split in ("val", "test") for view in ("ego", "exo")
    }
    factories.write_cache(tmp_path / "features", videos, dataset="toy")
    for path in (tmp_path / "features").rglob("*.h5") if constant else ():
        frames = len(read_array(path, "pts_seconds"))
        factories.write_features(path, {0.3: np.ones((frames, 16), np.float16)})
    ran = byov_train(
        "--run", "toy", "--method", "timeline", "--latent", 16, "--frames", 16, "--epochs", 2
    )
    assert ran.code == 0, ran
    assert len(records(run)) == 3


def test_the_official_recipe_trains_on_one_view(byov_train, write_cache, tiny):
    write_cache(train=(0, 2), val=(0, 1), test=(0, 0))
    ran = byov_train(*tiny, "--recipe", "official")
    assert ran.code == 0, ran


@pytest.mark.parametrize(
    ("cache", "metric"), [({"val": (0, 0)}, "last"), ({"labels": False}, "tau")]
)
def test_without_val_videos_or_labels_another_metric_chooses_the_model(
    byov_train, write_cache, tiny, run, cache, metric
):
    write_cache(test=(0, 0), **cache)
    ran = byov_train("--run", "toy", *tiny)
    assert ran.code == 0, ran
    assert f"using --select {metric}" in ran.err
    validation = json.loads((run / "config.json").read_text())["training"]["validation"]
    if metric == "last":
        assert (run / "model.safetensors").read_bytes() == (
            run / "model-last.safetensors"
        ).read_bytes()
    assert validation == (
        {} if metric == "last" else {"tau": max(record["tau"] for record in records(run)[1:])}
    )


@pytest.mark.parametrize(
    "name", ["../x", "a/b", "..", ".hidden", "/tmp/x", "x\n", "a" * 300, "my run"]
)
@pytest.mark.usefixtures("cache")
def test_a_name_outside_the_runs_folder(error_of, name):
    for options in ({}, {"resume": True}, {"embed_only": True}):
        assert "cannot be a file name" in error_of(name, **options)


def test_a_run_that_does_not_exist(refused, finished):
    assert "choose one of toy" in refused("--run", "none", "--resume")
    shutil.rmtree(finished.parent)
    assert "byov-train" in refused("--resume")


def test_a_run_that_exists_is_not_overwritten(byov_train, finished, reference):
    ran = byov_train(*START, "--size", "paper")
    assert "--run toy --resume" in ran.error()
    assert "takes minutes" not in ran.err  # the advice on small models
    assert contents(finished) == contents(reference)


@pytest.mark.usefixtures("cache")
def test_two_processes_do_not_train_one_run(
    start_train, start_command, refused, tiny, reference, run
):
    first = start_train(*START, *tiny, pause_before=("metrics.jsonl", 2))
    assert first.paused()
    for arguments in ((*START, *tiny), RESUME, EMBED):
        assert "another process is training this run" in refused(*arguments)
    folders = ("--features-dir", run.parents[1] / "features", "--runs-dir", run.parent)
    scored = start_command(("byov-eval", "--run", "toy", "--task", "tau", *folders)).finish()
    assert (scored.code, scored.out) == (2, "")
    assert "another process is training this run" in scored.err
    assert "--resume" not in scored.err
    assert first.finish().code == 0
    assert contents(run) == contents(reference)


@pytest.mark.usefixtures("cache")
def test_a_diverged_run_is_one_line(refused, tiny):
    message = refused("--run", "toy", *tiny, "--lr", "1e30", code=1)
    assert "at step " in message
    assert "--lr" in message
