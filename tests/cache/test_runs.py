import json
import os

import numpy as np
import pytest
from safetensors.numpy import save
from tests.factories import make_training, write_file

from byov.cache.digests import seal_json
from byov.cache.runs import (
    check_model,
    choose_run,
    embedding_path,
    embeddings_folder,
    list_runs,
    read_config,
    read_run,
)
from byov.errors import CacheError


@pytest.fixture
def write_run(tmp_path):
    """Return a function that writes a run without models; a value of None removes the key from the
    training record.
    """

    def write(name="first", *, age_seconds=0, **changes):
        config = {"width": 768, "settings": {"latent": 256}, "training": make_training(**changes)}
        path = write_file(tmp_path / name / "config.json", seal_json(config))
        os.utime(path, (1_000_000 - age_seconds,) * 2)
        return tmp_path

    return write


def test_run_is_read_from_its_config(write_run):
    runs = write_run("pour-1")
    record = read_run(runs, "pour-1")
    assert (record.name, record.folder, record.ratio) == ("pour-1", runs / "pour-1", 0.3)
    assert make_training().items() <= record.model_dump().items()
    assert record.settings == {"latent": 256}
    assert record.label == ("recipe", "paper")
    assert read_run(runs, f"{runs}/pour-1/").name == "pour-1"  # the path as completed by a shell


@pytest.mark.parametrize("name", ["../x", "a/b", "", "my run"])
def test_name_that_leaves_the_folder_is_refused(tmp_path, name):
    with pytest.raises(CacheError, match="cannot be a file name"):
        read_run(tmp_path, name)


def test_runs_are_listed_newest_first(write_run, tmp_path):
    for name, age_seconds in (("old", 100), ("new", 0), ("middle", 50), (".hidden", 0)):
        write_run(name, age_seconds=age_seconds)
    (tmp_path / "no config").mkdir()
    assert list_runs(tmp_path) == ["new", "middle", "old"]
    assert list_runs(tmp_path / "none") == []


def test_damaged_newest_run_is_an_error(write_run):
    runs = write_run("newest")
    write_run("older", age_seconds=100)
    assert choose_run(runs).name == "newest"
    (runs / "newest" / "config.json").write_bytes(b"")
    with pytest.raises(CacheError, match=r"newest/config\.json: .*choose another run with --run"):
        choose_run(runs)
    assert choose_run(runs, "older").name == "older"


def test_missing_run_lists_the_existing_ones(write_run):
    runs = write_run("first")
    with pytest.raises(CacheError, match="second: no such run; choose one of first"):
        read_run(runs, "second")
    with pytest.raises(CacheError, match="train one with byov-train"):
        read_run(runs / "first", "second")


def test_missing_run_among_many_suggests_similar_names(write_run):
    for seed in range(20):
        runs = write_run(f"pour-{seed}", age_seconds=seed)
    with pytest.raises(CacheError, match=r"lists all 20, such as pour-3, "):
        read_run(runs, "puor-3")


@pytest.mark.parametrize("content", [b"", b"\x00", b"[" * 100_000, b"[]", b"null", b"\xff\xfe\x00"])
def test_config_that_is_not_a_json_object_is_named(tmp_path, content):
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(CacheError, match=r"config\.json: not readable"):
        read_config(tmp_path)


def test_config_from_a_newer_version_says_to_update(tmp_path):
    (tmp_path / "config.json").write_bytes(seal_json({"schema_version": 2}))
    with pytest.raises(CacheError, match=r"config\.json: .*update byov"):
        read_config(tmp_path)


def test_edited_config_is_refused_with_a_way_to_accept_it(write_run):
    path = write_run() / "first" / "config.json"
    path.write_text(path.read_text().replace('"latent": 256', '"latent": 128'))
    with pytest.raises(CacheError, match='delete the line "file_sha256"'):
        read_config(path.parent)
    path.write_text(
        "\n".join(line for line in path.read_text().splitlines() if "file_sha256" not in line)
    )
    assert read_config(path.parent)["settings"] == {"latent": 128}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"dataset": None}, "no 'dataset'"),
        ({"seed": "3"}, "seed is '3'"),
        ({"seed": True}, "seed is True"),
        ({"encoder": ["x"]}, r"encoder is \['x'\]"),
        ({"dataset": "../../etc"}, "dataset '../../etc' cannot be a file name"),
        ({"encoder_folder": "/etc"}, "encoder '/etc' cannot be a file name"),
        ({"settings": "abc"}, "settings is 'abc'"),
        ({"settings": ["abc"]}, r"settings is \['abc'\]"),
    ],
)
def test_config_of_something_else_is_refused(write_run, changes, reason):
    runs = write_run(**changes)
    with pytest.raises(CacheError, match=rf"config\.json: not written by byov-train \({reason}"):
        read_run(runs, "first")


@pytest.mark.parametrize("training", [[], ["x"], None, 7])
def test_config_without_training_is_refused(tmp_path, training):
    write_file(tmp_path / "run/config.json", json.dumps({"training": training}))
    with pytest.raises(CacheError, match="not written by byov-train"):
        read_run(tmp_path, "run")


def test_embedding_paths(tmp_path):
    assert embeddings_folder(tmp_path).name == "embeddings"
    assert (
        embeddings_folder(tmp_path, "trimmed", untrained=True).name
        == "embeddings-untrained-trimmed"
    )
    assert embedding_path(tmp_path, "ego", "v 1") == tmp_path / "ego" / "v 1.h5"
    assert embedding_path(tmp_path, "exo", "v", (0, 19)) == tmp_path / "exo" / "v@0-18.h5"
    with pytest.raises(CacheError, match="cannot be a file name"):
        embedding_path(tmp_path, "ego", "../v")


def test_model_must_match_the_digest_in_config(tmp_path):
    with pytest.raises(
        CacheError, match=r"no model yet; finish the run with byov-train --run \S+ --resume"
    ):
        check_model(tmp_path, {})
    (tmp_path / "model.safetensors").write_bytes(save({"weight": np.ones(3)}))
    digest = check_model(tmp_path, {}).sha256
    assert check_model(tmp_path, {"files_sha256": {"model.safetensors": digest}}).sha256 == digest
    with pytest.raises(
        CacheError, match=f"SHA-256 {digest[:12]}, but config.json records cdcdcdcdcdcd"
    ):
        check_model(tmp_path, {"files_sha256": {"model.safetensors": "cd" * 32}})
