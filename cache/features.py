"""One video's features: what its file holds, how it is written, and how it is read back."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from importlib.metadata import version
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from byov.cache.errors import CacheError
from byov.cache.layout import ratio_key
from byov.cache.rows import RowWriter

SCHEMA_VERSION = 1
STORED_DTYPE = "float16"


@dataclass(frozen=True)
class Provenance:
    """Where a file's numbers come from. Two files may stand in one cache only if their recipes agree."""

    encoder: str
    encoder_revision: str
    encoder_sha256: str
    preprocessing: str
    compute_dtype: str
    decoder: str
    source_name: str
    source_bytes: int
    source_sha256: str  # of the whole file
    source_fingerprint: str  # of a sample of it, quick enough to look at on every run
    stored_dtype: str = STORED_DTYPE
    schema_version: int = SCHEMA_VERSION
    byov_version: str = version("byov")

    def recipe(self) -> dict[str, str]:
        """What must be the same in all files of one encoder's folder."""
        return {
            "encoder": self.encoder,
            "revision": self.encoder_revision,
            "weights": self.encoder_sha256,
            "preprocessing": self.preprocessing,
        }


@dataclass(frozen=True)
class Header:
    """What a file says of itself, and the times of its frames; without the large arrays."""

    path: Path
    provenance: Provenance
    frames: int
    fps: float
    truncated: bool  # the source broke off, and its user chose to keep the frames before the break
    ratios: tuple[str, ...]
    columns: dict[str, tuple[tuple[int, ...], str]]  # name → shape, dtype
    pts_seconds: NDArray[np.float64]


class FeatureWriter:
    """Writes one video's file; see RowWriter for how it stays whole."""

    def __init__(self, path: Path, ratios: Sequence[float], tokens: int, width: int, *, has_cls: bool) -> None:
        columns: dict[str, tuple[tuple[int, ...], str]] = {
            f"merged/{ratio_key(ratio)}": ((width,), STORED_DTYPE) for ratio in ratios
        }
        if has_cls:
            columns["cls"] = ((width,), STORED_DTYPE)
        columns["order"] = ((tokens,), "uint16")
        columns["pts_seconds"] = ((), "float64")
        self._rows = RowWriter(path, columns)

    @property
    def frames(self) -> int:
        return self._rows.rows

    def append(
        self,
        merged: dict[float, NDArray[Any]],
        order: NDArray[Any],
        cls: NDArray[Any] | None,
        pts_seconds: NDArray[np.float64],
    ) -> None:
        rows = {f"merged/{ratio_key(ratio)}": values for ratio, values in merged.items()}
        rows |= {"order": order, "pts_seconds": pts_seconds}
        if cls is not None:
            rows["cls"] = cls
        self._rows.append(rows)

    def finish(self, provenance: Provenance, *, fps: float, truncated: bool) -> None:
        self._rows.finish(asdict(provenance) | {"fps": fps, "truncated": truncated, "complete": True})

    def close(self) -> None:
        self._rows.close()


@contextmanager
def open_file(path: Path) -> Iterator[h5py.File]:
    """Open a cache file for reading; what cannot be opened, or read once open, is named."""
    try:
        with h5py.File(path, "r", locking=False) as file:
            yield file
    except (OSError, KeyError, RuntimeError) as error:
        if isinstance(error, FileNotFoundError):
            raise CacheError(f"{path}: no such file") from None
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise CacheError(
            f"{path}: not a readable cache file ({reason}); delete it and run byov-extract again"
        ) from error


def read_header(path: Path) -> Header:
    """What a file says of itself; raises CacheError if it is not a whole file of this schema."""
    with open_file(path) as file:
        attrs = dict(file.attrs)
        columns = {name: (file[name].shape, str(file[name].dtype)) for name in _datasets(file)}
        pts_seconds = file["pts_seconds"][:] if "pts_seconds" in columns else np.empty(0)
    schema = attrs.get("schema_version")
    if schema != SCHEMA_VERSION:
        raise CacheError(
            f"{path}: cache schema {schema}, this byov reads {SCHEMA_VERSION}; run byov-extract --overwrite"
        )
    if not attrs.get("complete", False):
        raise CacheError(f"{path}: not marked complete; delete it and run byov-extract again")
    try:
        provenance = Provenance(**{field.name: _plain(attrs[field.name]) for field in fields(Provenance)})
        return Header(
            path=path,
            provenance=provenance,
            frames=columns["pts_seconds"][0][0],
            fps=float(attrs["fps"]),
            truncated=bool(attrs["truncated"]),
            ratios=tuple(name.removeprefix("merged/") for name in columns if name.startswith("merged/")),
            columns=columns,
            pts_seconds=pts_seconds,
        )
    except (KeyError, IndexError, ValueError) as error:
        raise CacheError(f"{path}: incomplete header ({error}); delete it and run byov-extract again") from error


def read_array(path: Path, name: str) -> NDArray[Any]:
    """One column as an array: "merged/0.3", "cls", "order" or "pts_seconds"."""
    with open_file(path) as file:
        if name not in file:
            raise CacheError(f"{path}: no {name}; it holds {', '.join(_datasets(file))}")
        values: NDArray[Any] = file[name][:]
        return values


def _datasets(file: h5py.File) -> list[str]:
    names: list[str] = []

    def visit(name: str, item: h5py.Dataset | h5py.Group) -> None:
        if isinstance(item, h5py.Dataset):
            names.append(name)

    file.visititems(visit)
    return names


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value
