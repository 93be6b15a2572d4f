"""Side-by-side videos: panels of one size with captions, written as H.264."""

from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
from av.video.reformatter import Colorspace
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont, ImageOps

from byov.cache.atomic import creation, replacing
from byov.data.dataset import WHOLE_FILE, FileSegment
from byov.data.video import WRITTEN_FORMATS, DecodingPolicy, FrameReader
from byov.device import usable_cores
from byov.errors import ApplyError

# Limits of a panel's aspect ratio; frames outside them are padded with black.
MIN_ASPECT = 0.5
MAX_ASPECT = 4.0
TICK = Fraction(1, 90_000)  # seconds; frame durations at common frame rates are multiples of this


def read_panels(
    path: Path,
    frames: int | None,
    height: int,
    policy: DecodingPolicy,
    segment: FileSegment = WHOLE_FILE,
) -> Iterator[Image.Image]:
    """Decode a video, of exactly `frames` frames if given, and fit them into panels with the first
    frame's aspect ratio.
    """
    count = 0
    size = None
    reader = FrameReader(path, segment=segment, threads=usable_cores(), policy=policy)
    for pixels, _ in reader.images():
        image = Image.fromarray(pixels)
        if reader.pixel_aspect != 1:
            image = image.resize((max(1, round(image.width * reader.pixel_aspect)), image.height))
        if size is None:  # choose an even width, as H.264 requires
            aspect = min(max(image.width / image.height, MIN_ASPECT), MAX_ASPECT)
            size = 2 * round(height * aspect / 2), height
        count += 1
        yield ImageOps.pad(image, size)
    if frames not in (None, count):
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


def write_video(
    path: Path, images: Iterable[NDArray[np.uint8]], pts_seconds: NDArray[np.float64]
) -> None:
    """Write a video atomically, as .mp4, .mov or .mkv.

    Images are RGB arrays (height, width, 3), all of the same even size. Frame times are shifted to
    start at 0 and made strictly increasing.
    """
    order = np.arange(len(pts_seconds))
    ticks = np.round((pts_seconds - pts_seconds[0]) / float(TICK)).astype(np.int64)
    # Strictly increasing, as containers require.
    ticks = np.maximum.accumulate(ticks - order) + order
    fps = Fraction(25)  # of videos with a single frame
    if len(ticks) > 1:
        mean_fps = Fraction(len(ticks) - 1) / (int(ticks[-1]) * TICK)
        fps = max(mean_fps.limit_denominator(1001), Fraction(1, 1000))
    durations = np.diff(ticks, append=ticks[-1] + round(1 / (fps * TICK)))
    file_format = WRITTEN_FORMATS[path.suffix.lower()]
    # Put the index at the start of MP4 files, so that browsers can play the video while it loads.
    options = {} if file_format == "matroska" else {"movflags": "faststart"}
    with replacing(path) as partial:
        try:
            with creation:
                opened = av.open(str(partial.absolute()), "w", format=file_format, options=options)
            with opened as container:
                stream = container.add_stream(
                    "libx264", rate=fps, options={"preset": "veryfast", "crf": "20"}
                )
                stream.pix_fmt = "yuv420p"
                stream.codec_context.time_base = TICK
                stream.codec_context.colorspace = Colorspace.ITU601
                for image, start, duration in zip(
                    images, ticks.tolist(), durations.tolist(), strict=True
                ):
                    if not stream.codec_context.is_open:
                        stream.height, stream.width = image.shape[:2]
                    frame = av.VideoFrame.from_ndarray(image, format="rgb24")
                    frame = frame.reformat(format="yuv420p", dst_colorspace=Colorspace.ITU601)
                    frame.pts = start
                    frame.duration = duration
                    frame.time_base = TICK
                    container.mux(stream.encode(frame))
                container.mux(stream.encode(None))
        except av.error.FFmpegError as error:
            if isinstance(error, OSError):  # for example, the disk is full
                raise OSError(error.errno, error.strerror, str(path)) from error
            raise ApplyError(
                f"{path}: FFmpeg cannot write this file ({error.strerror})."
            ) from error
