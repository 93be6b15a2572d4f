import json
from dataclasses import replace

import pytest

from byov.cache.digests import unsealed
from byov.cache.manifest import Manifest, VideoEntry, load_manifest
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
    """Change the saved JSON with a function and give its path."""

    def save(change):
        raw = unsealed(json.loads(MANIFEST.to_json()))
        path = tmp_path / "manifest.json"
        path.write_text(json.dumps(change(raw) or raw), encoding="utf-8")
        return path

    return save


@pytest.mark.parametrize(
    "manifest",
    [MANIFEST, replace(MANIFEST, videos=()), replace(MANIFEST, phases=(), actions=()), Manifest("x", (), (), ())],
    ids=["full", "no videos", "no phases", "empty"],
)
def test_what_is_saved_loads_back(tmp_path, manifest):
    manifest.save(tmp_path / "new" / "manifest.json")
    assert load_manifest(tmp_path / "new" / "manifest.json") == manifest


def test_each_video_stands_on_a_line_of_its_own_as_people_write_it(tmp_path):
    MANIFEST.save(tmp_path / "manifest.json")
    lines = (tmp_path / "manifest.json").read_text(encoding="utf-8").splitlines()
    for video in MANIFEST.videos:
        (line,) = [line for line in lines if f'"id": "{video.id}"' in line]
        assert json.loads(line.strip().rstrip(","))["view"] == video.view
    assert len(lines) == len(json.dumps(json.loads(MANIFEST.to_json()) | {"videos": 0}, indent=1).splitlines()) + 4


def test_saving_the_same_again_leaves_the_file_alone(tmp_path):
    path = tmp_path / "manifest.json"
    MANIFEST.save(path)
    before = path.stat()
    load_manifest(path).save(path)
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_a_manifest_that_is_not_there_says_what_to_do(tmp_path):
    with pytest.raises(CacheError, match=r"manifest\.json: no such file; run byov-extract"):
        load_manifest(tmp_path / "manifest.json")


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"{", b"null", b"[]", b"3", b'"x"', b"{}", b"\xff\xfe" * 50_000, b"[" * 100_000, b'{"a":' * 100_000),
        *(b"9" * 10_000, MANIFEST.to_json().encode("utf-16"), MANIFEST.to_json().encode()[:-20]),
    ],
    ids=range(13),
)
def test_what_is_no_manifest_is_named_in_one_short_line(tmp_path, content):
    path = tmp_path / "manifest.json"
    path.write_bytes(content)
    with pytest.raises(CacheError, match=r"manifest\.json: not a readable manifest") as caught:
        load_manifest(path)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500


def test_a_folder_in_place_of_a_manifest_is_named(tmp_path):
    with pytest.raises(CacheError, match=tmp_path.name):
        load_manifest(tmp_path)


@pytest.mark.parametrize("version", [0, 2, "1", None, [1]])
def test_another_schema_is_refused_with_both_numbers(saved, version):
    path = saved(lambda raw: raw.update(schema_version=version))
    with pytest.raises(CacheError, match=r"manifest\.json: .*schema .*this byov reads 1"):
        load_manifest(path)


@pytest.mark.parametrize("key", ["schema_version", "dataset", "phases", "actions", "videos"])
def test_a_missing_key_is_named(saved, key):
    path = saved(lambda raw: raw.pop(key) and raw)
    with pytest.raises(CacheError, match=rf"manifest\.json: .*'{key}'"):
        load_manifest(path)


@pytest.mark.parametrize("key", ["id", "view", "split", "frames", "fps", "labels", "actions"])
def test_a_missing_key_of_a_video_is_named(saved, key):
    path = saved(lambda raw: {**raw, "videos": [{k: v for k, v in raw["videos"][0].items() if k != key}]})
    with pytest.raises(CacheError, match=rf"manifest\.json: .*'{key}'"):
        load_manifest(path)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *[("dataset", value) for value in ("../x", "", 3, None, ["x"])],
        *[(key, value) for key in ("phases", "actions") for value in ("reach", [1], [None], [["a"]], {"a": 1}, None)],
        *[("videos", value) for value in (3, None, "004", [3], ["004"], [None], {"id": "004"}, [[]])],
    ],
)
def test_a_value_of_the_wrong_kind_is_refused(saved, key, value):
    path = saved(lambda raw: raw.update({key: value}))
    with pytest.raises(CacheError, match=r"manifest\.json: not a readable manifest"):
        load_manifest(path)


NOT_A_NUMBER, ENDLESS = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *[("id", value) for value in ("../x", "/etc/passwd", "", ".", "-x", "a\0b", "a\x1b[2J", 4, None, ["004"])],
        *[("view", value) for value in ("top", "", None, ["ego"], "Ego", 1, {})],
        *[("split", value) for value in ("dev", None, [])],
        *[("frames", value) for value in (-1, 1.5, "3", True, NOT_A_NUMBER, [3])],
        *[("fps", value) for value in ("30", NOT_A_NUMBER, ENDLESS, -ENDLESS, True, [30])],
        *[(key, value) for key in ("labels", "actions") for value in ("01", 3, [0.5], ["0"], [True], [None], {"0": 1})],
        *[("pair", value) for value in (3, True, ["p"], {"p": 1})],
    ],
)
def test_a_value_of_the_wrong_kind_in_a_video_is_refused(saved, key, value):
    path = saved(lambda raw: raw["videos"][1].update({key: value}))
    with pytest.raises(CacheError, match=r"manifest\.json: not a readable manifest") as caught:
        load_manifest(path)
    assert str(caught.value).isprintable()


def test_a_number_too_long_to_be_a_float_is_refused(saved):
    path = saved(lambda raw: raw["videos"][0].update(fps=10**400))
    with pytest.raises(CacheError, match=r"manifest\.json: .*videos\.0\.fps is 1000\S*; it must be a finite number"):
        load_manifest(path)


def test_a_manifest_without_pairs_is_read(saved):
    path = saved(lambda raw: [video.pop("pair") for video in raw["videos"]] and raw)
    assert load_manifest(path).videos == tuple(replace(video, pair=None) for video in MANIFEST.videos)


def test_keys_of_a_later_minor_version_are_ignored(saved):
    path = saved(lambda raw: raw["videos"][0].update(camera="GoPro") or raw.update(later="x"))
    assert load_manifest(path) == MANIFEST
