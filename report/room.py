"""How much of the split fits into a page of so many bytes: frames of each video, and bytes of a picture."""

from collections.abc import Sequence
from dataclasses import dataclass

from byov.report.spread import evenly

MOST_MOMENTS, FEWEST_MOMENTS = 100, 8  # of a video
SMALLEST_TILE_BYTES = 2500  # about 180 x 135 pixels: with less there is little to see
REST_BYTES = 1_200_000  # of all but pictures and embeddings, on a page of many videos
BASE64 = 4 / 3  # characters of the page for a byte


@dataclass(frozen=True)
class Room:
    moments: int  # of a video, at most
    picture_bytes: int  # of all videos, as JPEG


def divide(lengths: Sequence[int], width: int, runs: int, page_bytes: int) -> Room:
    """lengths: frames of each video. width: of an embedding, one byte for each number."""
    whole = max(int((page_bytes - REST_BYTES) / BASE64), 0)
    for most in range(MOST_MOMENTS, FEWEST_MOMENTS, -1):
        tiles = sum(min(length, most) for length in lengths)
        left = whole - tiles * width * runs
        if left >= tiles * SMALLEST_TILE_BYTES:
            break
    return Room(most, max(left, 0))


def moments(length: int, room: Room) -> tuple[int, ...]:
    """The frames of a video that the page knows, evenly spread."""
    return evenly(length, room.moments)
