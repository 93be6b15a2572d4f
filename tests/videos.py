"""Small real videos for tests."""

from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
from av.video.reformatter import VideoReformatter
from numpy.typing import NDArray
from tests.factories import REPRODUCIBLE

from byov.data.video import FrameReader

Images = Sequence[NDArray[np.uint8]]


def gray_frames(count: int, width: int = 64, height: int = 48) -> list[NDArray[np.uint8]]:
    """Uniform frames; frame i has gray level 20 + 10 i."""
    return [np.full((height, width, 3), 20 + 10 * index, np.uint8) for index in range(count)]


def gray_indices(images: Images) -> list[int]:
    """Return which frame of `gray_frames` each image is."""
    return [round((float(image.mean()) - 20) / 10) for image in images]


def moving_frames(count: int = 40, width: int = 64, height: int = 48) -> list[NDArray[np.uint8]]:
    """Textured frames that move and brighten, so that losing bytes changes the picture."""
    picture = np.random.default_rng(0).integers(0, 64, (height, width, 3)).astype(np.uint8)
    return [np.roll(picture, 2 * index, axis=1) + np.uint8(3 * index) for index in range(count)]


def encode_video(
    path: Path,
    images: Images,
    *,
    codec: str = "libx264",
    pix_fmt: str = "yuv420p",
    fps: int = 10,
    options: dict[str, str] | None = None,
    container: str | None = None,
    container_options: dict[str, str] | None = None,
    pts_ms: Sequence[int] | None = None,
    rotation: int = 0,
    hflip: bool = False,
    vflip: bool = False,
) -> Path:
    """Encode RGB images to a video file."""
    with av.open(str(path), "w", format=container, options=container_options or {}) as output:
        stream = output.add_stream(codec, rate=fps, options=REPRODUCIBLE.get(codec, {}) | (options or {}))
        assert isinstance(stream, av.VideoStream)
        stream.height, stream.width = images[0].shape[:2]
        stream.pix_fmt = pix_fmt
        if rotation or hflip or vflip:
            stream.set_display_rotation(rotation, hflip=hflip, vflip=vflip)
        if pts_ms is not None:
            stream.codec_context.time_base = Fraction(1, 1000)
        for index, image in enumerate(images):
            picture = av.VideoFrame.from_ndarray(np.ascontiguousarray(image), format="rgb24")
            # The encoder's own multi-threaded conversion occasionally garbles pixels of odd-sized frames.
            frame = VideoReformatter().reformat(picture, format=pix_fmt, threads=1)
            if pts_ms is not None:
                frame.pts, frame.time_base = pts_ms[index], Fraction(1, 1000)
            output.mux(stream.encode(frame))
        output.mux(stream.encode())
    return path


def decode_video(path: Path, **settings: Any) -> tuple[list[NDArray[np.uint8]], NDArray[np.float64]]:
    """Return all frames of a video and their times."""
    blocks = list(FrameReader(path, **settings).blocks())
    times = [block.pts_seconds for block in blocks]
    return [image for block in blocks for image in block.pixels], np.concatenate(times)
