"""Tests of `byov-train --embed-only`, which rewrites the embeddings of a run."""

import shutil

import numpy as np
import pytest
from safetensors.torch import load_file, save_file
from tests.factories import SOURCE_SHA256, write_features
from tests.train.runs.run_files import EMBED, contents, edited

from byov.cache.embeddings import read_embedding


def test_deleted_embeddings_are_restored(byov_train, finished, reference):
    for folder in finished.glob("embeddings*"):
        shutil.rmtree(folder)
    assert byov_train(*EMBED, "--json").json["embedding_files"] == 40
    assert contents(finished) == contents(reference)


def test_new_videos_are_embedded(byov_train, finished, cache):
    features = np.random.default_rng(5).normal(size=(33, 16)).astype(np.float16)
    path = cache / "random--tiny" / "exo" / "new.h5"
    write_features(path, {0.3: features}, encoder="random/tiny", encoder_revision="0")
    entry = {
        "id": "new",
        "view": "exo",
        "split": "test",
        "frames": 33,
        "fps": 30.0,
        "labels": None,
        "actions": None,
        "source_sha256": SOURCE_SHA256,
    }
    with edited(cache / "manifest.json") as manifest:
        manifest["videos"].append(entry)
    assert byov_train(*EMBED, "--json").json["embedding_files"] == 40 + 8
    assert read_embedding(finished / "embeddings" / "exo" / "new.h5")[0].shape == (33, 32)
    assert len(list((finished / "embeddings-trimmed" / "exo").glob("new@*.h5"))) == 2


@pytest.mark.parametrize("source", ["manifest", "cache"])
def test_embeddings_of_removed_videos_are_deleted(byov_train, finished, cache, source):
    if source == "cache":
        (cache / "random--tiny" / "ego" / "test_ego_0.h5").unlink()
    else:
        with edited(cache / "manifest.json") as manifest:
            manifest["videos"] = [
                video for video in manifest["videos"] if video["id"] != "test_ego_0"
            ]
    (finished / "embeddings" / "ego" / "notes.txt").write_text("not ours")
    assert byov_train(*EMBED).code == 0
    assert list(finished.rglob("test_ego_0*")) == []
    assert len(list(finished.rglob("*.h5"))) == 40 - 8
    assert (finished / "embeddings" / "ego" / "notes.txt").exists()


def test_a_model_that_cannot_be_used_is_named(refused, byov_train, finished, tiny):
    path = finished / "model.safetensors"
    path.unlink()
    assert "--run toy --resume" in refused(*EMBED)
    assert byov_train("--run", "other", *tiny, "--epochs", 1, "--latent", 64).code == 0
    shutil.copy(finished.parent / "other" / "model.safetensors", path)
    assert "another run" in refused(*EMBED)


def test_embeddings_that_are_not_finite_are_refused(refused, finished):
    path = finished / "model.safetensors"
    tensors = load_file(path)
    tensors["encoder.norm.weight"][0] = float("nan")
    save_file(tensors, path)
    with edited(finished / "config.json") as config:
        del config["training"]["files_sha256"]
    assert "not finite" in refused(*EMBED, code=1)
