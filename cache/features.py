"""One video's features: what its file holds, how it is written, and how it is read back."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import lru_cache
from math import isfinite
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from byov import __version__
from byov.cache.hdf5 import (
    DTYPES,
    EXTRACT_AGAIN,
    SCHEMA_VERSION,
    STORED_DTYPE,
    RowWriter,
    open_file,
    read_checked,
    read_complete_attributes,
    stored_digest,
    typed_attribute,
)
from byov.cache.layout import ratio_key
from byov.errors import CacheError

MOST_TOKENS = 2**16  # of a frame: `order` counts them in 16 bits


@dataclass(frozen=True, slots=True)
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
    byov_version: str = __version__

    def identity(self) -> Mapping[str, str]:
        """What must be the same in all files of one encoder's folder."""
        return _identity(
            self.encoder, self.encoder_revision, self.encoder_sha256, self.preprocessing, self.compute_dtype
        )


_PROVENANCE_TYPES = {field.name: field.type for field in fields(Provenance)}


@lru_cache
def _identity(encoder: str, revision: str, weights: str, preprocessing: str, compute_type: str) -> Mapping[str, str]:
    """One copy in memory for all files alike."""
    return {
        "encoder": encoder,
        "revision": revision,
        "weights": weights,
        "preprocessing": preprocessing,
        "compute type": compute_type,
    }


@dataclass(frozen=True, slots=True)
class Header:
    """What a file says of itself, without its arrays."""

    path: Path
    provenance: Provenance
    frames: int
    fps: float
    truncated: bool  # the source broke off, and its user chose to keep the frames before the break
    corrupt_frames: int  # that FFmpeg has marked, and its user chose to keep; up to byov 0.2 they were not counted
    ratios: tuple[str, ...]


@dataclass(frozen=True)
class Facts:
    """All that is asked of a file before its features are: its header, the times of its frames, its digests."""

    header: Header
    pts_seconds: NDArray[np.float64]
    digests: dict[str, str]  # column → the SHA-256 that the writer has left beside it


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

    def finish(self, provenance: Provenance, *, fps: float, truncated: bool, corrupt_frames: int = 0) -> None:
        facts = {"fps": float(fps), "truncated": truncated, "corrupt_frames": corrupt_frames, "complete": True}
        self._rows.finish(asdict(provenance) | facts)

    def close(self) -> None:
        self._rows.close()


def read_header(path: Path) -> Header:
    """What a file says of itself; raises CacheError if it is not a whole file of this schema."""
    with open_file(path) as file:
        attrs = read_complete_attributes(file, path, EXTRACT_AGAIN)
        return header_of(path, attrs, len(read_checked(file, "pts_seconds")))


def read_facts(path: Path) -> Facts:
    """The same, with the times of the frames and the digests of the arrays, from one look into the file."""
    with open_file(path) as file:
        attrs = read_complete_attributes(file, path, EXTRACT_AGAIN)
        pts_seconds = read_checked(file, "pts_seconds")
        digests = {name: stored_digest(file, name) for name in attrs["columns"]}
    return Facts(header_of(path, attrs, len(pts_seconds)), pts_seconds, digests)


def header_of(path: Path, attrs: dict[str, Any], frames: int) -> Header:
    """From the attributes of a file, and "columns", the names of its arrays."""
    try:
        return Header(
            path=path,
            provenance=Provenance(
                **{name: typed_attribute(attrs, name, kind) for name, kind in _PROVENANCE_TYPES.items()}
            ),
            frames=frames,
            fps=_finite(typed_attribute(attrs, "fps", float)),
            truncated=typed_attribute(attrs, "truncated", bool),
            corrupt_frames=typed_attribute({"corrupt_frames": 0} | attrs, "corrupt_frames", int),
            ratios=_ratios(attrs["columns"]),
        )
    except (KeyError, ValueError) as error:
        raise CacheError(f"{path}: incomplete header ({error}); {EXTRACT_AGAIN}") from error


def _ratios(columns: Iterable[str]) -> tuple[str, ...]:
    """ "cls", "merged/0.3", "order" → "0.3" """
    return tuple(name.removeprefix("merged/") for name in columns if name.startswith("merged/"))


def check_same_identity(header: Header, other: Header) -> None:
    expected = other.provenance.identity()
    for what, value in header.provenance.identity().items():
        if value != expected[what]:
            raise CacheError(f"{header.path}: {what} {value!r}, but {other.path.name} has {expected[what]!r}")


def _finite(value: float) -> float:
    if not isfinite(value):
        raise ValueError(f"{value} is not a number of frames per second")
    return value


SMALLEST_DEVIATION = 1e-6


class Array(Protocol):
    """A NumPy array or a tensor, as far as this file needs it."""

    def mean(self, axis: int, /) -> Any: ...

    def __sub__(self, other: Any, /) -> Any: ...


AnyArray = TypeVar("AnyArray", bound=Array)


def standardize(features: AnyArray) -> AnyArray:
    """(T, width) → each dimension with zero mean and unit deviation over the clip; a constant one becomes zero.

    NumPy adds frames up one by one, so its arrays should be float64: in float32 the mean of a long constant dimension
    is no longer its value, and what is left of it is blown up to unit deviation.
    """
    centered = features - features.mean(0)
    deviation = (centered * centered).mean(0) ** 0.5
    scaled: AnyArray = centered / (deviation + SMALLEST_DEVIATION)
    return scaled
