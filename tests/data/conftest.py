"""Small real videos, encoded where a test needs them."""

from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from av.video.reformatter import VideoReformatter
from numpy.typing import NDArray
from tests.factories import REPRODUCIBLE

from byov.data.dataset import Dataset
from byov.data.video import FrameReader

Images = Sequence[NDArray[np.uint8]]


def gray_images(count: int, width: int = 64, height: int = 48) -> list[NDArray[np.uint8]]:
    """Frame i is of gray level 20 + 10 i."""
    return [np.full((height, width, 3), 20 + 10 * index, np.uint8) for index in range(count)]


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
    pts: Sequence[int] | None = None,  # in milliseconds
    rotation: int = 0,
    hflip: bool = False,
    vflip: bool = False,
) -> Path:
    with av.open(str(path), "w", format=container, options=container_options or {}) as output:
        stream = output.add_stream(codec, rate=fps, options=REPRODUCIBLE.get(codec, {}) | (options or {}))
        assert isinstance(stream, av.VideoStream)
        stream.height, stream.width = images[0].shape[:2]
        stream.pix_fmt = pix_fmt
        if rotation or hflip or vflip:
            stream.set_display_rotation(rotation, hflip=hflip, vflip=vflip)
        if pts is not None:
            stream.codec_context.time_base = Fraction(1, 1000)
        for index, image in enumerate(images):
            picture = av.VideoFrame.from_ndarray(np.ascontiguousarray(image), format="rgb24")
            # Left to the encoder, this runs in several threads, which garble pixels of odd sizes now and then.
            frame = VideoReformatter().reformat(picture, format=pix_fmt, threads=1)
            if pts is not None:
                frame.pts, frame.time_base = pts[index], Fraction(1, 1000)
            output.mux(stream.encode(frame))
        output.mux(stream.encode())
    return path


@pytest.fixture(scope="session")
def grays() -> Callable[..., list[NDArray[np.uint8]]]:
    return gray_images


@pytest.fixture(scope="session")
def encode() -> Callable[..., Path]:
    return encode_video


@pytest.fixture(scope="session")
def tiny_video(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The content of a whole mp4 of three frames."""
    return encode_video(tmp_path_factory.mktemp("tiny") / "tiny.mp4", gray_images(3, 32, 32)).read_bytes()


@pytest.fixture
def place(tmp_path: Path, tiny_video: bytes) -> Callable[[str, Any], Path]:
    """Write a file below tmp_path, with its folders; a video unless something else is given."""

    def write(name: str, content: bytes | str | None = None) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        data = content.encode() if isinstance(content, str) else content
        path.write_bytes(tiny_video if data is None else data)
        return path

    return write


@pytest.fixture(scope="session")
def decode() -> Callable[..., tuple[list[NDArray[np.uint8]], NDArray[np.float64]]]:
    """All frames of a video and their times."""

    def read(path: Path, **settings: Any) -> tuple[list[NDArray[np.uint8]], NDArray[np.float64]]:
        blocks = list(FrameReader(path, **settings).blocks())
        times = [block.pts_seconds for block in blocks]
        return [image for block in blocks for image in block.pixels], np.concatenate(times)

    return read


@pytest.fixture(scope="session")
def summary() -> Callable[[Dataset], set[tuple[str, str, str]]]:
    """(id, view, split) of each video."""
    return lambda dataset: {(video.id, video.view, video.split) for video in dataset.videos}
