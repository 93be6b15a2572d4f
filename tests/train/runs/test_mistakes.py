"""Caches, datasets and options that cannot be trained on or with: one line that says what to do."""

import json
import shutil

import numpy as np
import pytest
import torch
from tests.train.runs.run_files import edited

from byov.train.methods import METHODS


@pytest.fixture
def damage(edit_h5):
    """Put a value that is no number into the features of a video, with digests that are right."""

    def put(path, row, value):
        with edit_h5(path, values=True) as file:
            file["merged/0.3"][row, 3] = value

    return put


def test_no_cache(refused, tmp_path):
    assert "no feature cache here; make one with byov-extract" in refused()
    (tmp_path / "features").mkdir()
    assert "no features; there is nothing" in refused()
    assert not (tmp_path / "runs").exists()


def test_what_the_cache_does_not_have_is_listed_against_what_it_has(refused, cache, tmp_path):
    assert "holds no dataset 'pour_milk'; it holds toy" in refused("--dataset", "pour_milk")
    assert "no encoder 'openai/clip'; there is random--tiny" in refused("--encoder", "openai/clip")
    message = refused("--ratio", "0.7")
    assert "no STM ratio 0.7; it has 0.3, 1.0" in message
    assert "byov-extract as before, with --ratios 0.7" in message
    assert "--ratio nan: a ratio must be above 0 and at most 1" in refused("--ratio", "nan")
    assert cache.is_dir()
    assert not (tmp_path / "runs").exists()


def test_what_is_ambiguous_is_asked_for(refused, byov_train, write_cache, tiny):
    write_cache(dataset="first")
    write_cache(dataset="second")
    assert "which dataset? --dataset first | second" in refused()
    write_cache(dataset="second", encoder="random--other")
    assert "which encoder? --encoder random--other | random--tiny" in refused("--dataset", "second")
    ran = byov_train("--dataset", "second", "--encoder", "random/tiny", *tiny, "--epochs", 1)
    assert ran.code == 0, ran


@pytest.mark.parametrize("recipe", ["paper", "cycle"])
def test_a_train_split_of_one_view_says_which_recipe_needs_both(refused, write_cache, tmp_path, recipe):
    write_cache(train=(3, 0))
    message = refused("--recipe", recipe)
    assert "train split has no exo video" in message
    assert f"the {recipe} recipe pairs ego with exo" in message
    assert "official" in message
    assert not (tmp_path / "runs").exists()


def test_the_official_recipe_trains_on_one_view(byov_train, write_cache, tiny):
    write_cache(train=(0, 2), val=(0, 1), test=(0, 0))
    ran = byov_train("--recipe", "official", *tiny)
    assert ran.code == 0, ran


@pytest.mark.parametrize(
    ("recipe", "told"), [("paper", "no ego video"), ("official", "no videos; there is nothing to learn from")]
)
def test_no_videos_to_train_on(refused, write_cache, recipe, told):
    write_cache(train=(0, 0))
    assert f"the train split has {told}" in refused("--recipe", recipe)


@pytest.mark.parametrize("train", [(1, 0), (0, 1), (0, 0)])
def test_the_timeline_needs_two_videos(refused, write_cache, tmp_path, train):
    write_cache(train=train)
    told = "1 video" if sum(train) else "no videos"
    assert refused("--method", "timeline") == f"the train split has {told}; videos are compared with each other"
    assert not (tmp_path / "runs").exists()


def test_the_timeline_trains_on_one_view_and_on_two_videos(byov_train, write_cache):
    write_cache(train=(2, 0), val=(1, 0), test=(0, 0))
    sizes = ("--latent", "32", "--depth", "1", "--heads", "4", "--frames", "8")
    ran = byov_train("--method", "timeline", "--epochs", 2, *sizes)
    assert ran.code == 0, ran


@pytest.mark.usefixtures("cache")
def test_an_unknown_method_lists_those_there_are(refused, tmp_path):
    for name in ("best", "", "Byov", "paper", "../byov"):
        assert refused("--method", name) == f"method {name!r}; choose one of {', '.join(METHODS)}"
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--sigma", "0.1"), "--sigma is a setting of timeline, and the method is byov"),
        (("--recipe", "cycle", "--clips", "4"), "--clips is a setting of timeline, and the method is byov"),
        (
            ("--method", "timeline", "--decoder-depth", "2"),
            "--decoder-depth is a setting of byov, and the method is timeline",
        ),
        (("--method", "timeline", "--recipe", "cycle"), "--recipe is a setting of byov, and the method is timeline"),
        (("--method", "timeline", "--no-causal"), "--causal is a setting of byov, and the method is timeline"),
        (("--method", "timeline", "--clips", "1"), "clips is 1; it must be at least 2"),
        (("--method", "timeline", "--sigma", "0"), "sigma is 0.0; it must be above 0"),
        (("--method", "timeline", "--temperature", "nan"), "temperature is nan"),
        (("--method", "timeline", "--feature-dropout", "1"), "feature_dropout is 1.0; it must be below 1"),
        (("--method", "timeline", "--whole", "2"), "whole is 2.0; it must be at most 1"),
    ],
)
@pytest.mark.usefixtures("cache")
def test_a_setting_of_another_method_says_whose_it_is(refused, tmp_path, options, told):
    assert refused(*options).startswith(told)
    assert not (tmp_path / "runs").exists()


def test_without_val_videos_the_last_model_is_kept_and_that_is_said(byov_train, write_cache, tiny, run):
    write_cache(val=(0, 0), test=(0, 0))
    ran = byov_train("--run", "toy", *tiny)
    assert ran.code == 0, ran
    assert "no val videos: the last model is kept" in ran.err
    assert (run / "model.safetensors").read_bytes() == (run / "model-last.safetensors").read_bytes()
    assert json.loads((run / "config.json").read_text())["training"]["validation"] == {}
    assert "No scores" in (run / "README.md").read_text()


def test_without_labels_the_model_is_chosen_by_tau_and_that_is_said(byov_train, write_cache, tiny, run):
    write_cache(labels=False, test=(0, 0))
    ran = byov_train("--run", "toy", *tiny)
    assert ran.code == 0, ran
    assert "chosen by tau instead" in ran.err
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    validation = json.loads((run / "config.json").read_text())["training"]["validation"]
    assert validation == {"tau": max(record["tau"] for record in records[1:])}


def test_videos_that_are_not_in_the_cache_are_counted_and_left_out(byov_train, cache, tiny, run):
    (cache / "random--tiny" / "ego" / "train_ego_0.h5").unlink()
    ran = byov_train("--run", "toy", *tiny, "--epochs", 1)
    assert ran.code == 0, ran
    assert "1 video of toy not in the cache" in ran.err
    assert not (run / "embeddings" / "ego" / "train_ego_0.h5").exists()


def test_an_empty_encoder_folder_says_what_to_run(refused, cache):
    shutil.rmtree(cache / "random--tiny")
    (cache / "random--tiny").mkdir()
    assert "none of the manifest's videos is in it; run byov-extract --dataset toy" in refused()


@pytest.mark.parametrize("content", [b"", b"not HDF5", None])
def test_a_cache_file_that_fails_to_open_is_named(refused, cache, tiny, content):
    path = cache / "random--tiny" / "exo" / "val_exo_0.h5"
    path.write_bytes(path.read_bytes()[:3000] if content is None else content)
    message = refused(*tiny)
    assert str(path) in message
    assert "byov-extract" in message


@pytest.mark.parametrize("options", [(), ("--preload-gib", "0")], ids=["preloaded", "lazy"])
@pytest.mark.parametrize(("video", "value"), [("train_ego_1", np.nan), ("val_exo_0", np.inf), ("test_ego_0", np.nan)])
def test_features_that_are_not_finite_name_the_video(
    refused, byov_train, cache, run, tiny, video, value, options, damage
):
    path = cache / "random--tiny" / video.split("_")[1] / f"{video}.h5"
    sound = path.read_bytes()
    damage(path, 7, value)
    message = refused("--run", "toy", *tiny, *options)
    assert str(path) in message
    assert "not finite at frame 7; extract it again" in message
    path.write_bytes(sound)
    if not video.startswith("test"):  # a run that was begun with other features is not to be continued with these
        shutil.rmtree(run, ignore_errors=True)
    begun = (run / "config.json").exists()
    assert byov_train("--run", "toy", *(["--resume"] if begun else tiny)).code == 0


def test_mixed_encoders_are_told_apart(refused, cache, write_features):
    write_features(cache / "random--tiny" / "ego" / "test_ego_0.h5", np.ones((20, 16), np.float16), preprocessing="x")
    with edited(cache / "manifest.json") as manifest:
        for video in manifest["videos"]:
            video |= {"frames": 20, "labels": [0] * 20} if video["id"] == "test_ego_0" else {}
    assert "preprocessing 'x'" in refused()


def test_labels_that_do_not_fit_the_frames_name_the_video(refused, cache):
    with edited(cache / "manifest.json") as manifest:
        manifest["videos"][2]["labels"].pop()
    assert "train_exo_0: " in refused()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--mask-self", "1.5"), "mask_self is 1.5; it must be at most 1"),
        (("--mask-cross", "-0.1"), "mask_cross is -0.1"),
        (("--mask-cross", "nan"), "mask_cross is nan"),
        (("--latent", "0"), "latent is 0; it must be at least 1"),
        (("--latent", "30"), "16 heads do not divide a latent of 30"),
        (("--heads", "7"), "7 heads do not divide a latent of 256"),
        (("--heads", "-1"), "heads is -1"),
        (("--depth", "0"), "depth is 0"),
        (("--decoder-depth", "0"), "decoder_depth is 0"),
        (("--frames", "1"), "frames is 1; it must be at least 2"),
        (("--epochs", "0"), "epochs is 0"),
        (("--batch-size", "0"), "batch_size is 0"),
        (("--lr", "0"), "lr is 0.0; it must be above 0"),
        (("--lr", "inf"), "lr is inf"),
        (("--weight-decay", "-1"), "weight_decay is -1"),
        (("--warmup", "-1"), "warmup is -1"),
        (("--clip-grad", "0"), "clip_grad is 0.0; it must be above 0"),
        (("--attention-window", "0"), "attention_window is 0"),
        (("--cycle", "-1"), "cycle is -1"),
        (("--seed", "-1"), "seed is -1"),
        (("--seed", "99999999999999999999"), "seed is 99999999999999999999"),
        (("--validate-every", "0"), "validate_every is 0"),
        (("--no-self", "--no-cross"), "nothing to learn from"),
        (("--crop", "0.5"), "--crop 0.5: expected LOW,HIGH"),
        (("--crop", "a,b"), "--crop a,b: expected LOW,HIGH"),
        (("--crop", "0.1,0.2,0.3"), "expected LOW,HIGH"),
        (("--crop", "\x1b[2J"), "--crop \\x1b[2J: expected LOW,HIGH"),
        (("--crop", "0,1"), "crop is (0.0, 1.0); it must be LOW,HIGH"),
        (("--crop", "0.9,0.5"), "crop is (0.9, 0.5)"),
        (("--crop", "0.5,1.5"), "crop is (0.5, 1.5)"),
        (("--crop", "nan,1"), "crop.0 is nan; it must be a finite number"),
    ],
)
@pytest.mark.usefixtures("cache")
def test_values_out_of_range_are_refused_before_anything_is_written(refused, tmp_path, options, told):
    assert told in refused(*options)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    "options",
    [
        ("--recipe", "best"),
        ("--select", "f1"),
        ("--checkpoint-every", "0"),
        ("--preload-gib", "-1"),
        ("--preload-gib", "inf"),
        ("--preload-gib", "nan"),
        ("--epochs", "1.5"),
    ],
)
@pytest.mark.usefixtures("cache")
def test_words_and_numbers_that_options_do_not_take_are_bad_usage(byov_train, tmp_path, options):
    ran = byov_train(*options)
    assert (ran.code, ran.out) == (2, "")
    assert options[0] in ran.err
    assert "Traceback" not in ran.err
    assert not (tmp_path / "runs").exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has CUDA")
@pytest.mark.usefixtures("cache")
def test_a_device_that_is_not_there_is_refused_before_anything_is_written(refused, tmp_path):
    assert "--device cuda: PyTorch finds none here" in refused("--device", "cuda")
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    "options", [("--lr", "1e30"), ("--lr", "1e38", "--batch-size", "4"), ("--lr", "1e39", "--batch-size", "4")]
)
@pytest.mark.usefixtures("cache")
def test_a_loss_that_is_no_longer_a_number_stops_the_run_and_says_where(refused, tiny, run, options):
    from safetensors.torch import load_file

    message = refused("--run", "toy", *tiny, *options, code=1)
    assert "at step " in message
    assert "Start another run with a lower --lr" in message
    assert not (run / "embeddings").exists()
    checkpoints = list(run.glob("checkpoint/*.safetensors"))
    assert ("the last checkpoint is kept" in message) == bool(checkpoints)
    for path in (*checkpoints, *run.glob("*.safetensors")):
        assert all(tensor.isfinite().all() for tensor in load_file(path).values()), path
    assert "at step " in refused("--run", "toy", "--resume", code=1)
