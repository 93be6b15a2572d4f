"""Feature files, one per video and encoder."""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, TypeVar, cast

from pydantic import Field
from pydantic.dataclasses import dataclass

from byov import __version__
from byov.cache import hdf5
from byov.cache.digests import SCHEMA_VERSION
from byov.cache.hdf5 import EXTRACT_AGAIN, STORED_DTYPE
from byov.cache.layout import video_path
from byov.cache.manifest import VideoEntry
from byov.errors import CacheError, StaleError
from byov.records import READ_FROM_FILE

MAX_TOKENS = 2**16  # `order` stores token indices in 16 bits
SMALLEST_DEVIATION = 1e-6
AnyArray = TypeVar("AnyArray")


@dataclass(frozen=True, kw_only=True, config=READ_FROM_FILE)
class BaseProvenance:
    """Video, encoder and version that features or embeddings were computed with."""

    video: str
    view: str
    encoder: str
    encoder_revision: str
    encoder_sha256: str
    preprocessing: str
    schema_version: int = SCHEMA_VERSION
    byov_version: str = __version__


@dataclass(frozen=True, kw_only=True, config=READ_FROM_FILE)
class Provenance(BaseProvenance):
    """Source video, encoder and settings that a video's features were computed with."""

    compute_dtype: str
    decoder: str
    source_name: str
    source_bytes: int
    source_sha256: str  # digest of the whole file
    source_fingerprint: str
    stored_dtype: str = STORED_DTYPE

    def identity(self) -> dict[str, str]:
        """Return the attributes that must be the same in all files in an encoder folder."""
        return {
            "encoder": self.encoder,
            "revision": self.encoder_revision,
            "weights": self.encoder_sha256,
            "preprocessing": self.preprocessing,
            "compute type": self.compute_dtype,
        }


@dataclass(frozen=True, slots=True, config=READ_FROM_FILE)
class Header:
    """Header of a feature file."""

    path: Path
    provenance: Provenance
    frames: Annotated[int, Field(ge=1)]
    fps: float
    truncated: bool  # the video is truncated and was extracted with --on-truncated keep
    corrupt_frames: int  # number of corrupt frames, kept with --on-corrupt keep
    columns: dict[str, str]  # maps column names to SHA-256 digests

    @property
    def ratios(self) -> tuple[str, ...]:
        """STM ratios in the file, such as ("0.3", "1.0")."""
        return tuple(
            name.removeprefix("merged/") for name in self.columns if name.startswith("merged/")
        )


class FeatureWriter(hdf5.RowWriter):
    """Writer for one feature file. The file appears only after `finish_video`."""

    def finish_video(
        self, provenance: Provenance, *, fps: float, truncated: bool, corrupt_frames: int = 0
    ) -> None:
        """Write the header and move the file to its final name."""
        self.finish(
            {
                **asdict(provenance),
                "fps": float(fps),
                "truncated": truncated,
                "corrupt_frames": corrupt_frames,
                "complete": True,
            }
        )


def read_header(path: Path, remedy: str = EXTRACT_AGAIN) -> Header:
    """Read the header of a feature file and verify its digest."""
    with hdf5.open_file(path, remedy) as file:
        attributes = hdf5.read_header_attributes(file)
        return Header(**(attributes | {"path": path, "provenance": Provenance(**attributes)}))


def video_header(folder: Path, entry: VideoEntry) -> Header:
    """Read the header of a video's feature file in an encoder folder.

    Raises:
        CacheError: If the file cannot be read or belongs to another video.
        StaleError: If the file was computed from another version of the video than the one that
            the manifest describes.
    """
    header = cached_header(folder, entry.view, entry.id)
    check_version(header, entry)
    return header


def cached_header(folder: Path, view: str, video: str) -> Header:
    """Like `video_header`, for any version of the video."""
    header = read_header(video_path(folder, view, video))
    _check_video(header.path, header.provenance.view, header.provenance.video, view, video)
    return header


def video_digests(folder: Path, entry: VideoEntry, *columns: str) -> list[str]:
    """Return the digests of columns in a video's feature file; raises the errors of
    `video_header`.
    """
    path = video_path(folder, entry.view, entry.id)
    names = ("view", "video", "source_sha256", "encoder")
    with hdf5.open_file(path) as file:
        view, video, source_sha256, encoder = (hdf5.read_attribute(file, name) for name in names)
        _check_video(path, view, video, entry.view, entry.id)
        _check_version(path, source_sha256, encoder, entry)
        return [hdf5.column_digest(file, path, column) for column in columns]


def check_version(header: Header, entry: VideoEntry) -> None:
    """Raise StaleError if features were computed from another version of the video than the one
    that the manifest describes.
    """
    source = header.provenance
    _check_version(header.path, source.source_sha256, source.encoder, entry)


def _check_video(path: Path, view: str, video: str, wanted_view: str, wanted_video: str) -> None:
    if (view, video) != (wanted_view, wanted_video):
        raise CacheError(
            f"{path}: features of {view}/{video}, not of {wanted_view}/{wanted_video}; "
            f"{EXTRACT_AGAIN}"
        )


def _check_version(path: Path, source_sha256: str, encoder: str, entry: VideoEntry) -> None:
    if source_sha256 != entry.source_sha256:
        raise StaleError(
            f"{path}: features of another version of the video than the labels in the manifest. "
            f"Delete it and run byov-extract with --encoder {encoder} again."
        )


def identity_difference(identity: Mapping[str, str], expected: Mapping[str, str]) -> str:
    """Describe the first difference between two identities, like "revision 'a', expected 'b'"; ""
    if they are equal.
    """
    for what, value in expected.items():
        if identity[what] != value:
            return f"{what} {identity[what]!r}, expected {value!r}"
    return ""


def check_same_identity(header: Header, other: Header) -> None:
    """Raise CacheError if two files were computed with different encoders, revisions or
    settings.
    """
    if difference := identity_difference(header.provenance.identity(), other.provenance.identity()):
        raise CacheError(f"{header.path}: made with {difference} as in {other.path.name}")


def standardize(features: AnyArray) -> AnyArray:
    """Scale each dimension to zero mean and unit standard deviation over the clip; constant
    dimensions become zero.

    NumPy arrays should be float64: NumPy sums the frames sequentially, so in float32 rounding
    errors add up and the mean of a long constant dimension differs from its value.

    Args:
        features: NumPy array or tensor of shape `(T, D)`.
    """
    array = cast(Any, features)
    centered = array - array.mean(0)
    deviation = (centered * centered).mean(0) ** 0.5
    return cast(AnyArray, centered / (deviation + SMALLEST_DEVIATION))
