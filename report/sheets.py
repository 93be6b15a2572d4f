"""Frames of videos as small pictures: decoded, made small, and put side by side into one JPEG per video."""

import io
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import sqrt
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from byov.data.video import FrameReader, usable_cores
from byov.errors import CacheError, VideoError
from byov.progress import SILENT, Progress, track
from byov.report.content import Sheet, Unavailable
from byov.report.gallery import Gallery
from byov.report.material import Material
from byov.report.video_files import VideoFiles

LONG_SIDE, AREA = 256, 256 * 192  # pixels of a tile, at most
COLUMNS = 10
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


def read_tiles(
    material: Material, gallery: Gallery, files: VideoFiles, progress: Progress = SILENT
) -> dict[int, Tiles | Unavailable]:
    """By index in the split: the frames that the gallery was asked for. Videos are decoded side by side."""
    wanted = {video: _find(material, gallery, files, video) for video in gallery.videos}
    with ThreadPoolExecutor(usable_cores()) as pool:
        done = pool.map(lambda one: one if isinstance(one, Unavailable) else _decode(one), wanted.values())
        decoded = track(done, progress, "frames", unit="video", total=len(wanted), brief=True)
        return dict(zip(wanted, decoded, strict=True))


def sheet_of(tiles: Tiles) -> Sheet:
    count, height, width, _ = tiles.pixels.shape
    columns = min(COLUMNS, count)
    picture = np.zeros((-(-count // columns) * height, columns * width, 3), np.uint8)
    for index, pixels in enumerate(tiles.pixels):
        top, left = index // columns * height, index % columns * width
        picture[top : top + height, left : left + width] = pixels
    encoded = io.BytesIO()
    Image.fromarray(picture).save(encoded, "JPEG", quality=QUALITY)
    return Sheet(tiles.frames, width, height, columns, encoded.getvalue())


def tile_size(width: float, height: float) -> tuple[int, int]:
    """Of a frame as it is to be shown: no more than LONG_SIDE and AREA, and never larger than the frame.

    >>> tile_size(640, 480), tile_size(640, 640), tile_size(100, 50)
    ((256, 192), (222, 222), (100, 50))
    """
    scale = min(1.0, LONG_SIDE / max(width, height), sqrt(AREA / (width * height)))
    return max(1, round(width * scale)), max(1, round(height * scale))


def _find(material: Material, gallery: Gallery, files: VideoFiles, video: int) -> _Wanted | Unavailable:
    try:
        header = material.feature_header(video)
    except CacheError as error:
        return Unavailable(material.without_places(error))
    path = files.find(material.segments[video].video.id, header.provenance)
    return path if isinstance(path, Unavailable) else _Wanted(path, gallery.frames(video), header.truncated)


def _decode(wanted: _Wanted) -> Tiles | Unavailable:
    """Decode as far as the last frame that is wanted; all tiles have the size that the first asks for."""
    tiles: list[NDArray[np.uint8]] = []
    first, size = 0, (0, 0)
    reader = FrameReader(wanted.path, on_truncated="keep" if wanted.truncated else "error")
    try:
        for block in reader.blocks():
            for frame in (frame for frame in wanted.frames if first <= frame < first + len(block.pixels)):
                image = Image.fromarray(block.pixels[frame - first])
                size = size if tiles else tile_size(image.width * reader.pixel_aspect, image.height)
                tiles.append(np.asarray(image.resize(size, Image.Resampling.LANCZOS, reducing_gap=3.0)))
            first += len(block.pixels)
            if len(tiles) == len(wanted.frames):
                return Tiles(wanted.frames, np.stack(tiles))
    except (VideoError, OSError) as error:
        return Unavailable(str(error).replace(str(wanted.path), wanted.path.name))
    return Unavailable(f"{wanted.path.name}: {first} frames decoded, frame {wanted.frames[len(tiles)]} is wanted")
