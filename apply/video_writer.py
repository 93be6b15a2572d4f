"""Pictures as an H.264 video, each at its own time."""

from collections.abc import Iterable
from fractions import Fraction
from pathlib import Path

import av
import av.container
import av.error
import numpy as np
from av.video.reformatter import Colorspace
from numpy.typing import NDArray

from byov.cache.atomic import creation, replacing
from byov.errors import ApplyError

CONTAINERS = {".mp4": "mp4", ".mov": "mov", ".mkv": "matroska"}  # ending → FFmpeg's name
TICK = Fraction(1, 90_000)  # seconds; of the usual rates, all are whole numbers of these
DEFAULT_FPS = Fraction(25)  # of a video of one frame
LEAST_FPS = Fraction(1, 1000)  # of a video with a gap of hours in its times
_ENCODING = {"preset": "veryfast", "crf": "20"}
_INDEX_FIRST = {"movflags": "faststart"}  # so that a browser can play it while it loads


def write_video(path: Path, pictures: Iterable[NDArray[np.uint8]], pts_seconds: NDArray[np.float64]) -> None:
    """pictures: (height, width, 3) RGB, of one even size; pts_seconds: (T,) the time of each. Whole or not at all."""
    ticks = _rising_ticks(pts_seconds)
    fps = _average_fps(ticks)
    durations = np.diff(ticks, append=ticks[-1] + round(1 / (fps * TICK)))
    with replacing(path) as partial:
        try:
            with _open(partial, CONTAINERS[path.suffix.lower()]) as container:
                stream = None
                for picture, start, duration in zip(pictures, ticks.tolist(), durations.tolist(), strict=True):
                    stream = stream or _add_stream(container, fps, picture.shape[1], picture.shape[0])
                    container.mux(stream.encode(_frame(picture, start, duration)))
                if stream is not None:
                    container.mux(stream.encode(None))
        except av.error.FFmpegError as error:
            if isinstance(error, OSError):  # of the disk
                raise OSError(error.errno, error.strerror, str(path)) from error
            raise ApplyError(f"{path}: FFmpeg cannot write it ({error.strerror})") from error


def _open(partial: Path, container_format: str) -> av.container.OutputContainer:
    with creation:
        options = {} if container_format == "matroska" else _INDEX_FIRST
        return av.open(str(partial.absolute()), "w", format=container_format, options=options)


def _add_stream(container: av.container.OutputContainer, fps: Fraction, width: int, height: int) -> av.VideoStream:
    stream = container.add_stream("libx264", rate=fps, options=_ENCODING)
    stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
    stream.codec_context.time_base = TICK
    stream.codec_context.colorspace = Colorspace.ITU601  # as the pictures are converted
    return stream


def _frame(picture: NDArray[np.uint8], start: int, duration: int) -> av.VideoFrame:
    frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
    frame = frame.reformat(format="yuv420p", dst_colorspace=Colorspace.ITU601)
    frame.pts, frame.duration, frame.time_base = start, duration, TICK
    return frame


def _rising_ticks(pts_seconds: NDArray[np.float64]) -> NDArray[np.int64]:
    """Whole ticks from 0, each at least one after the one before: a container takes no two frames of one time."""
    order = np.arange(len(pts_seconds))
    ticks = np.round((pts_seconds - pts_seconds[0]) / float(TICK)).astype(np.int64)
    rising: NDArray[np.int64] = np.maximum.accumulate(ticks - order) + order
    return rising


def _average_fps(ticks: NDArray[np.int64]) -> Fraction:
    if len(ticks) < 2:
        return DEFAULT_FPS
    rate = (Fraction(len(ticks) - 1) / (int(ticks[-1]) * TICK)).limit_denominator(1001)
    return max(rate, LEAST_FPS)
