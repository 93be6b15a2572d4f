"""Checksums of containers: every flip of what they cover is noticed, and what is whole matches."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from byov.data.checksums import mismatch
from byov.data.container import broken_off
from byov.data.video import DecodingPolicy, FrameReader
from byov.errors import VideoError

KINDS = {"a.mkv": {}, "a.ogv": {"codec": "libvpx", "container": "ogg"}}


@pytest.fixture(scope="module")
def contents(
    tmp_path_factory: pytest.TempPathFactory, encode: Callable[..., Path], grays: Callable
) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("checksums")
    return {name: encode(folder / name, grays(20), **settings).read_bytes() for name, settings in KINDS.items()}


def flipped(content: bytes, at: int) -> bytes:
    return content[:at] + bytes([content[at] ^ 1 << at % 8]) + content[at + 1 :]


def covered(name: str, content: bytes) -> range:
    """The bytes that frames come from: of Matroska the cluster, of Ogg all."""
    if name.endswith(".ogv"):
        return range(4, len(content))  # behind its magic
    first = content.index(bytes.fromhex("1f43b675")) + 4 + 8  # behind its size
    return range(first, content.index(bytes.fromhex("1c53bb6b"), first))


@pytest.mark.parametrize("name", KINDS)
def test_every_flip_is_noticed_and_the_whole_file_matches(
    tmp_path: Path, contents: dict[str, bytes], name: str
) -> None:
    content, path = contents[name], tmp_path / name
    path.write_bytes(content)
    assert mismatch(path) == ""
    places = random.Random(0).sample(covered(name, content), 200)
    for at in places:
        path.write_bytes(flipped(content, at))
        assert " at byte " in mismatch(path) or broken_off(path), at  # a last page that says it is longer


@pytest.mark.parametrize("name", KINDS)
def test_what_does_not_match_fails_its_video_unless_told_to_keep_it(
    tmp_path: Path, contents: dict[str, bytes], name: str
) -> None:
    path = tmp_path / name
    path.write_bytes(flipped(contents[name], covered(name, contents[name])[-20]))
    with pytest.raises(
        VideoError, match=rf"{name}: the checksum of its \w+ at byte \d+ does not match; .*--on-corrupt keep"
    ):
        list(FrameReader(path).blocks())
    kept = DecodingPolicy(on_corrupt="keep", on_truncated="keep")
    assert sum(len(block.pixels) for block in FrameReader(path, policy=kept).blocks()) > 0


def test_a_live_recording_has_none_and_is_no_mismatch(
    tmp_path: Path, encode: Callable[..., Path], grays: Callable
) -> None:
    for name, options in (("live.mkv", {"live": "1"}), ("a.webm", {}), ("a.mp4", {})):
        codec = "libvpx" if name == "a.webm" else "libx264"
        assert mismatch(encode(tmp_path / name, grays(5), codec=codec, container_options=options)) == ""


@pytest.mark.parametrize("name", KINDS)
def test_a_cut_file_is_not_a_mismatch(tmp_path: Path, contents: dict[str, bytes], name: str) -> None:
    """How it is cut off is said by another."""
    path = tmp_path / name
    for size in range(0, len(contents[name]), 37):
        path.write_bytes(contents[name][:size])
        assert mismatch(path) == ""


@pytest.mark.parametrize("magic", [b"OggS", b"\x1a\x45\xdf\xa3", b"\x1a\x45\xdf\xa3\x80\x18\x53\x80\x67\xff"])
def test_random_bytes_behind_known_magic_neither_hang_nor_raise(tmp_path: Path, magic: bytes) -> None:
    chance = random.Random(0)
    for size in (0, 1, 20, 300, 3000):
        (tmp_path / "x").write_bytes(magic + chance.randbytes(size))
        mismatch(tmp_path / "x")
