"""Panels of side-by-side videos: frames of one size, with captions."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont, ImageOps

from byov.data.video import DecodingPolicy, FrameReader
from byov.device import usable_cores
from byov.errors import ApplyError

# Limits of a panel's aspect ratio; frames outside them are padded with black.
MIN_ASPECT = 0.5
MAX_ASPECT = 4.0


def read_panels(
    path: Path, frames: int, height: int, policy: DecodingPolicy
) -> Iterator[Image.Image]:
    """Decode a video of exactly `frames` frames and fit them into panels with the first frame's
    aspect ratio.
    """
    count = 0
    size = None
    reader = FrameReader(path, threads=usable_cores(), policy=policy)
    for block in reader.blocks():
        for pixels in block.pixels:
            image = Image.fromarray(pixels)
            if reader.pixel_aspect != 1:
                image = image.resize(
                    (max(1, round(image.width * reader.pixel_aspect)), image.height)
                )
            if size is None:  # choose an even width, as H.264 requires
                aspect = min(max(image.width / image.height, MIN_ASPECT), MAX_ASPECT)
                size = 2 * round(height * aspect / 2), height
            count += 1
            yield ImageOps.pad(image, size)
    if count != frames:
        raise ApplyError(f"{path} has changed: it had {frames} frames and now has {count}.")


def draw_captions(image: Image.Image, captions: Sequence[tuple[int, str]]) -> None:
    """Darken the bottom of an image and write captions on it, given as (left edge in pixels,
    text).
    """
    width, height = image.size
    font_size = max(9, height // 20)
    band_height = min(height, 2 * font_size)
    band = (0, height - band_height, width, height)
    image.paste(image.crop(band).point(lambda value: value // 3), band)
    draw = ImageDraw.Draw(image)
    for left, text in captions:
        position = (left + band_height // 2, height - band_height // 2)
        draw.text(position, text, "white", ImageFont.load_default(font_size), anchor="lm")
