"""Which sources a run over cached videos reads again: those that are not in the state in which they were compared."""

import os
import shutil
import sqlite3
from contextlib import closing

import pytest

from byov.cache import header_index
from byov.extract import plan

TINY = ("--encoder", "random/tiny")

pytestmark = pytest.mark.usefixtures("indexed_at_once")


@pytest.fixture
def compared(monkeypatch):
    """The sources that were read, and how much of each."""
    read = []
    for name, digest in (("sample", plan.fingerprint), ("all", plan.sha256)):

        def take(path, name=name, digest=digest):
            read.append((path.name, name))
            return digest(path)

        monkeypatch.setattr(plan, digest.__name__, take)
    return read


@pytest.fixture
def again(byov_extract, make_dataset, compared):
    """again(*options): the command over two cached videos, which were compared once."""
    table = make_dataset([3, 4])
    assert byov_extract("--manifest", table, *TINY).code == 0
    assert "2 already cached" in byov_extract("--manifest", table, *TINY).out
    assert compared == [("v0.mp4", "sample"), ("v1.mp4", "sample")]
    compared.clear()
    return lambda *options: byov_extract("--manifest", table, *TINY, *options)


@pytest.fixture
def source(tmp_path):
    return tmp_path / "videos" / "v1.mp4"


@pytest.fixture
def index(tmp_path):
    return tmp_path / "features" / "mine" / "random--tiny" / header_index.INDEX_NAME


def change_byte(path):
    """In a sound place of the file, with its time of modification put back."""
    times = path.stat()
    with path.open("r+b") as file:
        file.seek(times.st_size // 2)
        byte = file.read(1)[0]
        file.seek(times.st_size // 2)
        file.write(bytes([byte ^ 1]))
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def changed_copy_in_its_place(path):
    other = path.with_name("other")
    shutil.copy2(path, other)
    change_byte(other)
    other.replace(path)


def forge(index, change):
    """Change the entries of an index, and give them digests that fit."""
    with closing(sqlite3.connect(index)) as database, database:
        rows = database.execute(f"SELECT * FROM {header_index._TABLE}").fetchall()
        for entry in (change(header_index._Entry(*row)) for row in rows):
            database.execute(
                f"UPDATE {header_index._TABLE} SET source_state = ?, sha256 = ? WHERE name = ?",
                (entry.source_state, entry.digest(), entry.name),
            )


def test_sources_that_are_in_the_state_in_which_they_were_compared_are_not_read(again, compared, index):
    written = index.stat().st_ino
    assert "2 already cached" in again().out
    assert compared == []
    assert index.stat().st_ino == written


@pytest.mark.parametrize("change", [change_byte, changed_copy_in_its_place])
def test_a_change_that_size_and_time_of_modification_hide_is_found(again, source, compared, change):
    before = source.stat()
    change(source)
    assert (source.stat().st_size, source.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    ran = again()
    assert ran.code == 2
    assert f"{source} has changed to" in ran.err
    assert compared == [("v1.mp4", "sample")]
    assert again().code == 2  # nothing was learned from a source that differs


@pytest.mark.parametrize("number", range(4), ids=["inode", "size", "modified", "changed"])
def test_inode_size_and_both_times_count(again, compared, index, number):
    def differ(entry):
        numbers = entry.source_state.split()
        numbers[number] = str(int(numbers[number]) + 1)
        return entry._replace(source_state=" ".join(numbers))

    forge(index, differ)
    assert "2 already cached" in again().out
    assert compared == [("v0.mp4", "sample"), ("v1.mp4", "sample")]


def test_a_source_written_to_since_is_read_once_more_and_all_of_it(again, source, compared):
    os.utime(source)
    for _ in range(2):
        assert "2 already cached" in again().out
    assert compared == [("v1.mp4", "all")]


def test_a_file_of_features_that_is_written_anew_is_compared_anew(again, compared, index):
    path = index.parent / "exo" / "v1.h5"
    shutil.copy2(path, path.with_suffix(".copy"))
    path.with_suffix(".copy").replace(path)
    assert "2 already cached" in again().out
    assert compared == [("v1.mp4", "sample")]


def test_verify_sources_reads_all_whatever_the_index_says(again, source, compared, index):
    change_byte(source)
    now = header_index.settled_state(source)
    forge(index, lambda entry: entry._replace(source_state=now) if entry.name == b"exo/v1.h5" else entry)
    assert "2 already cached" in again().out
    assert compared == []
    assert again("--verify-sources").code == 2
    assert compared == [("v0.mp4", "all"), ("v1.mp4", "all")]


def test_a_source_that_has_just_changed_is_compared_each_time(again, compared, monkeypatch):
    monkeypatch.setattr(header_index, "SETTLED_NS", 10**15)
    for _ in range(2):
        assert "2 already cached" in again().out
    assert compared == [("v0.mp4", "sample"), ("v1.mp4", "sample")] * 2
