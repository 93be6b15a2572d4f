"""One video's features: what its file holds, how it is written, and how it is read back."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from importlib.metadata import version
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from byov.cache.layout import ratio_key
from byov.cache.row_reader import (
    DTYPES,
    EXTRACT_AGAIN,
    STORED_DTYPE,
    open_file,
    read_checked,
    read_complete_attributes,
    stored_ratios,
    typed_attribute,
)
from byov.cache.row_writer import RowWriter
from byov.errors import CacheError

SCHEMA_VERSION = 1
MOST_TOKENS = 2**16  # of a frame: `order` counts them in 16 bits


@dataclass(frozen=True)
class Provenance:
    """Where a file's numbers come from. Two files may stand in one cache only if their identities agree."""

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

    def identity(self) -> dict[str, str]:
        """What must be the same in all files of one encoder's folder."""
        return {
            "encoder": self.encoder,
            "revision": self.encoder_revision,
            "weights": self.encoder_sha256,
            "preprocessing": self.preprocessing,
            "compute type": self.compute_dtype,
        }


@dataclass(frozen=True)
class Header:
    """What a file says of itself, and the times of its frames; without the large arrays."""

    path: Path
    provenance: Provenance
    fps: float
    truncated: bool  # the source broke off, and its user chose to keep the frames before the break
    ratios: tuple[str, ...]
    pts_seconds: NDArray[np.float64]

    @property
    def frames(self) -> int:
        return len(self.pts_seconds)


class FeatureWriter:
    """Writes one video's file; see RowWriter for how it stays whole."""

    def __init__(self, path: Path, ratios: Sequence[float], tokens: int, width: int, *, has_cls: bool) -> None:
        if tokens > MOST_TOKENS:
            raise CacheError(f"{path}: {tokens} tokens a frame; the cache numbers at most {MOST_TOKENS}")
        columns: dict[str, tuple[tuple[int, ...], str]] = {
            f"merged/{ratio_key(ratio)}": ((width,), STORED_DTYPE) for ratio in ratios
        }
        if has_cls:
            columns["cls"] = ((width,), STORED_DTYPE)
        columns["order"] = ((tokens,), DTYPES["order"])
        columns["pts_seconds"] = ((), DTYPES["pts_seconds"])
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
        self._rows.finish(asdict(provenance) | {"fps": float(fps), "truncated": truncated, "complete": True})

    def close(self) -> None:
        self._rows.close()


def read_header(path: Path) -> Header:
    """What a file says of itself; raises CacheError if it is not a whole file of this schema."""
    with open_file(path) as file:
        attrs = read_complete_attributes(file, path, SCHEMA_VERSION, EXTRACT_AGAIN)
        ratios = stored_ratios(file)
        pts_seconds = read_checked(file, "pts_seconds")
    try:
        return Header(
            path=path,
            provenance=Provenance(
                **{field.name: typed_attribute(attrs, field.name, field.type) for field in fields(Provenance)}
            ),
            fps=_finite(typed_attribute(attrs, "fps", float)),
            truncated=typed_attribute(attrs, "truncated", bool),
            ratios=ratios,
            pts_seconds=pts_seconds,
        )
    except (KeyError, ValueError) as error:
        raise CacheError(f"{path}: incomplete header ({error}); {EXTRACT_AGAIN}") from error


def check_same_identity(header: Header, other: Header) -> None:
    for what, value in header.provenance.identity().items():
        other_value = other.provenance.identity()[what]
        if value != other_value:
            raise CacheError(f"{header.path}: {what} {value!r}, but {other.path.name} has {other_value!r}")


def _finite(value: float) -> float:
    if not isfinite(value):
        raise ValueError(f"{value} is not a number of frames per second")
    return value
