import os
import resource
import shutil
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import numpy as np
import pytest

from byov.cache import header_index
from byov.cache.features import read_facts
from byov.cache.header_index import INDEX_NAME, HeaderIndex, settled_state
from byov.cache.layout import cached_files
from byov.cache.verify import summarize, verify_folder
from byov.errors import CacheError

pytestmark = pytest.mark.usefixtures("indexed_at_once")


@pytest.fixture
def opened(monkeypatch):
    """The names of the files that were looked into."""
    names = []

    def read(path):
        names.append(path.name)
        return read_facts(path)

    monkeypatch.setattr(header_index, "read_facts", read)
    return names


def read_all(folder):
    with HeaderIndex(folder) as index:
        return [index.read(path) for path in cached_files(folder)]


def assert_true(folder, found=None):
    """What the index gives is what the files say."""
    for facts, path in zip(found or read_all(folder), cached_files(folder), strict=True):
        said = read_facts(path)
        assert facts.header == said.header
        assert facts.digests == said.digests
        np.testing.assert_array_equal(facts.pts_seconds, said.pts_seconds)


def entries(folder):
    with closing(sqlite3.connect(folder / INDEX_NAME)) as database:
        return [header_index._Entry(*row) for row in database.execute(f"SELECT * FROM {header_index._TABLE}")]


def rewrite(folder, change):
    """Change each entry, and give it a digest that fits."""
    changed = [change(entry) for entry in entries(folder)]
    with closing(sqlite3.connect(folder / INDEX_NAME)) as database, database:
        database.execute(f"DELETE FROM {header_index._TABLE}")
        database.executemany(
            f"INSERT INTO {header_index._TABLE} VALUES (?, ?, ?, ?, ?, ?)",
            [entry._replace(sha256=entry.digest()) for entry in changed],
        )


def test_the_second_look_opens_no_file_and_says_the_same(encoder_folder, opened):
    assert_true(encoder_folder)
    assert len(opened) == 3
    opened.clear()
    written = settled_state(encoder_folder / INDEX_NAME)
    assert_true(encoder_folder)
    assert opened == []
    assert settled_state(encoder_folder / INDEX_NAME) == written


def test_a_summary_is_the_same_with_and_without(encoder_folder, opened):
    assert summarize(encoder_folder) == summarize(encoder_folder)
    assert len(opened) == 3


def test_another_file_in_its_place_is_read(encoder_folder, write_features, opened):
    read_all(encoder_folder)
    opened.clear()
    write_features(encoder_folder / "ego" / "004.h5", 70, source_name="another")  # of the same size, most likely
    assert read_all(encoder_folder)[0].header.provenance.source_name == "another"
    assert opened == ["004.h5"]
    assert_true(encoder_folder)


def test_damage_is_noticed_though_size_and_time_of_modification_stay(encoder_folder, flip_data_byte):
    path = encoder_folder / "ego" / "004.h5"
    read_all(encoder_folder)
    before = path.stat()
    flip_data_byte(path, "pts_seconds")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (path.stat().st_ino, path.stat().st_size, path.stat().st_mtime_ns) == (
        before.st_ino,
        before.st_size,
        before.st_mtime_ns,
    )
    with HeaderIndex(encoder_folder) as index, pytest.raises(CacheError, match=r"004\.h5: not a readable cache file"):
        index.read(path)
    assert summarize(encoder_folder).unreadable == 1


def test_a_file_that_is_gone_is_an_error(encoder_folder):
    read_all(encoder_folder)
    path = encoder_folder / "ego" / "004.h5"
    path.unlink()
    with HeaderIndex(encoder_folder) as index, pytest.raises(CacheError, match="no such file"):
        index.read(path)


def test_what_others_have_found_is_kept_and_what_is_gone_is_dropped(encoder_folder, write_features, opened):
    read_all(encoder_folder)
    (encoder_folder / "exo" / "004.h5").unlink()
    new = write_features(encoder_folder / "ego" / "new.h5", 5)
    with HeaderIndex(encoder_folder) as index:  # of a shard that has this one file
        index.read(new)
    assert {entry.name.decode() for entry in entries(encoder_folder)} == {"ego/004.h5", "ego/Küche 1.h5", "ego/new.h5"}
    opened.clear()
    assert_true(encoder_folder)
    assert opened == []


def test_a_copy_on_another_disk_is_read_anew(encoder_folder, tmp_path, opened):
    read_all(encoder_folder)
    copy = shutil.copytree(encoder_folder, tmp_path / "copy")
    opened.clear()
    assert_true(copy)
    assert len(opened) == 3
    opened.clear()
    assert_true(copy)
    assert opened == []


def test_an_index_with_a_flipped_bit_is_not_believed(encoder_folder):
    read_all(encoder_folder)
    path = encoder_folder / INDEX_NAME
    whole, said = path.read_bytes(), [read_facts(file).header for file in cached_files(encoder_folder)]
    for place in range(0, len(whole), 211):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << place % 8
        path.write_bytes(damaged)
        assert [facts.header for facts in read_all(encoder_folder)] == said


@pytest.mark.parametrize("content", [b"", b"x" * 5000, b"SQLite format 3\0" + b"\xff" * 5000])
def test_what_is_no_index_is_passed_over_and_replaced(encoder_folder, content, opened):
    (encoder_folder / INDEX_NAME).write_bytes(content)
    assert_true(encoder_folder)
    opened.clear()
    assert_true(encoder_folder)
    assert opened == []


def test_an_index_that_is_cut_off_is_passed_over(encoder_folder):
    read_all(encoder_folder)
    path = encoder_folder / INDEX_NAME
    whole = path.read_bytes()
    for kept in range(0, len(whole), 4000):
        path.write_bytes(whole[:kept])
        assert_true(encoder_folder)


def test_a_pipe_in_its_place_is_not_waited_for(encoder_folder):
    os.mkfifo(encoder_folder / INDEX_NAME)
    assert_true(encoder_folder)


@pytest.mark.parametrize(
    "script",
    [
        "CREATE TABLE other (name); CREATE VIEW {table} AS WITH RECURSIVE r(x) AS (SELECT 1 UNION ALL SELECT x FROM r) "
        "SELECT x AS name, x, x, x, x, x FROM r",
        "CREATE TABLE {table} (name)",
        header_index._SCHEMA.replace("of byov", "of another byov"),
    ],
    ids=["a view without end", "other columns", "another version"],
)
def test_another_database_is_passed_over(encoder_folder, script):
    with closing(sqlite3.connect(encoder_folder / INDEX_NAME)) as database:
        database.executescript(script.format(table=header_index._TABLE))
    assert_true(encoder_folder)


@pytest.mark.parametrize(
    "change",
    [
        lambda entry: entry._replace(said="[" * 100_000),
        lambda entry: entry._replace(said="null"),
        lambda entry: entry._replace(said='{"attributes": [], "digests": {}}'),
        lambda entry: entry._replace(said='{"attributes": {}, "digests": []}'),
        lambda entry: entry._replace(said=entry.said.replace('"fps": 30.0', '"fps": NaN')),
        lambda entry: entry._replace(said=entry.said.replace('"fps": 30.0', '"fps": "30"')),
        lambda entry: entry._replace(said=entry.said.replace('"source_bytes": 12345', '"source_bytes": 1.5')),
        lambda entry: entry._replace(said=entry.said.replace("merged/0.3", "merged/x")),
        lambda entry: entry._replace(said=entry.said.replace("merged/0.3", "merged/0.30")),
        lambda entry: entry._replace(pts_seconds=b"1234567"),
    ],
)
def test_an_entry_that_is_none_of_ours_is_passed_over(encoder_folder, change, opened):
    read_all(encoder_folder)
    before = entries(encoder_folder)
    rewrite(encoder_folder, change)
    assert entries(encoder_folder) != before
    opened.clear()
    assert_true(encoder_folder)
    assert len(opened) == 3


@pytest.mark.parametrize("value", [None, 3, 1.5, "text"])
def test_columns_of_other_types_are_passed_over(encoder_folder, write_features, value):
    read_all(encoder_folder)
    for column in ("name", "state", "source_state", "said", "pts_seconds", "sha256"):
        with closing(sqlite3.connect(encoder_folder / INDEX_NAME)) as database, database:
            database.execute(f"UPDATE {header_index._TABLE} SET {column} = ? WHERE name LIKE 'ego/0%'", (value,))
        write_features(encoder_folder / "exo" / "004.h5", 64)  # so that the index is written anew
        assert_true(encoder_folder)


def test_verify_reads_the_files_whatever_the_index_says(encoder_folder, flip_data_byte):
    read_all(encoder_folder)
    path = encoder_folder / "ego" / "004.h5"
    flip_data_byte(path, "merged/0.3")
    flip_data_byte(path, "pts_seconds")
    now = settled_state(path)
    rewrite(encoder_folder, lambda entry: entry._replace(state=now) if entry.name == b"ego/004.h5" else entry)
    assert summarize(encoder_folder).unreadable == 0  # which asks the index
    assert [file.path for file in verify_folder(encoder_folder) if file.problem] == [path]


def test_where_no_index_can_be_written_all_goes_on(encoder_folder, opened):
    (encoder_folder / INDEX_NAME).mkdir()
    assert_true(encoder_folder)
    assert_true(encoder_folder)
    assert len(opened) == 6
    assert not list(encoder_folder.glob("*.partial"))


def test_a_full_disk_leaves_the_index_before(encoder_folder, write_features):
    read_all(encoder_folder)
    before = (encoder_folder / INDEX_NAME).read_bytes()
    write_features(encoder_folder / "ego" / "new.h5", 5)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        found = read_all(encoder_folder)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert_true(encoder_folder, found)
    assert (encoder_folder / INDEX_NAME).read_bytes() == before
    assert not list(encoder_folder.glob(".*.partial"))


def test_an_error_in_between_leaves_no_new_index(encoder_folder):
    def read_one_and_fail():
        with HeaderIndex(encoder_folder) as index:
            index.read(encoder_folder / "ego" / "004.h5")
            index.read(encoder_folder / "ego" / "none.h5")

    with pytest.raises(CacheError, match="no such file"):
        read_one_and_fail()
    assert [path.name for path in encoder_folder.iterdir() if path.is_file()] == []


def test_many_at_once_do_not_disturb_each_other(encoder_folder, write_features):
    for video in range(8):
        write_features(encoder_folder / "ego" / f"{video}.h5", video + 1)
    paths = list(cached_files(encoder_folder))

    def read_a_part(part):
        with HeaderIndex(encoder_folder) as index:
            return [index.read(path).header.frames for path in paths[part % 4 :: 4]]

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(read_a_part, range(16)))
    for part, frames in enumerate(found):
        assert frames == [read_facts(path).header.frames for path in paths[part % 4 :: 4]]
    assert_true(encoder_folder)
    assert [path.name for path in encoder_folder.iterdir() if path.is_file()] == [INDEX_NAME]


def test_few_files_have_no_index(encoder_folder, monkeypatch):
    monkeypatch.undo()
    monkeypatch.setattr(header_index, "SETTLED_NS", -(10**15))
    read_all(encoder_folder)
    assert not (encoder_folder / INDEX_NAME).exists()


def test_a_file_that_has_just_changed_is_not_kept(encoder_folder, monkeypatch):
    """Its times would not show another change within the same tick of the clock."""
    monkeypatch.setattr(header_index, "SETTLED_NS", 10**15)
    read_all(encoder_folder)
    assert not (encoder_folder / INDEX_NAME).exists()


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "video.mp4"
    path.write_bytes(b"a video")
    return path


def compare_all(folder, source):
    """As if the source were that of all files, and agreed with them."""
    with HeaderIndex(folder) as index:
        for path in cached_files(folder):
            index.keep_source(index.read(path), source, settled_state(source))


def source_states(folder):
    return [facts.source_state for facts in read_all(folder)]


def test_the_state_of_a_source_that_was_compared_is_kept(encoder_folder, source, opened):
    assert source_states(encoder_folder) == [None] * 3
    compare_all(encoder_folder, source)
    assert source_states(encoder_folder) == [settled_state(source)] * 3
    assert len(opened) == 3


def test_it_is_kept_by_those_who_compare_no_sources(encoder_folder, source, write_features):
    compare_all(encoder_folder, source)
    write_features(encoder_folder / "exo" / "new.h5", 5)
    read_all(encoder_folder)
    assert source_states(encoder_folder) == [settled_state(source)] * 3 + [None]


def test_it_is_lost_with_its_file(encoder_folder, source, write_features):
    compare_all(encoder_folder, source)
    write_features(encoder_folder / "ego" / "004.h5", 70)
    assert source_states(encoder_folder) == [None] + [settled_state(source)] * 2


def test_a_source_that_changes_while_it_is_compared_is_not_kept(encoder_folder, source):
    with HeaderIndex(encoder_folder) as index:
        for path in cached_files(encoder_folder):
            facts, before = index.read(path), settled_state(source)
            with source.open("ab") as file:
                file.write(b"!")
            index.keep_source(facts, source, before)
    assert source_states(encoder_folder) == [None] * 3


def test_a_file_that_changes_while_its_source_is_compared_is_not_kept(encoder_folder, source, write_features):
    path = encoder_folder / "ego" / "004.h5"
    with HeaderIndex(encoder_folder) as index:
        facts = index.read(path)
        write_features(path, 70, source_name="another")
        index.keep_source(facts, source, settled_state(source))
    assert read_all(encoder_folder)[0].header.provenance.source_name == "another"


def test_a_state_of_a_source_that_is_damaged_is_not_believed(encoder_folder, source, opened):
    compare_all(encoder_folder, source)
    opened.clear()
    with closing(sqlite3.connect(encoder_folder / INDEX_NAME)) as database, database:
        database.execute(f"UPDATE {header_index._TABLE} SET source_state = '1 2 3 4'")
    assert source_states(encoder_folder) == [None] * 3
    assert len(opened) == 3
