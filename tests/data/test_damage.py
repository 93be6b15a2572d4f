"""Videos that are damaged or cut off: what FFmpeg or the container can tell is noticed, and what is whole is not."""

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from numpy.typing import NDArray

from byov.data.container import broken_off
from byov.data.video import STRICT, DecodingPolicy, FrameReader, estimated_frames, probe
from byov.errors import VideoError

KEEP_CORRUPT = DecodingPolicy(on_corrupt="keep")
KEEP_CUT = DecodingPolicy(on_truncated="keep")

# name → how it is encoded. What a cut of each can be told by: its container, packets or frames that FFmpeg marks.
KINDS: dict[str, dict[str, Any]] = {
    "a.ts": {"container": "mpegts"},
    "mpeg2.ts": {"codec": "mpeg2video", "container": "mpegts", "fps": 25},
    "live.mkv": {"container_options": {"live": "1"}},
    "a.wmv": {"codec": "wmv2", "container": "asf"},
    "a.ogv": {"codec": "libvpx", "container": "ogg"},
    "a.gif": {"codec": "gif", "pix_fmt": "rgb8"},
    "a.mpg": {"codec": "mpeg2video", "container": "mpeg", "fps": 25},
    "a.y4m": {"codec": "wrapped_avframe", "container": "yuv4mpegpipe"},
    "a.mxf": {"codec": "mpeg2video", "container": "mxf", "fps": 25},
    "a.h264": {"container": "h264"},
    "a.mp4": {},
    "b.mkv": {},
    "a.webm": {"codec": "libvpx-vp9"},
    "a.avi": {"codec": "mpeg4"},
    "a.flv": {"codec": "flv"},
    "a.ivf": {"codec": "libvpx", "container": "ivf"},
}


def moving(count: int = 40) -> list[NDArray[np.uint8]]:
    """Frames with something in them, so that a lost byte matters."""
    picture = np.random.default_rng(0).integers(0, 64, (48, 64, 3)).astype(np.uint8)
    return [np.roll(picture, 2 * index, axis=1) + np.uint8(3 * index) for index in range(count)]


@pytest.fixture(scope="module")
def videos(tmp_path_factory: pytest.TempPathFactory, encode: Callable[..., Path]) -> Path:
    folder = tmp_path_factory.mktemp("kinds")
    for name, settings in KINDS.items():
        encode(folder / name, moving(), **settings)
    return folder


def frames(path: Path, policy: DecodingPolicy = STRICT) -> int:
    return sum(len(block.pixels) for block in FrameReader(path, policy=policy).blocks())


@pytest.mark.parametrize("name", KINDS)
def test_what_is_whole_is_not_taken_for_broken(videos: Path, name: str) -> None:
    reader = FrameReader(videos / name)
    assert sum(len(block.pixels) for block in reader.blocks()) == 40
    assert (reader.truncated, reader.corrupt_frames, broken_off(videos / name)) == (False, 0, "")
    assert probe(videos / name).broken_off == ""


@pytest.mark.parametrize("name", KINDS)
def test_a_cut_at_each_tenth_is_noticed(videos: Path, tmp_path: Path, name: str) -> None:
    whole, path = (videos / name).read_bytes(), tmp_path / name
    for tenth in range(1, 10):
        size = len(whole) * tenth // 10
        size -= path.suffix == ".ts" and size % 188 == 0  # between two packets it cannot be told
        path.write_bytes(whole[:size])
        try:
            decoded = frames(path)
        except VideoError as error:
            assert name in str(error)  # noqa: PT017
        else:
            assert decoded == 40, tenth  # what is lost was no frame


def test_what_is_kept_of_a_cut_transport_stream_are_its_first_frames(videos: Path, tmp_path: Path) -> None:
    whole, path = (videos / "a.ts").read_bytes(), tmp_path / "a.ts"
    path.write_bytes(whole[: len(whole) // 2 - 1])
    reader = FrameReader(path, policy=KEEP_CUT)
    kept = np.concatenate([block.pixels.copy() for block in reader.blocks()])
    assert reader.truncated
    everything = np.concatenate([block.pixels.copy() for block in FrameReader(videos / "a.ts").blocks()])
    assert 10 < len(kept) < 25
    np.testing.assert_array_equal(kept[:-1], everything[: len(kept) - 1])  # of the last one FFmpeg may make up a part


@pytest.mark.parametrize("name", ["a.ts", "mpeg2.ts"])
def test_transport_streams_joined_end_to_end_are_one_video(videos: Path, tmp_path: Path, name: str) -> None:
    content = (videos / name).read_bytes()
    (tmp_path / name).write_bytes(content + content)
    reader = FrameReader(tmp_path / name)
    times = np.concatenate([block.pts_seconds for block in reader.blocks()])
    assert len(times) == 80
    assert not reader.truncated
    assert (np.diff(times) > 0).all()
    assert times[40] == pytest.approx(times[39] + times[1], abs=1e-6)


def test_a_packet_lost_amid_a_transport_stream_is_noticed(videos: Path, tmp_path: Path) -> None:
    content, path = (videos / "a.ts").read_bytes(), tmp_path / "a.ts"
    noticed = 0
    for packet in range(20, 40):
        path.write_bytes(content[: 188 * packet] + content[188 * (packet + 1) :])
        try:
            assert frames(path) == 40  # it held no video
        except VideoError:
            noticed += 1
    assert noticed >= 5


@pytest.fixture
def corrupt(videos: Path, tmp_path: Path) -> Path:
    """An mp4 of which FFmpeg marks frames as corrupt."""
    whole = (videos / "a.mp4").read_bytes()
    with av.open(str(videos / "a.mp4")) as container:
        packet = [packet for packet in container.demux(video=0) if packet.size][3]
        at, size = packet.pos, packet.size
    content = bytearray(whole)
    content[at + size // 2 : at + size] = bytes(size - size // 2)
    (tmp_path / "corrupt.mp4").write_bytes(content)
    return tmp_path / "corrupt.mp4"


def test_frames_that_ffmpeg_marks_as_corrupt_fail_the_video(corrupt: Path) -> None:
    with pytest.raises(VideoError, match=r"corrupt\.mp4: FFmpeg marks frame \d+ as corrupt; .*--on-corrupt keep"):
        frames(corrupt)


def test_frames_that_ffmpeg_marks_as_corrupt_are_kept_and_counted_on_demand(corrupt: Path) -> None:
    reader = FrameReader(corrupt, policy=KEEP_CORRUPT)
    assert sum(len(block.pixels) for block in reader.blocks()) == 40
    assert 0 < reader.corrupt_frames < 40
    assert not reader.truncated


def test_frames_of_too_many_pixels_are_refused_before_they_are_decoded(videos: Path) -> None:
    with pytest.raises(VideoError, match=r"a\.mp4: frames of 64 x 48 pixels, more than 3,071; .*--max-pixels"):
        frames(videos / "a.mp4", DecodingPolicy(max_pixels=64 * 48 - 1))
    assert frames(videos / "a.mp4", DecodingPolicy(max_pixels=64 * 48)) == 40


def test_a_frame_that_becomes_too_large_on_the_way_is_refused(tmp_path: Path, encode: Callable[..., Path]) -> None:
    small = encode(tmp_path / "a.h264", moving(5), container="h264").read_bytes()
    large = encode(tmp_path / "b.h264", [np.zeros((480, 640, 3), np.uint8)] * 3, container="h264").read_bytes()
    (tmp_path / "both.h264").write_bytes(small + large)
    assert frames(tmp_path / "both.h264") == 8
    with pytest.raises(VideoError, match=r"both\.h264"):
        frames(tmp_path / "both.h264", DecodingPolicy(max_pixels=100_000))


def test_metadata_that_is_not_utf8_does_not_matter(videos: Path, tmp_path: Path) -> None:
    """As in HMDB51, whose files name their software in Latin-1."""
    content = (videos / "a.avi").read_bytes()
    at = content.index(b"ISFT") + 8
    (tmp_path / "latin.avi").write_bytes(content[:at] + b"M\xfcller" + content[at + 6 :])
    with pytest.raises(UnicodeDecodeError):
        av.open(str(tmp_path / "latin.avi"))
    assert frames(tmp_path / "latin.avi") == estimated_frames(tmp_path / "latin.avi") == 40


def test_an_avi_with_a_frame_less_than_its_header_says_is_whole(tmp_path: Path, encode: Callable[..., Path]) -> None:
    content = bytearray(encode(tmp_path / "a.avi", moving(39), codec="mpeg4").read_bytes())
    struct.pack_into("<I", content, content.index(b"avih") + 8 + 16, 40)
    struct.pack_into("<I", content, content.index(b"strh") + 8 + 32, 40)
    (tmp_path / "b.avi").write_bytes(content)
    assert frames(tmp_path / "b.avi") == 39


@pytest.mark.parametrize(
    "magic", [b"OggS", b"GIF89a", b"YUV4MPEG2 W4 H4\n", b"\0\0\1\xba", b"FLV\1", b"\x47" + bytes(187)]
)
def test_random_bytes_behind_known_magic_neither_hang_nor_raise(tmp_path: Path, magic: bytes) -> None:
    random = np.random.default_rng(0)
    for size in (0, 1, 20, 300, 3000):
        (tmp_path / "x").write_bytes(magic + random.bytes(size))
        broken_off(tmp_path / "x")
