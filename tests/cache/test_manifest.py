import hashlib
import json
import os
from dataclasses import replace

import pytest

from byov.cache.digests import read_sealed_json
from byov.cache.manifest import (
    FileIndex,
    IndexedFile,
    Manifest,
    VideoEntry,
    load_index,
    load_manifest,
    read_sources,
    relative_sources,
)
from byov.errors import CacheError

MANIFEST = Manifest(
    dataset="pour_milk",
    phases=("reach", "gießen", 'quote " and \\'),
    actions=("c000", "c001"),
    videos=(
        VideoEntry("004", "ego", "train", 3, 29.97, (0, 0, 1), (1,), "Tür 1"),
        VideoEntry("Küche ビデオ", "exo", "val", None, None, None, None),
        VideoEntry("P01_08 (2)", "exo", "test", 0, 25, (), ()),
    ),
)


@pytest.fixture
def saved(tmp_path):
    """Return a function that applies `change` to the JSON of a manifest and saves it without a
    digest.
    """

    def save(change):
        raw = read_sealed_json(MANIFEST.to_json().encode())
        path = tmp_path / "manifest.json"
        path.write_text(json.dumps(change(raw) or raw), encoding="utf-8")
        return path

    return save


@pytest.mark.parametrize("manifest", [MANIFEST, Manifest("x", (), (), ())], ids=["full", "empty"])
def test_manifest_reads_back(tmp_path, manifest):
    manifest.save(tmp_path / "new" / "manifest.json")
    assert load_manifest(tmp_path / "new" / "manifest.json") == manifest


def test_edited_manifest_is_refused_until_its_digest_is_deleted(tmp_path):
    path = tmp_path / "manifest.json"
    edited = MANIFEST.to_json().replace("[0, 0, 1]", "[0, 1, 1]")
    path.write_text(edited)
    with pytest.raises(
        CacheError, match='to accept an edit made by hand, delete the line "file_sha256"'
    ):
        load_manifest(path)
    path.write_text("\n".join(line for line in edited.splitlines() if "file_sha256" not in line))
    assert load_manifest(path).videos[0].labels == (0, 1, 1)


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"null", b"[]", b"{}", b"\xff\xfe" * 50_000, b'{"a":' * 100_000, b"9" * 10_000),
        *(MANIFEST.to_json().encode("utf-16"), MANIFEST.to_json().encode()[:-20]),
    ],
    ids=range(9),
)
def test_unreadable_manifest_is_reported_in_one_short_line(tmp_path, content):
    path = tmp_path / "manifest.json"
    path.write_bytes(content)
    with pytest.raises(CacheError, match=r"manifest\.json.*[Rr]un byov-extract") as caught:
        load_manifest(path)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500
    assert "must Invalid" not in str(caught.value)
    path.unlink()
    with pytest.raises(CacheError, match=r"manifest\.json: no such file; run byov-extract"):
        load_manifest(path)


@pytest.mark.parametrize(
    ("version", "reason"),
    [(0, "it must be 1"), ("1", "schema_version"), (None, "schema_version"), (2, "update byov")],
)
def test_other_schema_is_refused(saved, version, reason):
    path = saved(lambda raw: raw.update(schema_version=version))
    with pytest.raises(CacheError, match=rf"manifest\.json.*{reason}"):
        load_manifest(path)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *[("id", value) for value in ("../x", "/etc/passwd", "", "a\x1b[2J", 4)],
        *[("view", value) for value in ("top", None, ["ego"])],
        *[("split", value) for value in ("dev", None)],
        *[("frames", value) for value in (-1, 1.5, "3", True)],
        *[("fps", value) for value in ("30", float("nan"), float("inf"), 10**400)],
        *[
            (key, value)
            for key in ("labels", "actions")
            for value in ("01", [0.5], [True], {"0": 1})
        ],
        *[("pair", value) for value in (3, ["p"])],
    ],
)
def test_wrong_value_in_a_video_is_refused(saved, key, value):
    path = saved(lambda raw: raw["videos"][1].update({key: value}))
    with pytest.raises(CacheError, match=r"manifest\.json: not readable") as caught:
        load_manifest(path)
    assert str(caught.value).isprintable()


# --- index.json


@pytest.fixture
def index(tmp_path):
    """Save a manifest and a matching index to tmp_path, and return the index."""
    MANIFEST.save(tmp_path / "manifest.json")
    file = IndexedFile(123, 456, 3, 29.97, ("0.3",), (7, 8, 9), "ab")
    digest = hashlib.sha256((tmp_path / "manifest.json").read_bytes()).hexdigest()
    index = FileIndex(digest, {"004": "a.mp4"}, {"clip": {"encoder": "x"}}, {"clip": {"004": file}})
    index.save(tmp_path)
    return index


def test_index_reads_back_unless_it_is_of_another_manifest(tmp_path, index):
    assert load_index(tmp_path) == index
    replace(MANIFEST, phases=()).save(tmp_path / "manifest.json")
    assert load_index(tmp_path) == FileIndex(sources=index.sources)


@pytest.mark.usefixtures("index")
@pytest.mark.parametrize("content", ["{", "[]", "{}", "[" * 100_000])
def test_missing_or_damaged_index_is_ignored(tmp_path, content):
    path = tmp_path / "index.json"
    path.write_text(content)
    assert load_index(tmp_path) == FileIndex()
    with pytest.raises(CacheError, match=r"index\.json.*byov-extract"):
        read_sources(tmp_path)
    path.unlink()
    assert load_index(tmp_path) == FileIndex()
    assert read_sources(tmp_path) == {}


def test_sources_are_found_after_a_move_of_the_project(tmp_path):
    video = tmp_path / "project" / "videos" / "Küche 1.mp4"
    folder = tmp_path / "project" / "features" / "tea"
    folder.mkdir(parents=True)
    FileIndex(sources=relative_sources(folder, {"Küche 1": video})).save(folder)
    assert read_sources(folder) == {"Küche 1": video}
    (tmp_path / "project").rename(tmp_path / "moved")
    moved = tmp_path / "moved" / "features" / "tea"
    assert read_sources(moved) == {"Küche 1": tmp_path / "moved" / "videos" / "Küche 1.mp4"}
    assert str(tmp_path) not in (moved / "index.json").read_text()


def test_file_name_that_is_not_utf8_does_not_break_the_index(tmp_path):
    FileIndex(
        sources=relative_sources(tmp_path, {"a": tmp_path / os.fsdecode(b"caf\xe9.mp4")})
    ).save(tmp_path)
    assert read_sources(tmp_path)["a"].parent == tmp_path
