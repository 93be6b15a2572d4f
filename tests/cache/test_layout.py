from pathlib import Path

import pytest

from byov.cache.layout import (
    cached_files,
    check_name,
    encoder_slug,
    manifest_path,
    video_path,
)
from byov.errors import CacheError

BAD_NAMES = [
    "../x",
    "..",
    "a/b",
    "/etc",
    "",
    ".",
    ".hidden",
    "-x",
    "--help",
    "_x",
    " x",
    "a\0b",
    "x\n",
    "x\ny",
    "a\tb",
]
BAD_NAMES += [
    "x" * 201,
    "ü" * 101,
    "x.",
    "x ",
    "x. .",
    "a\\b",
    "C:x",
    "a*",
    "a?",
    "a\x1b[2J",
    "a\u202eb",
    "a\ud800",
]
GOOD_NAMES = [
    "004",
    "P01_08 (2)",
    "a",
    "x" * 200,
    "ü" * 100,
    "Küche 1",
    "ビデオ",
    "v1.2-3",
    "a..b",
    "x[1]#1&2@3,+='",
]


@pytest.mark.parametrize("name", BAD_NAMES, ids=ascii)
def test_unsafe_file_name_is_refused(name):
    with pytest.raises(CacheError, match=r"video id .* cannot be a file name") as caught:
        check_name(name, "video id")
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("name", GOOD_NAMES, ids=ascii)
def test_names_of_any_alphabet_are_accepted_and_can_be_written(tmp_path, name):
    assert check_name(name, "video id") == name
    path = video_path(tmp_path, "ego", name)
    path.parent.mkdir()
    # Temporary names are longer than final ones.
    path.with_name(f".{path.name}.01234567.partial").touch()
    path.touch()
    assert list(cached_files(tmp_path)) == [path]


@pytest.mark.parametrize(
    ("encoder", "slug"),
    [
        ("openai/clip-vit-base-patch16", "openai--clip-vit-base-patch16"),
        ("gpt2", "gpt2"),
        ("./models/my clip", "my clip"),
        ("../clip", "clip"),
        ("/srv/models/clip.v2", "clip.v2"),
        ("/clip", "clip"),
        ("~/clip", "clip"),
        ("a/b/c", "c"),
        ("clip/", "clip"),
    ],
)
def test_encoder_slug(encoder, slug):
    assert encoder_slug(encoder) == slug


@pytest.mark.parametrize(
    "encoder", ["", "/", "..", "../..", "./.hidden", "a/b/..", "x\ny", "-/x", "./a\\b"]
)
def test_encoder_without_a_safe_name_is_refused(encoder):
    with pytest.raises(CacheError, match=r"encoder .* cannot be a file name"):
        encoder_slug(encoder)


def test_paths_match_the_documented_layout():
    assert manifest_path(Path("f"), "demo") == Path("f/demo/manifest.json")
    assert video_path(Path("f/demo/a--b"), "exo", "004") == Path("f/demo/a--b/exo/004.h5")
    for make in (manifest_path, lambda *path: video_path(path[0], "ego", ".")):
        with pytest.raises(CacheError):
            make(Path("f"), "../x")


def test_cached_files_are_finished_and_sorted(tmp_path):
    for name in (
        "exo/1.h5",
        "ego/b.h5",
        "ego/a.h5",
        "ego/.a.h5.0.partial",
        "ego/.x.h5",
        "ego/note.txt",
        "top/c.h5",
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert [str(path.relative_to(tmp_path)) for path in cached_files(tmp_path)] == [
        "ego/a.h5",
        "ego/b.h5",
        "exo/1.h5",
    ]
    assert list(cached_files(tmp_path / "nowhere")) == []
