import io
import os
import random
import struct
import tracemalloc
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import av
import pytest

from byov.data import container
from byov.data.container import lacks_moov, missing_bytes

Write = Callable[..., Path]
KINDS = {
    "faststart.mp4": ("libx264", {"movflags": "faststart"}),
    "moov_last.mp4": ("libx264", {}),
    "fragmented.mp4": ("libx264", {"movflags": "frag_keyframe+empty_moov", "frag_duration": "300000"}),
    "whole.mkv": ("libx264", {}),
    "whole.webm": ("libvpx", {}),
    "whole.avi": ("mpeg4", {}),
}


@pytest.fixture(scope="module")
def contents(
    tmp_path_factory: pytest.TempPathFactory, encode: Callable[..., Path], grays: Callable
) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("containers")
    return {
        name: encode(folder / name, grays(20), codec=codec, container_options=options).read_bytes()
        for name, (codec, options) in KINDS.items()
    }


@pytest.fixture
def write(tmp_path: Path) -> Callable[[bytes], Path]:
    def to_file(content: bytes) -> Path:
        path = tmp_path / "file"
        path.write_bytes(content)
        return path

    return to_file


def cuts(path: Path, sizes: Iterable[int]) -> Iterator[int]:
    """Cut the file to each of the sizes, from the largest to the smallest."""
    for size in sorted(sizes, reverse=True):
        os.truncate(path, size)
        yield size


def box(kind: bytes, content: bytes = b"") -> bytes:
    return struct.pack(">I", 8 + len(content)) + kind + content


@pytest.mark.parametrize("name", KINDS)
def test_whole_file_lacks_nothing(name: str, contents: dict[str, bytes], write: Write) -> None:
    assert missing_bytes(write(contents[name])) == 0
    assert not lacks_moov(write(contents[name]))


@pytest.mark.parametrize("name", ["whole.mkv", "whole.webm", "whole.avi"])
def test_every_cut_behind_the_header_is_counted_exactly(name: str, contents: dict[str, bytes], write: Write) -> None:
    content = contents[name]
    path = write(content)
    for size in cuts(path, range(64, len(content), 7)):
        assert missing_bytes(path) == len(content) - size


@pytest.mark.parametrize("name", ["faststart.mp4", "moov_last.mp4", "fragmented.mp4"])
def test_cut_of_an_mp4_counts_to_the_end_of_the_box_it_is_in(
    name: str, contents: dict[str, bytes], write: Write
) -> None:
    content = contents[name]
    starts, position = [], 0
    while position < len(content):
        starts.append(position)
        position += struct.unpack(">I", content[position : position + 4])[0]
    path = write(content)
    for size in cuts(path, range(8, len(content))):
        start = max(each for each in starts if each <= size)
        end = min((each for each in starts if each > size), default=len(content))
        after_moof = content[starts[starts.index(start) - 1] :][4:8] == b"moof"
        if size - start >= 8:
            assert missing_bytes(path) == end - size
        elif not after_moof:  # between two boxes, or too little of the next to tell
            assert missing_bytes(path) == 0
        else:
            assert missing_bytes(path) == 8 - (size - start)


@pytest.mark.parametrize("name", KINDS)
def test_no_cut_raises_or_is_negative(name: str, contents: dict[str, bytes], write: Write) -> None:
    path = write(contents[name])
    for _ in cuts(path, (*range(64), *range(64, len(contents[name]), 13))):
        assert missing_bytes(path) >= 0
        assert lacks_moov(path) in (True, False)


def test_last_mdat_may_run_to_the_end_of_the_file(write: Write) -> None:
    assert missing_bytes(write(box(b"ftyp", b"isom") + struct.pack(">I", 0) + b"mdat" + bytes(100))) == 0


def test_64_bit_box_size(write: Write) -> None:
    head = box(b"ftyp", b"isom") + struct.pack(">I4sQ", 1, b"mdat", 16 + 5_000_000_000)
    assert missing_bytes(write(head + bytes(100))) == 5_000_000_000 - 100


def test_matroska_of_unknown_size_ends_with_its_last_element(
    tmp_path: Path, grays: Callable, encode: Callable[..., Path]
) -> None:
    path = encode(tmp_path / "live.mkv", grays(5), container_options={"live": "1"})
    assert missing_bytes(path) == 0
    whole = path.read_bytes()
    for cut in range(1, 200):
        path.write_bytes(whole[:-cut])
        with av.open(str(path)) as container:
            packets = [packet for packet in container.demux(video=0) if packet.size]
        assert missing_bytes(path) > 0 or len(packets) < 5, cut  # between two elements it cannot be told


class Pipe:
    """A file that cannot go back to fill in a size."""

    def __init__(self) -> None:
        self.buffer = io.BytesIO()

    def write(self, data: bytes) -> int:
        return self.buffer.write(data)


def test_avi_written_to_a_pipe_does_not_say(write: Write, grays: Callable) -> None:
    pipe = Pipe()
    with av.open(pipe, "w", format="avi") as output:
        stream = output.add_stream("mpeg4", rate=10)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        for image in grays(3):
            output.mux(stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
        output.mux(stream.encode())
    content = pipe.buffer.getvalue()
    assert content[:8] == b"RIFF\xff\xff\xff\xff"
    assert missing_bytes(write(content)) == 0


def test_avi_beyond_one_gigabyte_is_a_row_of_chunks(write: Write) -> None:
    first = b"RIFF" + struct.pack("<I", 101) + bytes(101) + b"\0"  # padded to an even size
    second = b"RIFF" + struct.pack("<I", 50) + bytes(50)
    assert missing_bytes(write(first + second)) == 0
    assert missing_bytes(write((first + second)[:-20])) == 20
    assert missing_bytes(write(first[:-30])) == 29


def test_other_formats_do_not_say(write: Write) -> None:
    for content in (b"", b"\x47" + bytes(187), b"text\n" * 20, b"FLV\x01", b"\0\0\1\xb3"):
        assert missing_bytes(write(content)) == 0
        assert not lacks_moov(write(content))


EBML = b"\x1a\x45\xdf\xa3"
SEGMENT = b"\x18\x53\x80\x67"


@pytest.mark.parametrize(
    "content",
    [
        b"abc",
        b"\0\0\0",
        b"RIF",
        b"RIFF",
        b"RIFF\0\0\0\0",
        b"RIFF\xff\xff\xff\xff" * 4,
        b"RIFF\0\0\0\0" * 1000,
        EBML,
        EBML[:3],
        EBML + b"\0" * 20,
        EBML + b"\x01" + b"\xff" * 7,
        EBML + b"\x01" + b"\xff" * 6 + b"\xfe",
        EBML + b"\x01\x7f" + b"\xff" * 6,
        EBML + b"\x80" + SEGMENT,
        EBML + b"\x80" + SEGMENT + b"\x01",
        EBML + b"\x80" + SEGMENT + b"\x01\x7f" + b"\xff" * 6,
        EBML + b"\x80" + SEGMENT + b"\0" * 8,
        EBML + b"\x80" + SEGMENT + b"\xff",
        *(struct.pack(">I", size) + b"ftyp" + b"\xff" * 40 for size in (0, 1, 2, 7, 8, 9, 0x7FFFFFFF, 0xFFFFFFFF)),
        struct.pack(">I", 1) + b"mdat",
        struct.pack(">I4sQ", 1, b"mdat", 0),
        struct.pack(">I4sQ", 1, b"mdat", 2**64 - 1),
        box(b"ftyp") * 2000,
        box(b"ftyp") + struct.pack(">I4sQ", 1, b"mdat", 2**63),
    ],
)
def test_hostile_headers_neither_hang_nor_raise(content: bytes, write: Write) -> None:
    assert missing_bytes(write(content)) >= 0
    assert lacks_moov(write(content)) in (True, False)


def test_random_bytes_behind_known_magic_neither_hang_nor_raise(write: Write) -> None:
    generator = random.Random(0)
    for _ in range(300):
        magic = generator.choice([b"RIFF", EBML, b"\0\0\0\x18ftyp", EBML + b"\x80" + SEGMENT])
        assert missing_bytes(write(magic + generator.randbytes(generator.randrange(60)))) >= 0


def test_a_file_of_many_boxes_is_looked_at_in_little_memory(write: Write) -> None:
    path = write(box(b"ftyp") + box(b"free") * 10_000)
    tracemalloc.start()
    try:
        assert missing_bytes(path) == 0
        assert lacks_moov(path)
        assert tracemalloc.get_traced_memory()[1] < 2**16
    finally:
        tracemalloc.stop()


def test_more_parts_than_any_recording_has_are_left_unread(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(container, "_MOST_PARTS", 5)
    cut = box(b"ftyp") + box(b"free") * 9 + box(b"mdat", bytes(100))[:-7]
    assert missing_bytes(write(cut)) == 0
    monkeypatch.setattr(container, "_MOST_PARTS", 20)
    assert missing_bytes(write(cut)) == 7


def test_mp4_whose_index_was_never_written(contents: dict[str, bytes], write: Write) -> None:
    content = contents["moov_last.mp4"]
    assert lacks_moov(write(content[: content.index(b"moov") - 4]))
    assert not lacks_moov(write(contents["whole.mkv"]))
