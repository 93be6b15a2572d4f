"""Thumbnails of video frames: find the source files, decode the frames and pack them into JPEG sheets."""

import io
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from math import sqrt
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from byov.cache.digests import fingerprint, segment_digest
from byov.cache.features import Provenance
from byov.cache.manifest import read_sources
from byov.data.dataset import WHOLE_FILE, FileSegment, parse_source
from byov.data.video import DecodingPolicy, FrameReader
from byov.device import usable_cores
from byov.errors import CacheError, VideoError
from byov.progress import NO_PROGRESS, Progress, track
from byov.report.content import Sheet, Unavailable

MAX_SIDE, MAX_AREA = 400, 400 * 300  # pixels of a tile
BYTES_PER_PIXEL = 0.1  # lower estimate for a JPEG; sheets that turn out larger are scaled down
MIN_SCALE = 0.1
COLUMNS = 8
QUALITY = 72  # JPEG


class SourceVideos:
    """The video files of a dataset, searched recursively in a folder first, then where the feature cache says."""

    def __init__(self, dataset_folder: Path, search_folder: Path | None = None) -> None:
        self._by_name: dict[str, list[Path]] = {}
        for path in sorted(search_folder.rglob("*")) if search_folder is not None else ():
            self._by_name.setdefault(path.name, []).append(path)
        self._recorded: dict[str, Path] = {}
        with suppress(CacheError):
            self._recorded.update(read_sources(dataset_folder))

    def find(self, video_id: str, provenance: Provenance) -> Path:
        """Return the file of a video, verified by size and fingerprint; raise CacheError if there is none."""
        name, segment = parse_source(provenance.source_name)
        problem = "was not found. Pass its folder with --videos."
        recorded = [self._recorded[video_id]] if video_id in self._recorded else []
        for path in self._by_name.get(name, []) + recorded:
            with suppress(OSError):  # not readable, or not a valid name on this system
                same_size = path.stat().st_size == provenance.source_bytes
                found = segment_digest(fingerprint(path), segment.fragment)
                if same_size and found == provenance.source_fingerprint:
                    return path
                problem = "has changed since it was extracted. Extract it again with byov-extract."
        raise CacheError(f"{name} {problem}")


@dataclass(frozen=True)
class TileRequest:
    """Frames of a video file to decode."""

    path: Path
    frames: tuple[int, ...]  # ascending
    truncated: bool  # the features were extracted from a truncated file
    segment: FileSegment = WHOLE_FILE  # frames are counted from its start


@dataclass(frozen=True)
class Tiles:
    """Decoded, downscaled frames of a video."""

    frames: tuple[int, ...]
    pixels: NDArray[np.uint8]  # (n, height, width, 3)


def read_tiles(
    requests: Sequence[TileRequest | Unavailable], picture_bytes: int, progress: Progress = NO_PROGRESS
) -> list[Tiles | Unavailable]:
    """Decode the frames of several videos in parallel, at a size that should fit `picture_bytes` as JPEG."""
    frames = sum(len(request.frames) for request in requests if request)
    area = max(min(MAX_AREA, int(picture_bytes / max(frames, 1) / BYTES_PER_PIXEL)), 1)
    with ThreadPoolExecutor(usable_cores()) as pool:
        done = pool.map(lambda request: request and decode_tiles(request, area), requests)
        return list(track(done, progress, "frames", unit="video", total=len(requests), brief=True))


def decode_tiles(request: TileRequest, area: int = MAX_AREA) -> Tiles | Unavailable:
    """Decode the requested frames and scale all of them to the tile size of the first."""
    tiles: list[NDArray[np.uint8]] = []
    first, size = 0, (0, 0)
    # Extraction has already decided whether to accept corrupt frames.
    policy = DecodingPolicy(on_truncated="keep" if request.truncated else "error", on_corrupt="keep")
    reader = FrameReader(request.path, segment=request.segment, policy=policy)
    try:
        for block in reader.blocks():
            for frame in (frame for frame in request.frames if first <= frame < first + len(block.pixels)):
                image = Image.fromarray(block.pixels[frame - first])
                size = size if tiles else tile_size(image.width * reader.pixel_aspect, image.height, area)
                tiles.append(np.asarray(image.resize(size, Image.Resampling.LANCZOS, reducing_gap=3.0)))
            first += len(block.pixels)
            if len(tiles) == len(request.frames):
                return Tiles(request.frames, np.stack(tiles))
    except (VideoError, OSError) as error:
        return Unavailable(str(error).replace(str(request.path), request.path.name))
    return Unavailable(f"{request.path.name} has {first} frames, but frame {request.frames[len(tiles)]} is needed.")


def tile_size(width: float, height: float, area: int = MAX_AREA) -> tuple[int, int]:
    """Return the size of a tile: at most MAX_SIDE and `area`, and not larger than the frame.

    >>> tile_size(640, 480), tile_size(640, 640), tile_size(100, 50)
    ((400, 300), (346, 346), (100, 50))
    """
    scale = min(1.0, MAX_SIDE / max(width, height), sqrt(area / (width * height)))
    return max(1, round(width * scale)), max(1, round(height * scale))


def make_sheets(tiles: Sequence[Tiles | Unavailable], picture_bytes: int) -> list[Sheet | Unavailable]:
    """Pack all tiles into JPEG sheets of at most `picture_bytes` in total, scaled down uniformly if necessary."""
    scale = 1.0
    while True:
        with ThreadPoolExecutor(usable_cores()) as pool:
            sheets = list(pool.map(lambda one, by=scale: one and make_sheet(one, by), tiles))
        total = sum(len(row) for sheet in sheets if sheet for row in sheet.rows)
        if total <= picture_bytes or scale < MIN_SCALE:
            return sheets
        scale *= 0.95 * sqrt(picture_bytes / total)


def make_sheet(tiles: Tiles, scale: float = 1.0) -> Sheet:
    """Pack the tiles of a video into rows of at most COLUMNS; an incomplete last row is padded."""
    count, height, width, _ = tiles.pixels.shape
    size = max(1, round(width * scale)), max(1, round(height * scale))
    columns, rows = min(COLUMNS, count), []
    for first in range(0, count, columns):
        picture = Image.new("RGB", (columns * size[0], size[1]))
        for column, tile in enumerate(tiles.pixels[first : first + columns]):
            picture.paste(Image.fromarray(tile).resize(size, Image.Resampling.LANCZOS), (column * size[0], 0))
        rows.append(jpeg_bytes(picture, QUALITY))
    return Sheet(tiles.frames, *size, columns, tuple(rows))


def jpeg_bytes(picture: Image.Image, quality: int) -> bytes:
    encoded = io.BytesIO()
    picture.save(encoded, "JPEG", quality=quality, optimize=True)
    return encoded.getvalue()
