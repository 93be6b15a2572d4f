"""Frames of videos as small pictures: decoded, made as small as the page has room for, some in one JPEG."""

import io
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import sqrt
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from byov.data.video import DecodingPolicy, FrameReader
from byov.device import usable_cores
from byov.errors import CacheError, VideoError
from byov.progress import NO_PROGRESS, Progress, track
from byov.report.content import Sheet, Unavailable
from byov.report.gallery import Gallery
from byov.report.material import Material
from byov.report.video_files import VideoFiles

LONG_SIDE, AREA = 400, 400 * 300  # pixels of a tile, at most
BYTES_PER_PIXEL = 0.1  # of a JPEG with little to see; what has more is made smaller afterwards
SMALLEST_SCALE = 0.1  # with less there is nothing to see
COLUMNS = 8
QUALITY = 72  # of the JPEG


@dataclass(frozen=True)
class Tiles:
    """Some frames of a video, small."""

    frames: tuple[int, ...]  # rising
    pixels: NDArray[np.uint8]  # (n, height, width, 3)


@dataclass(frozen=True)
class _Wanted:
    path: Path
    frames: tuple[int, ...]
    truncated: bool  # the file breaks off, and its frames up to there were extracted
    area: int  # pixels of a tile, at most


def read_tiles(
    material: Material, gallery: Gallery, files: VideoFiles, picture_bytes: int, progress: Progress = NO_PROGRESS
) -> list[Tiles | Unavailable]:
    """Of each video the frames that the gallery was asked for. Videos are decoded side by side."""
    frames = sum(len(gallery.frames(video)) for video in range(len(material)))
    area = max(min(AREA, int(picture_bytes / frames / BYTES_PER_PIXEL)), 1)
    wanted = [_find(material, gallery.frames(video), files, video, area) for video in range(len(material))]
    with ThreadPoolExecutor(usable_cores()) as pool:
        done = pool.map(lambda one: one if isinstance(one, Unavailable) else _decode(one), wanted)
        return list(track(done, progress, "frames", unit="video", total=len(wanted), brief=True))


def make_sheets(tiles: Sequence[Tiles | Unavailable], picture_bytes: int) -> list[Sheet | Unavailable]:
    """All videos' pictures within so many bytes: where the first try takes more, all tiles are made smaller alike."""
    scale = 1.0
    while True:
        sheets = _sheets(tiles, scale)
        taken = sum(len(row) for sheet in sheets if isinstance(sheet, Sheet) for row in sheet.rows)
        if taken <= picture_bytes or scale < SMALLEST_SCALE:
            return sheets
        scale *= 0.95 * sqrt(picture_bytes / taken)


def _sheets(tiles: Sequence[Tiles | Unavailable], scale: float) -> list[Sheet | Unavailable]:
    def make(one: Tiles | Unavailable) -> Sheet | Unavailable:
        return one if isinstance(one, Unavailable) else sheet_of(one, scale)

    with ThreadPoolExecutor(usable_cores()) as pool:
        return list(pool.map(make, tiles))


def sheet_of(tiles: Tiles, scale: float = 1.0) -> Sheet:
    count, height, width, _ = tiles.pixels.shape
    columns, size = min(COLUMNS, count), (max(1, round(width * scale)), max(1, round(height * scale)))
    rows = [_jpeg(tiles.pixels[first : first + columns], columns, size) for first in range(0, count, columns)]
    return Sheet(tiles.frames, *size, columns, tuple(rows))


def _jpeg(pixels: NDArray[np.uint8], columns: int, size: tuple[int, int]) -> bytes:
    """Tiles side by side; the last row of a video may have fewer and is as wide as the others."""
    picture = Image.new("RGB", (columns * size[0], size[1]))
    for column, tile in enumerate(pixels):
        image = Image.fromarray(tile)
        smaller = image if image.size == size else image.resize(size, Image.Resampling.LANCZOS)
        picture.paste(smaller, (column * size[0], 0))
    encoded = io.BytesIO()
    picture.save(encoded, "JPEG", quality=QUALITY, optimize=True)
    return encoded.getvalue()


def tile_size(width: float, height: float, area: int = AREA) -> tuple[int, int]:
    """Of a frame as it is to be shown: no more than LONG_SIDE and the area, and never larger than the frame.

    >>> tile_size(640, 480), tile_size(640, 640), tile_size(100, 50)
    ((400, 300), (346, 346), (100, 50))
    """
    scale = min(1.0, LONG_SIDE / max(width, height), sqrt(area / (width * height)))
    return max(1, round(width * scale)), max(1, round(height * scale))


def _find(
    material: Material, frames: tuple[int, ...], files: VideoFiles, video: int, area: int
) -> _Wanted | Unavailable:
    try:
        header = material.feature_header(video)
    except CacheError as error:
        return Unavailable(material.without_places(error))
    path = files.find(material.segments[video].video.id, header.provenance)
    return path if isinstance(path, Unavailable) else _Wanted(path, frames, header.truncated, area)


def _decode(wanted: _Wanted) -> Tiles | Unavailable:
    """Decode as far as the last frame that is wanted; all tiles have the size that the first asks for."""
    tiles: list[NDArray[np.uint8]] = []
    first, size = 0, (0, 0)
    # Whether corrupt frames are wanted was decided when the features were extracted.
    policy = DecodingPolicy(on_truncated="keep" if wanted.truncated else "error", on_corrupt="keep")
    reader = FrameReader(wanted.path, policy=policy)
    try:
        for block in reader.blocks():
            for frame in (frame for frame in wanted.frames if first <= frame < first + len(block.pixels)):
                image = Image.fromarray(block.pixels[frame - first])
                size = size if tiles else tile_size(image.width * reader.pixel_aspect, image.height, wanted.area)
                tiles.append(np.asarray(image.resize(size, Image.Resampling.LANCZOS, reducing_gap=3.0)))
            first += len(block.pixels)
            if len(tiles) == len(wanted.frames):
                return Tiles(wanted.frames, np.stack(tiles))
    except (VideoError, OSError) as error:
        return Unavailable(str(error).replace(str(wanted.path), wanted.path.name))
    return Unavailable(f"{wanted.path.name}: {first} frames decoded, frame {wanted.frames[len(tiles)]} is wanted")
