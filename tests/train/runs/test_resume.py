"""A run that was stopped, at whatever moment and however hard, ends as one that was never stopped."""

import os
import shutil
import signal

import numpy as np
import pytest
from tests.train.runs.run_files import checkpoints, edited, truncate

from byov.cache.hdf5 import read_array

START = ("--ratio", 0.3, "--run", "toy")
RESUME = ("--run", "toy", "--resume")
KILLS = 20

pytestmark = pytest.mark.usefixtures("cache")


@pytest.mark.slow
@pytest.mark.parametrize(
    "point",
    [
        ("config.json", 1),  # before anything else
        ("README.md", 1),
        ("metrics.jsonl", 1),  # the record of the untrained model
        ("metrics.jsonl", 3),
        ("step-", 1),
        ("step-", 3),
        ("model.safetensors", 1),
        ("model-last.safetensors", 1),
        ("embeddings/exo", 1),
        ("embeddings-untrained-trimmed/exo", 2),
    ],
)
def test_killed_before_any_file_has_its_name_it_goes_on_to_the_same_end(
    start_train, byov_train, tiny, reference, contents, run, point
):
    command = start_train(*START, *tiny, pause_before=point)
    assert command.paused()
    command.kill()
    again = byov_train(*RESUME) if (run / "config.json").exists() else byov_train(*START, *tiny)
    assert again.code == 0, again
    assert contents(run) == contents(reference)


@pytest.mark.slow
def test_killed_at_random_moments_again_and_again_it_goes_on_to_the_same_end(
    start_train, byov_train, tiny_of_each, contents, run, tmp_path
):
    """Of every method. After a kill it goes on for a few files: their names are what happens in a run."""
    long = (*tiny_of_each, "--epochs", KILLS)
    assert byov_train(*START, *long, "--runs-dir", tmp_path / "whole").code == 0
    random, unfinished = np.random.default_rng(0), 0
    arguments = (*START, *long)
    for _ in range(KILLS):
        command = start_train(
            *arguments, "--preload-gib", random.choice([0, 1]), pause_before=("", random.integers(1, 8).item())
        )
        unfinished += command.paused() and not (run / "model-last.safetensors").exists()
        command.kill()
        if (run / "config.json").exists():
            arguments = (*RESUME, "--checkpoint-every", random.integers(1, 3))
    assert unfinished > KILLS // 2
    ran = byov_train(*arguments)
    assert ran.code == 0, ran
    assert contents(run) == contents(tmp_path / "whole" / "toy")


@pytest.mark.slow
@pytest.mark.parametrize("point", [("metrics.jsonl", 2), ("step-", 2), ("model-last.safetensors", 1)])
def test_a_run_of_every_method_that_was_killed_goes_on_to_the_same_end(
    start_train, byov_train, tiny_of_each, reference_of_each, contents, run, point
):
    command = start_train(*START, *tiny_of_each, pause_before=point)
    assert command.paused()
    command.kill()
    again = byov_train(*RESUME)
    assert again.code == 0, again
    assert contents(run) == contents(reference_of_each)


def test_killed_half_way_through_a_checkpoint_it_goes_on_to_the_same_end(byov_train, tiny, reference, contents, run):
    """The kernel kills a process that writes a larger file than it may; the model fits, its checkpoints do not."""
    largest = (reference / "model.safetensors").stat().st_size * 2
    killed = byov_train(*START, *tiny, largest_file=largest, largest_file_kills=True)
    assert killed.code == -signal.SIGXFSZ
    (half,) = (run / "checkpoint").iterdir()
    assert half.name.endswith(".partial")
    assert 0 < half.stat().st_size <= largest
    assert byov_train(*RESUME).code == 0
    assert contents(run) == contents(reference)
    assert list(run.rglob("*.partial")) == []


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_leaves_a_checkpoint_after_the_step_at_hand(
    start_train, byov_train, tiny, reference, contents, run, number, code
):
    command = start_train(*START, *tiny, "--checkpoint-every", 100, pause_before=("metrics.jsonl", 1))
    assert command.paused()
    command.send(number)
    ran = command.finish()
    assert (ran.code, ran.out) == (code, "")
    assert ran.err.splitlines()[1:] == ["stopped; resume with byov-train --run toy --resume", "interrupted"]
    assert [path.name for path in checkpoints(run)] == ["step-000000001.safetensors"]  # in the middle of an epoch
    again = byov_train(*RESUME)
    assert again.code == 0
    assert "resuming from step 1 of 12" in again.err
    assert contents(run) == contents(reference)


def test_a_second_signal_ends_it_at_once(start_train, byov_train, tiny, reference, contents, run):
    command = start_train(*START, *tiny, pause_before=("metrics.jsonl", 1))
    assert command.paused()
    command.send(signal.SIGINT)
    command.send(signal.SIGTERM)
    ran = command.finish()
    assert ran.code == 143
    assert ran.err.splitlines()[-1] == "interrupted"
    assert "Traceback" not in ran.err
    assert not (run / "checkpoint").exists()
    assert list(run.rglob("*.partial")) == []
    assert byov_train(*RESUME).code == 0
    assert contents(run) == contents(reference)


def test_a_signal_while_the_last_model_is_written_is_not_forgotten(start_train, tiny, run):
    command = start_train(*START, *tiny, pause_before=("model-last.safetensors", 1))
    assert command.paused()
    command.send(signal.SIGINT)
    assert command.finish().code == 130
    assert not (run / "embeddings").exists()


def test_a_signal_while_it_embeds_ends_it_and_leaves_nothing_half_written(
    start_train, byov_train, tiny, reference, contents, run
):
    command = start_train(*START, *tiny, pause_before=("embeddings/exo", 2))
    assert command.paused()
    command.send(signal.SIGINT)
    ran = command.finish()
    assert ran.code == 130
    assert ran.err.splitlines()[-1] == "interrupted"
    assert list(run.rglob("*.partial")) == []
    assert byov_train(*RESUME).code == 0
    assert contents(run) == contents(reference)


def test_a_finished_run_resumes_to_itself(byov_train, finished, reference, contents):
    ran = byov_train(*RESUME)
    assert ran.code == 0
    assert "resuming from step 12 of 12" in ran.err
    assert contents(finished) == contents(reference)


def test_the_newest_run_is_the_one_to_go_on_with(byov_train, finished, tmp_path):
    shutil.copytree(finished, tmp_path / "runs" / "older")
    os.utime(tmp_path / "runs" / "older" / "config.json", (1, 1))
    ran = byov_train("--resume", "--json")
    assert "run: toy, the newest" in ran.err
    assert ran.json["run"] == "toy"


def test_a_truncated_checkpoint_is_passed_over_for_the_one_before(byov_train, finished, reference, contents):
    older, newer = checkpoints(finished)
    truncate(newer)
    ran = byov_train(*RESUME)
    assert ran.code == 0
    assert f"{newer.name}" in ran.err
    assert "falling back to the one before" in ran.err
    assert "resuming from step 8 of 12" in ran.err
    assert contents(finished) == contents(reference)
    assert newer.read_bytes() == (reference / "checkpoint" / newer.name).read_bytes()
    assert older.read_bytes() == (reference / "checkpoint" / older.name).read_bytes()


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (("--lr", "0.5"), "lr 0.001, not 0.5"),
        (("--epochs", "4", "--seed", "3"), "epochs 3, not 4; seed 0, not 3"),
        (("--recipe", "cycle"), "recipe 'paper', not 'cycle'"),
        (("--crop", "0.5,1"), "crop (1.0, 1.0), not (0.5, 1.0)"),
        (("--ratio", "1.0"), "ratio 0.3, not 1.0"),
        (("--dataset", "other"), "dataset 'toy', not 'other'"),
        (("--encoder", "openai/clip-vit-base-patch16"), "encoder 'random/tiny', not 'openai/clip-vit-base-patch16'"),
        (("--heads", "5"), "5 heads do not divide a latent of 32"),
    ],
)
@pytest.mark.usefixtures("finished")
def test_other_settings_than_the_runs_are_shown(refused, given, told):
    assert told in refused(*RESUME, *given)
    assert told in refused("--run", "toy", "--embed-only", *given)


@pytest.mark.parametrize("how", ["--resume", "--embed-only"])
def test_a_run_of_one_method_is_not_gone_on_with_as_another(refused, finished, reference, contents, how):
    for other in ("timeline", "best"):
        told = f"toy is a run of the method byov, not of {other}"
        assert refused("--run", "toy", how, "--method", other) == told
    assert refused("--run", "toy", how, "--sigma", 0.1) == "--sigma is a setting of timeline, and the method is byov"
    assert contents(finished) == contents(reference)


@pytest.mark.usefixtures("finished")
def test_the_runs_own_settings_may_be_given_again(byov_train, tiny):
    same = ("--dataset", "toy", "--method", "byov", "--ratio", "0.3", "--recipe", "paper", "--seed", "0")
    for encoder in ("random/tiny", "random--tiny"):
        assert byov_train(*RESUME, *tiny, *same, "--encoder", encoder).code == 0


@pytest.mark.usefixtures("finished")
def test_other_features_than_the_runs_are_refused(refused, cache, write_features):
    for path in (cache / "random--tiny").rglob("*.h5"):
        write_features(path, np.ones((20, 16), np.float16), encoder_sha256="cd" * 32)
    with edited(cache / "manifest.json") as manifest:
        for video in manifest["videos"]:
            video |= {"frames": 20, "labels": [0] * 20}
    for arguments in (RESUME, ("--run", "toy", "--embed-only")):
        assert f"encoder_sha256 {'ab' * 32!r}, this is {'cd' * 32!r}" in refused(*arguments)


@pytest.mark.parametrize("change", ["video", "order", "labels"])
def test_other_training_or_val_videos_than_the_runs_are_refused(refused, finished, reference, contents, cache, change):
    """They would give other batches, or another choice of the model."""
    with edited(cache / "manifest.json") as manifest:
        videos = manifest["videos"]
        if change == "video":
            videos.pop(0)
        elif change == "order":
            videos[0], videos[1] = videos[1], videos[0]
        else:
            next(video for video in videos if video["split"] == "val")["labels"][0] = 2
    assert "videos" in refused(*RESUME)
    assert contents(finished) == contents(reference)


@pytest.mark.usefixtures("finished")
def test_features_that_were_extracted_again_with_other_values_are_refused(refused, cache, write_features):
    path = cache / "random--tiny" / "ego" / "train_ego_0.h5"
    frames = len(read_array(path, "pts_seconds"))
    write_features(path, np.ones((frames, 16), np.float16))
    assert "other train or val videos, features or labels" in refused(*RESUME)


def test_a_finished_run_without_checkpoints_is_not_trained_again(refused, finished):
    shutil.rmtree(finished / "checkpoint")
    assert "--embed-only" in refused(*RESUME)


def test_a_best_model_that_is_gone_is_missed(refused, finished):
    (finished / "model.safetensors").unlink()
    assert "the best model so far is gone" in refused(*RESUME)
