from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def place(tmp_path: Path) -> Callable[..., Path]:
    """place(name, content=b""): write a file below tmp_path and return its path."""

    def write(name: str, content: bytes | str = b"") -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return write
