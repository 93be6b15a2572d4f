"""Files for the dataset readers."""

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.videos import encode_video, gray_frames

from byov.data.dataset import Dataset


@pytest.fixture(scope="session")
def tiny_video(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The content of an mp4 file with three frames."""
    return encode_video(tmp_path_factory.mktemp("tiny") / "tiny.mp4", gray_frames(3, 32, 32)).read_bytes()


@pytest.fixture
def place(tmp_path: Path) -> Callable[..., Path]:
    """place(name, content=b""): write a file below tmp_path and return its path."""

    def write(name: str, content: bytes | str = b"") -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return write


@pytest.fixture(scope="session")
def summary() -> Callable[[Dataset], set[tuple[str, str, str]]]:
    """(id, view, split) of each video."""
    return lambda dataset: {(video.id, video.view, video.split) for video in dataset.videos}
