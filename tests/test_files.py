"""Tests of readers of files that someone else may have written."""

import os

import pytest

from byov import files


def fifo(path):
    os.mkfifo(path)


def folder(path):
    path.mkdir()


def device(path):
    path.symlink_to("/dev/zero")


def large(path):
    path.touch()
    os.truncate(path, files.MAX_BYTES + 1)


@pytest.mark.parametrize("make", [fifo, folder, device, large])
@pytest.mark.parametrize("read", [files.read_bytes, files.read_text, files.read_json])
def test_only_regular_files_of_limited_size_are_read(tmp_path, make, read):
    path = tmp_path / "config.json"
    make(path)
    with pytest.raises(OSError, match=r"regular|directory|larger") as raised:
        read(path)
    assert raised.value.filename == str(path)


def test_size_limit_is_inclusive(tmp_path):
    path = tmp_path / "model"
    path.write_bytes(bytes(10))
    assert files.read_bytes(path, max_bytes=10) == bytes(10)
    with pytest.raises(OSError, match="larger"):
        files.read_bytes(path, max_bytes=9)


@pytest.mark.parametrize("depth", [200, 990, 30_000, 100_000])
def test_nesting_is_limited(tmp_path, depth):
    path = tmp_path / "grid.toml"
    for text in ("a = " + "[" * depth + "]" * depth, ".".join(["a"] * depth) + " = 1"):
        path.write_text(text)
        with pytest.raises((ValueError, OSError), match=r"nested too deeply|dots|larger"):
            files.read_toml(path)
    with pytest.raises(ValueError, match="nested too deeply"):
        files.parse_json("[" * depth + "]" * depth)


def test_intact_files_are_read(tmp_path):
    path = tmp_path / "file"
    path.write_text('a = [{b = ["\u00fc"]}]')
    assert files.read_toml(path) == {"a": [{"b": ["\u00fc"]}]}
    path.write_text('[[1], {"a": null}]')
    assert files.read_json(path) == [[1], {"a": None}]
    path.write_text("1")
    assert files.read_json(path) == 1
