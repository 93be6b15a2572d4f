"""byov-train --embed-only: a run's embeddings made again."""

import shutil

import numpy as np
import pytest
from tests.train.runs.run_files import edited

from byov.cache.embeddings import read_embedding

EMBED = ("--run", "toy", "--embed-only")


def test_deleted_embeddings_come_back_as_they_were(byov_train, finished, reference, contents):
    for folder in finished.glob("embeddings*"):
        shutil.rmtree(folder)
    ran = byov_train(*EMBED)
    assert ran.code == 0, ran
    assert "32 embedding files" in ran.out
    assert contents(finished) == contents(reference)


def test_it_needs_neither_checkpoints_nor_metrics(byov_train, finished, reference):
    shutil.rmtree(finished / "checkpoint")
    (finished / "metrics.jsonl").unlink()
    (finished / "model-last.safetensors").unlink()
    path = finished / "embeddings" / "ego" / "test_ego_0.h5"
    path.write_bytes(b"damaged")
    assert byov_train(*EMBED).code == 0
    assert path.read_bytes() == (reference / "embeddings" / "ego" / "test_ego_0.h5").read_bytes()


def test_videos_that_joined_the_dataset_are_embedded(byov_train, finished, cache, write_features):
    features = np.random.default_rng(5).normal(size=(33, 16)).astype(np.float16)
    write_features(cache / "random--tiny" / "exo" / "new.h5", features)
    entry = {"id": "new", "view": "exo", "split": "test", "frames": 33, "fps": 30.0, "labels": None, "actions": None}
    with edited(cache / "manifest.json") as manifest:
        manifest["videos"].append(entry)
    before = len(list(finished.rglob("*.h5")))
    assert byov_train(*EMBED, "--json").json["embedding_files"] == before + 6
    assert read_embedding(finished / "embeddings" / "exo" / "new.h5")[0].shape == (33, 32)
    assert len(list((finished / "embeddings-trimmed" / "exo").glob("new@*.h5"))) == 2


@pytest.mark.parametrize("how", ["from the manifest", "from the cache"])
def test_embeddings_of_videos_that_left_are_removed(byov_train, finished, cache, how):
    if how == "from the cache":
        (cache / "random--tiny" / "ego" / "test_ego_0.h5").unlink()
    else:
        with edited(cache / "manifest.json") as manifest:
            manifest["videos"] = [video for video in manifest["videos"] if video["id"] != "test_ego_0"]
    (finished / "embeddings" / "ego" / "notes.txt").write_text("not ours")
    assert byov_train(*EMBED).code == 0
    assert list(finished.rglob("test_ego_0*")) == []
    assert len(list(finished.rglob("*.h5"))) == 32 - 6
    assert (finished / "embeddings" / "ego" / "notes.txt").exists()


def test_without_a_model_it_says_how_to_get_one(refused, finished):
    (finished / "model.safetensors").unlink()
    assert "no model yet; finish the run with byov-train --run toy --resume" in refused(*EMBED)


def test_a_damaged_model_is_named_and_the_embeddings_stay(refused, finished):
    path = finished / "model.safetensors"
    path.write_bytes(path.read_bytes()[:1000])
    assert f"{path}: it does not match the digest in it" in refused(*EMBED)
    assert len(list(finished.rglob("*.h5"))) == 32


def test_the_model_of_another_run_is_refused(refused, byov_train, finished, tiny):
    assert byov_train("--run", "other", *tiny, "--epochs", 1, "--latent", 64).code == 0
    shutil.copy(finished.parent / "other" / "model.safetensors", finished / "model.safetensors")
    assert "a model of another run (the method byov, seed 0" in refused(*EMBED)


def test_a_model_that_gives_no_numbers_is_refused(refused, finished):
    from safetensors.torch import load_file, save_file

    path = finished / "model.safetensors"
    tensors = load_file(path)
    tensors["encoder.norm.weight"][0] = float("nan")
    save_file(tensors, path)
    with edited(finished / "config.json") as config:
        del config["training"]["files_sha256"]  # else it is known not to be the run's
    assert "are not finite" in refused(*EMBED, code=1)


def test_ctrl_c_leaves_nothing_half_written_and_no_word_of_resuming(start_train, finished):
    import signal

    command = start_train(*EMBED, pause_before=("embeddings-trimmed", 1))
    assert command.paused()
    command.send(signal.SIGINT)
    ran = command.finish()
    assert ran.code == 130
    assert "--resume" not in ran.err
    assert ran.err.splitlines()[-1] == "interrupted"
    assert list(finished.rglob("*.partial")) == []
