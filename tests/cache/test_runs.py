import hashlib
import json
import os

import pytest

from byov.cache.runs import (
    embedding_path,
    embeddings_folder,
    list_runs,
    model_digest,
    read_config,
    read_run,
    run_folder,
)
from byov.errors import CacheError

TRAINING = {
    "dataset": "demo",
    "encoder": "openai/clip-vit-base-patch16",
    "encoder_folder": "openai--clip-vit-base-patch16",
    "column": "merged/0.3",
    "recipe": "paper",
    "seed": 3,
    "untrained_sha256": "ab" * 32,
    "settings": {"latent": 256},
}


@pytest.fixture
def write_run(tmp_path):
    """write_run(name, **changes): a run whose config says TRAINING; None leaves a key out."""

    def write(name="first", *, age_seconds=0, **changes):
        training = {key: value for key, value in (TRAINING | changes).items() if value is not None}
        path = tmp_path / name / "config.json"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps({"width": 768, "training": training}))
        os.utime(path, (1_000_000 - age_seconds,) * 2)
        return tmp_path

    return write


def test_a_run_is_what_its_config_says(write_run):
    runs = write_run("pour 1")
    record = read_run(runs, "pour 1")
    assert (record.name, record.folder) == ("pour 1", runs / "pour 1")
    assert (record.dataset, record.encoder, record.recipe, record.seed) == (
        "demo",
        "openai/clip-vit-base-patch16",
        "paper",
        3,
    )
    assert (record.encoder_folder, record.column) == ("openai--clip-vit-base-patch16", "merged/0.3")
    assert record.untrained_sha256 == "ab" * 32
    assert record.training == TRAINING


@pytest.mark.parametrize("name", ["../x", "a/b", "..", ".x", "", "/etc", "a\nb", "x" * 201])
def test_a_name_that_leads_out_of_the_folder_is_refused(tmp_path, name):
    for use in (run_folder, read_run):
        with pytest.raises(CacheError, match="cannot be a file name"):
            use(tmp_path, name)


def test_runs_are_listed_with_the_newest_first(write_run, tmp_path):
    write_run("old", age_seconds=100)
    write_run("new", age_seconds=0)
    write_run("middle", age_seconds=50)
    write_run(".hidden")
    (tmp_path / "no config").mkdir()
    (tmp_path / "a file").touch()
    assert list_runs(tmp_path) == ["new", "middle", "old"]


def test_no_folder_holds_no_runs(tmp_path):
    assert list_runs(tmp_path / "none") == []


def test_a_run_that_is_not_there_lists_those_that_are(write_run):
    runs = write_run("first")
    with pytest.raises(CacheError, match="second: no such run; choose one of first"):
        read_run(runs, "second")
    with pytest.raises(CacheError, match="there is none yet; make one with byov-train"):
        read_run(runs / "first", "second")


def test_a_name_as_a_shell_completes_it_is_the_run(write_run):
    runs = write_run("first")
    assert read_run(runs, f"{runs}/first/").name == "first"
    with pytest.raises(CacheError, match="cannot be a file name"):
        read_run(runs, f"{runs}/../first")


@pytest.mark.parametrize("content", ["", "{", "\x00", "[" * 100_000, "[]", "7", "null"])
def test_a_config_that_is_no_json_object_is_named(tmp_path, content):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.json").write_text(content)
    with pytest.raises(CacheError, match=r"run.config\.json: not "):
        read_config(tmp_path / "run")


def test_a_config_that_is_not_text_is_named(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(CacheError, match="not readable"):
        read_config(tmp_path / "run")


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"dataset": None}, "no 'dataset'"),
        ({"untrained_sha256": None}, "no 'untrained_sha256'"),
        ({"seed": "3"}, "seed is '3'"),
        ({"seed": True}, "seed is True"),
        ({"column": 0.3}, "column is 0.3"),
        ({"encoder": ["x"]}, r"encoder is \['x'\]"),
        ({"dataset": "../../etc"}, "dataset '../../etc' cannot be a file name"),
        ({"encoder_folder": "/etc"}, "encoder '/etc' cannot be a file name"),
    ],
)
def test_a_config_of_something_else_is_told(write_run, changes, told):
    runs = write_run(**changes)
    with pytest.raises(CacheError, match=rf"config\.json: not a run of byov-train \({told}"):
        read_run(runs, "first")


@pytest.mark.parametrize("training", [None, [], "text", 7])
def test_a_config_without_training_is_told(tmp_path, training):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.json").write_text(json.dumps({"training": training}))
    with pytest.raises(CacheError, match="it does not say how the model was trained"):
        read_run(tmp_path, "run")


def test_where_embeddings_lie(tmp_path):
    names = {
        (untrained, trimmed): embeddings_folder(tmp_path, untrained=untrained, trimmed=trimmed).name
        for untrained in (False, True)
        for trimmed in (False, True)
    }
    assert names == {
        (False, False): "embeddings",
        (False, True): "embeddings-trimmed",
        (True, False): "embeddings-untrained",
        (True, True): "embeddings-untrained-trimmed",
    }
    assert embedding_path(tmp_path, "ego", "v 1") == tmp_path / "ego" / "v 1.h5"
    assert embedding_path(tmp_path, "exo", "v", (0, 18)) == tmp_path / "exo" / "v@0-18.h5"
    with pytest.raises(CacheError, match="cannot be a file name"):
        embedding_path(tmp_path, "ego", "../v")


def test_the_digest_of_a_model_is_that_of_its_file(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    assert model_digest(tmp_path, {}) == hashlib.sha256(b"weights").hexdigest()


def test_a_run_without_a_model_says_how_to_get_one(tmp_path):
    with pytest.raises(CacheError, match=r"no model yet; finish the run with byov-train --run \S+ --resume"):
        model_digest(tmp_path / "run", {})
