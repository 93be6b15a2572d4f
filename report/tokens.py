"""What selective token merging keeps of a frame: the patches that change most, at each ratio."""

from collections.abc import Sequence
from math import isqrt

import numpy as np
from numpy.typing import NDArray

from byov.cache.hdf5 import read_array
from byov.cache.layout import selected_tokens
from byov.errors import CacheError
from byov.report.content import TokenClip, Unavailable
from byov.report.gallery import Gallery
from byov.report.material import Material
from byov.report.sheets import Tiles
from byov.report.spread import centers

RATIOS = (0.1, 0.2, 0.3, 0.4, 0.5, 1.0)
FRAMES = 5
DARK = 0.15  # brightness of what is excluded


def choose_token_videos(material: Material, gallery: Gallery) -> list[int]:
    """The first video of each view; returns them."""
    chosen = [video for view in ("ego", "exo") for video in material.of_view(view)[:1]]
    for video in chosen:
        gallery.show(video, centers(material.length(video), FRAMES))
    return chosen


def token_clips(
    material: Material, chosen: list[int], tiles: Sequence[Tiles | Unavailable]
) -> tuple[TokenClip, ...] | Unavailable:
    """Of the videos that can be seen."""
    clips = [_clip(material, video, tiles[video]) for video in chosen]
    there = tuple(clip for clip in clips if isinstance(clip, TokenClip))
    return there or next(clip for clip in clips if isinstance(clip, Unavailable))


def selected_patches(order: NDArray[np.uint16], ratio: float) -> NDArray[np.bool_]:
    """(N,) tokens by falling change → (side, side) which of the patches a ratio selects."""
    side = isqrt(len(order))
    selected = np.zeros(len(order), np.bool_)
    selected[order[: selected_tokens(len(order), ratio)]] = True
    return selected.reshape(side, side)


def darkened(pixels: NDArray[np.uint8], patches: NDArray[np.bool_], *, cropped: bool) -> NDArray[np.uint8]:
    """(H, W, 3), all but the selected patches dark. Patches cover the whole frame, or its middle square."""
    height, width = pixels.shape[:2]
    rows, columns = _patch_of_pixels(height, width, len(patches), cropped=cropped)
    framed = np.pad(patches, 1)  # what no patch covers is excluded
    bright = framed[np.ix_(rows + 1, columns + 1)][..., None]
    return np.where(bright, pixels, np.round(pixels * DARK)).astype(np.uint8)


def _patch_of_pixels(
    height: int, width: int, side: int, *, cropped: bool
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(H,) and (W,) the row and the column of patches that a pixel belongs to; -1 before the first, `side` behind."""

    def along(length: int) -> NDArray[np.int64]:
        covered = min(height, width) if cropped else length
        centre_of_pixel = np.arange(length) + 0.5 - (length - covered) / 2
        return np.clip(np.floor(centre_of_pixel / covered * side), -1, side).astype(np.int64)

    return along(height), along(width)


def _clip(material: Material, video: int, tiles: Tiles | Unavailable) -> TokenClip | Unavailable:
    if isinstance(tiles, Unavailable):
        return tiles
    try:
        header = material.feature_header(video)
        order = read_array(header.path, "order")
    except CacheError as error:
        return Unavailable(material.without_places(error))
    tokens, name = order.shape[1], material.segments[video].name
    if not tokens or isqrt(tokens) ** 2 != tokens:
        return Unavailable(f"{name}: {tokens} tokens a frame are not a square of patches")
    if order.max() >= tokens:
        return Unavailable(f"{name}: token {order.max()} of {tokens}; extract it again with byov-extract")
    cropped = header.provenance.preprocessing.startswith("crop")
    frames = centers(material.length(video), FRAMES)
    pixels = [tiles.pixels[tiles.frames.index(frame)] for frame in frames]
    pictures = [
        [
            darkened(image, selected_patches(order[frame], ratio), cropped=cropped)
            for frame, image in zip(frames, pixels, strict=True)
        ]
        for ratio in RATIOS
    ]
    return TokenClip(video, frames, RATIOS, np.array(pictures))
