"""Tests that a resumed run has the same files as an uninterrupted one, wherever it was stopped."""

import json
import os
import shutil
import signal

import numpy as np
import pytest
from tests.factories import write_features
from tests.train.runs.run_files import EMBED, RESUME, START, checkpoints, contents, edited, records

from byov.cache.hdf5 import read_array

pytestmark = pytest.mark.usefixtures("cache")


@pytest.mark.slow
@pytest.mark.parametrize(
    "point",
    [
        ("config.json", 1),  # before any other file
        ("README.md", 1),
        ("metrics.jsonl", 1),  # record of the untrained model
        ("metrics.jsonl", 3),
        ("step-", 1),
        ("step-", 3),
        ("model.safetensors", 1),
        ("model-last.safetensors", 1),
        ("embeddings/exo", 1),
        ("embeddings-untrained-trimmed/exo", 2),
    ],
)
def test_killed_before_any_file_it_ends_the_same(
    start_train, byov_train, tiny, reference, run, point
):
    command = start_train(*START, *tiny, pause_before=point)
    assert command.paused()
    command.kill()
    again = byov_train(*RESUME) if (run / "config.json").exists() else byov_train(*START, *tiny)
    assert again.code == 0, again
    assert contents(run) == contents(reference)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_writes_a_checkpoint_after_the_current_step(
    start_train, byov_train, tiny, reference, run, number, code
):
    command = start_train(
        *START, *tiny, "--checkpoint-every", 100, pause_before=("metrics.jsonl", 1)
    )
    assert command.paused()
    command.send(number)
    ran = command.finish()
    assert (ran.code, ran.out) == (code, "")
    assert "resume with byov-train --run toy --resume" in ran.err
    # In the middle of an epoch.
    assert [path.name for path in checkpoints(run)] == ["step-000000001.safetensors"]
    again = byov_train(*RESUME)
    assert again.code == 0
    assert "resuming from step 1 of 12" in again.err
    assert contents(run) == contents(reference)


@pytest.mark.parametrize("point", [("model-last.safetensors", 1), ("embeddings/exo", 2)])
def test_a_signal_after_the_last_step_is_obeyed(
    start_train, byov_train, tiny, reference, run, point
):
    command = start_train(*START, *tiny, pause_before=point)
    assert command.paused()
    command.send(signal.SIGINT)
    assert command.finish().code == 130
    assert len(list(run.rglob("embeddings*/*/*.h5"))) < 40
    assert byov_train(*RESUME).code == 0
    assert contents(run) == contents(reference)


def test_the_newest_run_is_resumed_by_default(byov_train, finished, reference, tmp_path):
    shutil.copytree(finished, tmp_path / "runs" / "older")
    os.utime(tmp_path / "runs" / "older" / "config.json", (1, 1))
    ran = byov_train("--resume", "--json")
    assert ran.json["run"] == "toy"
    assert "resuming from step 12 of 12" in ran.err
    assert contents(finished) == contents(reference)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("--lr", "0.5"), "lr 0.001, not 0.5"),
        (("--epochs", "2", "--seed", "3"), "epochs 3, not 2; seed 0, not 3"),
        (("--ratio", "1.0"), "ratio 0.3, not 1.0"),
        (("--dataset", "other"), "dataset 'toy', not 'other'"),
        (
            ("--encoder", "openai/clip-vit-base-patch16"),
            "encoder 'random/tiny', not 'openai/clip-vit-base-patch16'",
        ),
        (("--method", "timeline"), "method 'byov', not 'timeline'"),
        (("--sigma", "0.1"), "--sigma"),
    ],
)
@pytest.mark.usefixtures("finished")
def test_settings_must_be_those_of_the_run(refused, given, message):
    assert message in refused(*RESUME, *given)
    assert message in refused(*EMBED, *given)


@pytest.mark.usefixtures("finished")
def test_the_settings_of_the_run_may_be_repeated(byov_train, tiny):
    same = ("--dataset", "toy", "--ratio", "0.3", "--recipe", "paper", "--seed", "0")
    for encoder in ("random/tiny", "random--tiny"):
        assert byov_train(*RESUME, *tiny, *same, "--encoder", encoder).code == 0


@pytest.mark.parametrize("interrupted", [False, True])
def test_a_run_extended_to_more_epochs_is_one_of_that_many(
    start_train, byov_train, tiny, reference, run, interrupted
):
    assert byov_train(*START, *tiny, "--epochs", 1).code == 0
    command = start_train(*RESUME, "--epochs", 3, pause_before=("metrics.jsonl", 2))
    assert command.paused()
    assert not (run / "model-last.safetensors").exists()
    if interrupted:
        command.kill()
        assert byov_train(*RESUME).code == 0
    else:
        assert command.finish().code == 0
    assert contents(run) == contents(reference)


@pytest.mark.parametrize(
    ("options", "reason"),
    [(("--schedule", "cosine"), "cosine schedule"), (("--validate-every", 2), "--validate-every")],
)
def test_a_run_that_more_epochs_would_change_is_not_extended(
    byov_train, refused, tiny, run, options, reason
):
    assert byov_train(*START, *tiny, *options).code == 0
    before = contents(run)
    assert reason in refused(*RESUME, "--epochs", 4)
    assert contents(run) == before


def test_steps_are_rounded_up_to_epochs(byov_train, refused, tiny, reference, run):
    at = tiny.index("--epochs")
    assert "pass only one of them" in refused(*START, *tiny, "--steps", 9)
    assert byov_train(*START, *tiny[:at], *tiny[at + 2 :], "--steps", 9).code == 0
    settings = json.loads((run / "config.json").read_text())["settings"]["optimizer"]
    assert (settings["steps"], settings["epochs"]) == (9, 3)
    assert records(run) == records(reference)
    assert "steps 9, not 10" in refused(*RESUME, "--steps", 10)
    assert "epochs 3, not 2" in refused(*RESUME, "--epochs", 2)
    shutil.rmtree(run / "embeddings")
    assert byov_train(*RESUME, "--steps", 9).code == 0
    assert (run / "embeddings").exists()
    assert byov_train(*RESUME, "--epochs", 4).code == 0
    assert records(run)[:4] == records(reference)


@pytest.mark.usefixtures("finished")
def test_features_of_another_encoder_are_refused(refused, cache):
    for path in (cache / "random--tiny").rglob("*.h5"):
        merged = {ratio: read_array(path, f"merged/{ratio}") for ratio in (0.3, 1.0)}
        write_features(
            path, merged, encoder="random/tiny", encoder_revision="0", encoder_sha256="cd" * 32
        )
    for arguments in (RESUME, EMBED):
        assert "encoder of toy changed since toy was started" in refused(*arguments)


@pytest.mark.parametrize("change", ["video", "order", "labels", "features"])
def test_other_train_or_val_videos_are_refused(refused, finished, reference, cache, change):
    """Other videos would change the batches or the model selection."""
    with edited(cache / "manifest.json") as manifest:
        videos = manifest["videos"]
        if change == "video":
            videos.pop(0)
        elif change == "order":
            videos[0], videos[1] = videos[1], videos[0]
        elif change == "labels":
            next(video for video in videos if video["split"] == "val")["labels"][0] = 2
        else:
            path = cache / "random--tiny" / "ego" / "train_ego_0.h5"
            features = np.ones((videos[0]["frames"], 16), np.float16)
            write_features(
                path, {0.3: features, 1.0: features}, encoder="random/tiny", encoder_revision="0"
            )
    for arguments in (RESUME,) if change in ("order", "labels") else (RESUME, EMBED):
        assert "train and val videos of toy changed since toy was started" in refused(*arguments)
    assert contents(finished) == contents(reference)


def test_a_finished_run_without_checkpoints_is_not_trained_again(refused, finished):
    shutil.rmtree(finished / "checkpoint")
    assert "--embed-only" in refused(*RESUME)


def test_a_missing_best_model_is_noticed(refused, finished):
    (finished / "model.safetensors").unlink()
    assert "is missing" in refused(*RESUME)


@pytest.mark.parametrize("kills", [False, True])
def test_a_file_size_limit_is_one_line_or_kills(byov_train, tiny, reference, run, kills):
    """The limit admits the model but not the checkpoints.

    Without a signal handler, the kernel kills the process.
    """
    largest = (reference / "model.safetensors").stat().st_size * 2
    ran = byov_train(*START, *tiny, largest_file=largest, largest_file_kills=kills)
    if kills:
        assert ran.code == -signal.SIGXFSZ
        assert {path.suffix for path in (run / "checkpoint").iterdir()} == {".partial", ".lock"}
    else:
        assert (ran.code, ran.out) == (1, "")
        assert "step-000000004.safetensors: File too large" in ran.err.splitlines()[-1]
        assert list((run / "checkpoint").iterdir()) == []
    assert byov_train(*RESUME).code == 0
    assert contents(run) == contents(reference)
    assert [path for path in run.rglob("*") if ".partial" in path.name] == []
