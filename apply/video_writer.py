"""Write H.264 videos."""

from collections.abc import Iterable
from fractions import Fraction
from pathlib import Path

import av
import av.error
import numpy as np
from av.video.reformatter import Colorspace
from numpy.typing import NDArray

from byov.cache.atomic import creation, replacing
from byov.errors import ApplyError

CONTAINERS = {".mp4": "mp4", ".mov": "mov", ".mkv": "matroska"}  # suffix -> FFmpeg format
TICK = Fraction(1, 90_000)  # seconds; frame durations at common frame rates are multiples of this
DEFAULT_FPS = Fraction(25)  # frame rate of videos with a single frame
MIN_FPS = Fraction(1, 1000)


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
    fps = DEFAULT_FPS
    if len(ticks) > 1:
        fps = max(
            (Fraction(len(ticks) - 1) / (int(ticks[-1]) * TICK)).limit_denominator(1001), MIN_FPS
        )
    durations = np.diff(ticks, append=ticks[-1] + round(1 / (fps * TICK)))
    file_format = CONTAINERS[path.suffix.lower()]
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
