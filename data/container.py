"""Is a video file all there? Its container says how long it should be, or how it ends.

Decoders are forgiving: of a file that was cut off they give the frames that are left and then report a normal end.
Containers are strict: MP4 boxes, Matroska segments, RIFF chunks and ASF objects state their sizes, the packets of
MPEG-TS and the frames of Y4M are all of one size, and Ogg, GIF and MXF have an end of their own. A cut right between
two packets of a stream without such an end (MPEG-TS, MPEG-PS, live Matroska, raw H.264, Y4M) cannot be told.
"""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

EBML_MAGIC = b"\x1a\x45\xdf\xa3"
_MAX_EBML_HEADER = 1 << 20  # it has some 40 bytes
_SEGMENT_ID, _CLUSTER_ID = b"\x18\x53\x80\x67", b"\x1f\x43\xb6\x75"
_MOST_PARTS = 2_000_000  # boxes, chunks, elements or frames of a file that are looked at: ten hours of a live recording
_TS_PACKETS = (188, 192, 204)  # bytes: plain, with a time code, with error correction
_ASF_MAGIC = bytes.fromhex("3026b2758e66cf11a6d900aa0062ce6c")
_ASF_FILE_PROPERTIES = bytes.fromhex("a1dcab8c47a9cf118ee400c00c205365")
_MXF_PARTITION = bytes.fromhex("060e2b34020501010d01020101")
_TAIL_BYTES = 1 << 17  # an Ogg page has at most 65,307, a packet of MPEG-PS 65,541


def missing_bytes(path: Path) -> int:
    """How many bytes the file lacks by its container's own account; 0 if whole or if it does not say."""
    actual = path.stat().st_size
    with path.open("rb") as file:
        magic = file.read(16)
        file.seek(0)
        return max(0, _declared_end(magic)(file, actual) - actual)


def lacks_end(path: Path) -> str:
    """What the file should end with and does not, by its kind; "" if it does, or if its kind has no such end."""
    size = path.stat().st_size
    with path.open("rb") as file:
        magic = file.read(16)
        file.seek(max(0, size - _TAIL_BYTES))
        tail = file.read(_TAIL_BYTES)
        if magic[:4] == b"OggS" and not _ogg_ends(tail):
            return "its last Ogg page is not there"
        if magic[:6] in (b"GIF87a", b"GIF89a") and tail.rstrip(b"\0")[-1:] != b";":
            return "its GIF trailer is not there"
        if magic[:13] == _MXF_PARTITION and not _mxf_ends(file, size):
            return "its MXF footer is not there"
        if magic[:4] == b"FLV\1" and not _flv_ends(tail):
            return "its last FLV tag is not whole"
    return ""


def broken_off(path: Path) -> str:
    """Why the file cannot be whole, by its container's own account; "" if it is, or if that cannot be told."""
    lacking = missing_bytes(path)
    return f"the file is {lacking} bytes short" if lacking else lacks_end(path)


def _declared_end(magic: bytes) -> Callable[[BinaryIO, int], int]:
    """What reads the end of a file, as it should be, from its container."""
    if magic[4:8] in (b"ftyp", b"moov", b"mdat", b"free", b"wide", b"skip"):
        return _mp4_end
    if magic[:4] == EBML_MAGIC:
        return _matroska_end
    if magic[:4] == b"RIFF":
        return _riff_end
    if magic == _ASF_MAGIC:
        return _asf_end
    if magic[:10] == b"YUV4MPEG2 ":
        return _y4m_end
    if magic[:4] == b"\0\0\1\xba":
        return _program_stream_end
    if magic[:4] == b"DKIF":
        return _ivf_end
    return _transport_stream_end


def lacks_moov(path: Path) -> bool:
    """Is this an MP4 whose index, usually written last, is absent?"""
    size = path.stat().st_size
    with path.open("rb") as file:
        kinds = (kind for kind, _ in _mp4_boxes(file, size))
        return next(kinds, b"") == b"ftyp" and b"moov" not in kinds


def _mp4_boxes(file: BinaryIO, file_bytes: int) -> Iterator[tuple[bytes, int]]:
    """Top-level boxes: (kind, end)."""
    position = 0
    for _ in range(_MOST_PARTS):
        if position + 8 > file_bytes:
            return
        file.seek(position)
        head = file.read(16)
        size = int.from_bytes(head[:4], "big")
        if size == 1 and len(head) == 16:
            size = int.from_bytes(head[8:16], "big")
        elif size == 0:  # to the end of the file
            size = file_bytes - position
        if size < 8:
            return
        position += size
        yield head[4:8], position


def _mp4_end(file: BinaryIO, file_bytes: int) -> int:
    kind, end = b"", 0
    for kind, end in _mp4_boxes(file, file_bytes):  # noqa: B007
        pass
    return end + 8 if kind == b"moof" and end <= file_bytes else end  # its mdat is to follow


def _riff_end(file: BinaryIO, file_bytes: int) -> int:
    """AVI beyond 1 GB is a row of RIFF chunks."""
    position = end = 0
    for _ in range(_MOST_PARTS):
        if position + 8 > file_bytes:
            break
        file.seek(position)
        head = file.read(8)
        if head[:4] != b"RIFF":
            break
        size = int.from_bytes(head[4:], "little")
        if size == 0xFFFFFFFF:  # written to a pipe: unknown
            return end
        end = position + 8 + size
        position = end + end % 2
    return end


def _matroska_end(file: BinaryIO, file_bytes: int) -> int:
    """The end of the segment that follows the EBML header; of one of unknown size, of its last element."""
    if not enter_segment(file):
        return 0
    segment_bytes = read_size(file)
    return _last_element_end(file, file_bytes) if segment_bytes is None else file.tell() + segment_bytes


def enter_segment(file: BinaryIO) -> bool:
    """Go to the size of a Matroska file's segment, if it has one behind its header."""
    file.seek(4)
    header_bytes = read_size(file)
    if header_bytes is None or header_bytes > _MAX_EBML_HEADER:
        return False
    file.seek(header_bytes, 1)
    return file.read(4) == _SEGMENT_ID


def elements(file: BinaryIO, file_bytes: int) -> Iterator[tuple[bytes, int, int | None]]:
    """Element by element from here on: (name, first byte of its content, end). Clusters of unknown size are entered.

    An end of None, or a name of b"": not as we understand it, and the last.
    """
    position = file.tell()
    for _ in range(_MOST_PARTS):
        if position >= file_bytes:
            return
        file.seek(position)
        start = file.read(1)
        if not start[0]:  # no element begins like that
            yield b"", position, None
            return
        name = start + file.read(8 - start[0].bit_length())
        size = read_size(file)
        first = file.tell()
        if size is None and name != _CLUSTER_ID:
            yield name, first, None
            return
        position = first + (size or 0)
        yield name, first, position


def _last_element_end(file: BinaryIO, file_bytes: int) -> int:
    last = file.tell()
    for name, first, end in elements(file, file_bytes):
        if end is None:
            # Cut amid a size, if there is nothing behind it.
            return file_bytes + 1 if name and first >= file_bytes else 0
        last = end
    return last


def _asf_end(file: BinaryIO, file_bytes: int) -> int:  # noqa: ARG001
    """As its file properties say, unless it was written while it was sent."""
    head = file.read(1 << 16)
    at = head.find(_ASF_FILE_PROPERTIES)
    properties = head[at + 24 : at + 92]
    if at < 0 or len(properties) < 68 or properties[64] & 1:  # broadcast: the size is not valid
        return 0
    return int.from_bytes(properties[16:24], "little")


def _y4m_end(file: BinaryIO, file_bytes: int) -> int:
    """The end of its last frame; all frames are of one size."""
    head = file.read(1024)
    line = head.partition(b"\n")[0].decode("ascii", "replace")
    width, height, colors = (re.search(rf" {letter}(\S+)", line) for letter in "WHC")
    if width is None or height is None or not (width[1].isdecimal() and height[1].isdecimal()):
        return 0
    frame_bytes = _y4m_frame_bytes(int(width[1]), int(height[1]), colors[1] if colors else "420")
    marked = head[len(line) + 1 :].partition(b"\n")[0]
    if not frame_bytes or marked != b"FRAME":  # frames with words of their own, of any length
        return 0
    frame_bytes += len(b"FRAME\n")
    frames = -(-(file_bytes - len(line) - 1) // frame_bytes)
    return len(line) + 1 + frames * frame_bytes


def _y4m_frame_bytes(width: int, height: int, colors: str) -> int:
    """0 of kinds that are not known here."""
    kind, _, depth = colors.partition("p")
    half = (width + 1) // 2
    chroma = {"mono": 0, "420": half * ((height + 1) // 2), "422": half * height, "444": width * height}
    kind = "420" if colors.startswith("420") and not depth.isdecimal() else kind  # 420jpeg, 420paldv, ...
    if kind not in chroma or (depth and depth.isdecimal() and int(depth) not in (9, 10, 12, 14, 16)):
        return 0
    return (width * height + 2 * chroma[kind]) * (2 if depth.isdecimal() else 1)


def _transport_stream_end(file: BinaryIO, file_bytes: int) -> int:
    """The end of its last packet, if it is a row of packets."""
    head = file.read(4 * max(_TS_PACKETS))
    for size in _TS_PACKETS:
        first = 4 if size == 192 else 0
        if len(head) >= 3 * size and all(head[first + index * size] == 0x47 for index in range(3)):
            return -(-file_bytes // size) * size
    return 0


def _program_stream_end(file: BinaryIO, file_bytes: int) -> int:
    """The end of its last packet, which says its length."""
    start = max(0, file_bytes - _TAIL_BYTES)
    file.seek(start)
    tail = file.read(_TAIL_BYTES)
    end = 0
    for found in re.finditer(rb"\x00\x00\x01([\xbb-\xef])(..)", tail, re.DOTALL):
        if start + found.start() >= end:  # else it is within the packet before
            end = start + found.end() + int.from_bytes(found[2], "big")
    return end


def _ivf_end(file: BinaryIO, file_bytes: int) -> int:
    """The end of its last frame, which says its length."""
    position = 32
    for _ in range(_MOST_PARTS):
        if position >= file_bytes:
            return position
        file.seek(position)
        position += 12 + int.from_bytes(file.read(4), "little")
    return 0


def _ogg_ends(tail: bytes) -> bool:
    """Is the last page whole, and marked as the last of its stream?"""
    at = tail.rfind(b"OggS")
    if at < 0 or len(tail) < at + 27 or not tail[at + 5] & 4:
        return False
    segments = tail[at + 26]
    table = tail[at + 27 : at + 27 + segments]
    return len(table) == segments and len(tail) >= at + 27 + segments + sum(table)


def _flv_ends(tail: bytes) -> bool:
    """Behind each tag is its size, which it says itself too."""
    tag_bytes = int.from_bytes(tail[-4:], "big")
    if tag_bytes > len(tail) - 4:
        return tag_bytes < 1 << 24  # a tag longer than what was read
    tag = tail[-4 - tag_bytes :]
    return tag_bytes == 0 or int.from_bytes(tag[1:4], "big") + 11 == tag_bytes


def _mxf_ends(file: BinaryIO, file_bytes: int) -> bool:
    """Is the footer there, where the header says it is? A header that does not say is of an unfinished recording."""
    file.seek(0)
    head = file.read(64)
    length_bytes = 1 + (head[16] & 0x7F if head[16] & 0x80 else 0) if len(head) == 64 else 64
    fields = head[16 + length_bytes :]
    footer = int.from_bytes(fields[24:32], "big")
    if len(fields) < 32 or not 0 < footer < file_bytes:
        return False
    file.seek(footer)
    return file.read(13) == _MXF_PARTITION


def read_size(file: BinaryIO) -> int | None:
    """A variable-length size; None if it is absent or says "unknown"."""
    first = file.read(1)
    if not first or not first[0]:
        return None
    length = 9 - first[0].bit_length()
    rest = file.read(length - 1)
    payload_bits = 7 * length
    value = int.from_bytes(first + rest, "big") & ((1 << payload_bits) - 1)
    return None if value == (1 << payload_bits) - 1 else value
