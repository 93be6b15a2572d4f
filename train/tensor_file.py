"""Files of tensors (safetensors): opening them, and what they hold. Needs no PyTorch."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from safetensors import SafetensorError, safe_open

from byov.errors import TrainError


@contextmanager
def opened(path: Path, framework: Literal["pt", "np"]) -> Iterator[Any]:
    """A file to take tensors of a framework from; what cannot be read is named."""
    try:
        with safe_open(path, framework=framework) as file:
            yield file
    except FileNotFoundError:
        raise TrainError(f"{path}: no such file") from None
    except (SafetensorError, OSError, ValueError) as error:
        raise TrainError(f"{path}: not a readable safetensors file ({error})") from error


def tensor_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """By name; no tensor is read."""
    with opened(path, "np") as file:
        return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
