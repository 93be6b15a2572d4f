"""Does a video file match the checksums that its container has? FFmpeg reads on in silence where it does not.

Elements of Matroska may have one (FFmpeg writes them, not into WebM), and all pages of Ogg. Other containers have none
of their pictures.
"""

import zlib
from pathlib import Path
from typing import BinaryIO

from byov.data.container import EBML_MAGIC, elements, enter_segment, read_size

# What frames and times come from: track headers, the time scale, and the pictures.
_NEEDED = {bytes.fromhex("1549a966"): "Info", bytes.fromhex("1654ae6b"): "Tracks", bytes.fromhex("1f43b675"): "Cluster"}
_CRC_32 = b"\xbf\x84"  # the first child of an element, of four bytes
_BLOCK_BYTES = 1 << 20
_PAGE_HEAD_BYTES = 27  # and as many more as its last byte says
_REVERSED = bytes(int(f"{byte:08b}"[::-1], 2) for byte in range(256))
_ALL_ONES = 0xFFFFFFFF


def mismatch(path: Path) -> str:
    """What does not match its checksum, and where; "" if all does that is there as a whole, or if there are none."""
    size = path.stat().st_size
    with path.open("rb") as file:
        magic = file.read(4)
        file.seek(0)
        if magic == EBML_MAGIC:
            return _matroska_mismatch(file, size)
        return _ogg_mismatch(file, size) if magic == b"OggS" else ""


def _matroska_mismatch(file: BinaryIO, file_bytes: int) -> str:
    if not enter_segment(file):
        return ""
    read_size(file)
    for name, first, end in elements(file, file_bytes):
        if name not in _NEEDED or end is None or end > file_bytes:
            continue
        file.seek(first)
        head = file.read(6)
        if head[:2] == _CRC_32 and _crc(file, end - first - 6) != int.from_bytes(head[2:], "little"):
            return f"the checksum of its {_NEEDED[name]} at byte {first} does not match"
    return ""


def _crc(file: BinaryIO, count: int) -> int:
    crc = 0
    while count > 0 and (block := file.read(min(count, _BLOCK_BYTES))):
        crc = zlib.crc32(block, crc)
        count -= len(block)
    return crc


def _ogg_mismatch(file: BinaryIO, file_bytes: int) -> str:
    position = 0
    while position + _PAGE_HEAD_BYTES <= file_bytes:
        file.seek(position)
        head = file.read(_PAGE_HEAD_BYTES)
        table = file.read(head[26])
        content = file.read(sum(table))
        is_cut = len(content) < sum(table) and b"OggS" not in content  # what says so is in container.py
        if is_cut:
            return ""
        crc = _ogg_crc(head[:22] + bytes(4) + head[26:] + table + content)
        if head[:4] != b"OggS" or crc != int.from_bytes(head[22:26], "little"):
            return f"the checksum of its page at byte {position} does not match"
        position += len(head) + len(table) + len(content)
    return ""


def _ogg_crc(page: bytes) -> int:
    """The same polynomial as zlib's, but bits in the other order, and from zero."""
    crc = zlib.crc32(page.translate(_REVERSED), _ALL_ONES) ^ _ALL_ONES
    return int(f"{crc:032b}"[::-1], 2)
