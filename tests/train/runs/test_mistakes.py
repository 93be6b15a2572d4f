"""Caches, names and options that cannot be used: one line that says what to do, and nothing is written."""

import json
import shutil

import numpy as np
import pytest
from safetensors.torch import load_file
from tests import factories
from tests.train.runs.run_files import EMBED, RESUME, START, contents, records

from byov.cache.hdf5 import read_array
from byov.errors import ByovError
from byov.train.run import train_run


@pytest.fixture
def error_of(tmp_path):
    """error_of(**options): the message of train_run, which must not write anything."""

    def train(run=None, **options):
        with pytest.raises(ByovError) as raised:
            train_run(run, features_dir=tmp_path / "features", runs_dir=tmp_path / "runs", **options)
        assert not (tmp_path / "runs").exists()
        assert "\n" not in str(raised.value)
        return str(raised.value)

    return train


def test_no_cache(error_of, tmp_path):
    assert "byov-extract" in error_of()
    (tmp_path / "features").mkdir()
    assert "no features" in error_of()


@pytest.mark.parametrize(
    ("options", "facts"),
    [
        ({"dataset": "pour_milk"}, ("pour_milk", "toy")),
        ({"encoder": "openai/clip"}, ("random--tiny", "byov-extract --dataset toy --encoder openai/clip")),
        ({"ratio": 0.7}, ("0.7", "0.3, 1.0", "--ratios 0.7")),
        ({"method": "best"}, ("best", "byov, timeline")),
        ({"latnt": 3}, ("latnt", "latent")),
        ({"sigma": 0.1}, ("--sigma", "timeline")),
        ({"mask_self": 1.5}, ("mask_self", "1.5")),
    ],
    ids=str,
)
@pytest.mark.usefixtures("cache")
def test_options_that_cannot_be(error_of, options, facts):
    message = error_of(**options)
    for fact in facts:
        assert fact in message


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
        ("--ratio", "30%"),
        ("--ratio", "abc"),
        ("--resume", "--embed-only"),
    ],
)
@pytest.mark.usefixtures("cache")
def test_bad_usage_of_the_command(byov_train, tmp_path, options):
    ran = byov_train(*options)
    assert (ran.code, ran.out) == (2, "")
    assert options[0] in ran.err
    assert "Traceback" not in ran.err
    assert "\x1b[2J" not in ran.err
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("package", ["tensorboard", "wandb"])
@pytest.mark.usefixtures("cache")
def test_a_tracker_that_is_not_installed(refused, tiny, package, tmp_path):
    assert f"pip install {package}" in refused(*tiny, f"--{package}", without=package)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("train", "options", "fact"),
    [
        ((3, 0), {}, "no exo video"),
        ((0, 0), {"recipe": "official"}, "0 videos"),
        ((1, 0), {"method": "timeline"}, "1 video"),
    ],
)
def test_too_few_training_videos(error_of, write_cache, train, options, fact):
    write_cache(train=train)
    assert fact in error_of(**options)


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
    ids=["one video per view", "one view", "short", "one frame", "constant features", "short and constant"],
)
def test_timeline_trains_on_few_short_or_constant_videos(byov_train, tmp_path, run, ego, exo, constant):
    videos = {
        ("train", view, f"{view}{n}"): frames
        for view, own in (("ego", ego), ("exo", exo))
        for n, frames in enumerate(own)
    }
    videos |= {(split, view, f"{split}_{view}"): 9 for split in ("val", "test") for view in ("ego", "exo")}
    factories.write_cache(tmp_path / "features", videos, dataset="toy")
    for path in (tmp_path / "features").rglob("*.h5") if constant else ():
        frames = len(read_array(path, "pts_seconds"))
        factories.write_features(path, {0.3: np.ones((frames, 16), np.float16)})
    ran = byov_train("--run", "toy", "--method", "timeline", "--latent", 16, "--frames", 16, "--epochs", 2)
    assert ran.code == 0, ran
    assert len(records(run)) == 3


@pytest.mark.parametrize(
    "options", [("--recipe", "official"), ("--method", "timeline", "--backbone", "encoder", "--heads", 4)]
)
def test_some_methods_train_on_one_view(byov_train, write_cache, options):
    write_cache(train=(0, 2), val=(0, 1), test=(0, 0))
    sizes = ("--latent", "32", "--depth", "1", "--frames", "8", "--epochs", 1)
    ran = byov_train(*sizes, *options)
    assert ran.code == 0, ran


def test_without_val_videos_the_last_model_is_kept(byov_train, write_cache, tiny, run):
    write_cache(val=(0, 0), test=(0, 0))
    ran = byov_train("--run", "toy", *tiny)
    assert ran.code == 0, ran
    assert "keeping the last model" in ran.err
    assert (run / "model.safetensors").read_bytes() == (run / "model-last.safetensors").read_bytes()
    assert json.loads((run / "config.json").read_text())["training"]["validation"] == {}


def test_without_labels_tau_chooses_the_model(byov_train, write_cache, tiny, run):
    write_cache(labels=False, test=(0, 0))
    ran = byov_train("--run", "toy", *tiny)
    assert ran.code == 0, ran
    assert "choosing the model by tau" in ran.err
    validation = json.loads((run / "config.json").read_text())["training"]["validation"]
    assert validation == {"tau": max(record["tau"] for record in records(run)[1:])}


@pytest.mark.parametrize("content", [b"", b"not HDF5", None])
def test_a_damaged_feature_file_is_named(error_of, cache, content):
    path = cache / "random--tiny" / "exo" / "val_exo_0.h5"
    path.write_bytes(path.read_bytes()[:3000] if content is None else content)
    message = error_of()
    assert str(path) in message
    assert "byov-extract" in message


@pytest.mark.parametrize("name", ["../x", "a/b", "..", ".hidden", "/tmp/x", "x\n", "a" * 300, "my run"])
@pytest.mark.usefixtures("cache")
def test_a_name_outside_the_runs_folder(error_of, name):
    for options in ({}, {"resume": True}, {"embed_only": True}):
        assert "cannot be a file name" in error_of(name, **options)


def test_a_run_that_does_not_exist(refused, finished):
    assert "choose one of toy" in refused("--run", "none", "--resume")
    shutil.rmtree(finished.parent)
    assert "byov-train" in refused("--resume")


def test_a_run_that_exists_is_not_overwritten(refused, finished, tiny, reference):
    assert "--run toy --resume" in refused(*START, *tiny)
    assert contents(finished) == contents(reference)


@pytest.mark.usefixtures("cache")
def test_two_processes_do_not_train_one_run(start_train, start_command, refused, tiny, reference, run):
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


@pytest.mark.parametrize("options", [("--lr", "1e30"), ("--lr", "1e39", "--batch-size", "4")])
@pytest.mark.usefixtures("cache")
def test_a_diverged_run_is_stopped(refused, tiny, run, options):
    message = refused("--run", "toy", *tiny, *options, code=1)
    assert "at step " in message
    assert "--lr" in message
    assert not (run / "embeddings").exists()
    for path in run.rglob("*.safetensors"):
        assert all(tensor.isfinite().all() for tensor in load_file(path).values()), path
    assert "at step " in refused(*RESUME, code=1)
