"""Is a video file all there? Its container says how long it should be.

Decoders are forgiving: of a file that was cut off they give the frames that are left and then report a normal end.
Containers are strict: MP4 boxes, Matroska segments and RIFF chunks state their sizes. Streams without such sizes
(MPEG-TS, live Matroska) have no length to fall short of.
"""

from pathlib import Path
from typing import BinaryIO

_EBML_MAGIC = b"\x1a\x45\xdf\xa3"
_MAX_EBML_HEADER = 1 << 20  # it has some 40 bytes
_SEGMENT_ID = b"\x18\x53\x80\x67"


def missing_bytes(path: Path) -> int:
    """How many bytes the file lacks by its container's own account; 0 if whole or if it does not say."""
    actual = path.stat().st_size
    with path.open("rb") as file:
        magic = file.read(12)
        file.seek(0)
        if magic[4:8] in (b"ftyp", b"moov", b"mdat", b"free", b"wide", b"skip"):
            declared = _mp4_end(file, actual)
        elif magic[:4] == _EBML_MAGIC:
            declared = _matroska_end(file)
        elif magic[:4] == b"RIFF":
            declared = _riff_end(file, actual)
        else:
            declared = 0
    return max(0, declared - actual)


def lacks_moov(path: Path) -> bool:
    """Is this an MP4 whose index, usually written last, is absent?"""
    size = path.stat().st_size
    with path.open("rb") as file:
        kinds = [kind for kind, _ in _mp4_boxes(file, size)]
    return bool(kinds) and kinds[0] == b"ftyp" and b"moov" not in kinds


def _mp4_boxes(file: BinaryIO, file_bytes: int) -> list[tuple[bytes, int]]:
    """Top-level boxes: (kind, end)."""
    boxes = []
    position = 0
    while position + 8 <= file_bytes:
        file.seek(position)
        head = file.read(16)
        size = int.from_bytes(head[:4], "big")
        if size == 1 and len(head) == 16:
            size = int.from_bytes(head[8:16], "big")
        elif size == 0:  # to the end of the file
            size = file_bytes - position
        if size < 8:
            break
        boxes.append((head[4:8], position + size))
        position += size
    return boxes


def _mp4_end(file: BinaryIO, file_bytes: int) -> int:
    boxes = _mp4_boxes(file, file_bytes)
    if not boxes:
        return 0
    kind, end = boxes[-1]
    return end + 8 if kind == b"moof" and end <= file_bytes else end  # its mdat is to follow


def _riff_end(file: BinaryIO, file_bytes: int) -> int:
    """AVI beyond 1 GB is a row of RIFF chunks."""
    position = end = 0
    while position + 8 <= file_bytes:
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


def _matroska_end(file: BinaryIO) -> int:
    """The end of the segment that follows the EBML header; 0 if of unknown size."""
    file.seek(4)
    header_bytes = _ebml_size(file)
    if header_bytes is None or header_bytes > _MAX_EBML_HEADER:
        return 0
    file.seek(header_bytes, 1)
    if file.read(4) != _SEGMENT_ID:
        return 0
    segment_bytes = _ebml_size(file)
    return 0 if segment_bytes is None else file.tell() + segment_bytes


def _ebml_size(file: BinaryIO) -> int | None:
    """A variable-length size; None if it is absent or says "unknown"."""
    first = file.read(1)
    if not first or not first[0]:
        return None
    length = 9 - first[0].bit_length()
    rest = file.read(length - 1)
    payload_bits = 7 * length
    value = int.from_bytes(first + rest, "big") & ((1 << payload_bits) - 1)
    return None if value == (1 << payload_bits) - 1 else value
