"""Embedding files: one per video, or sub-clip, of a run."""

from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from byov import __version__
from byov.cache.hdf5 import DTYPES, SCHEMA_VERSION, RowWriter, read_array, read_dataclass, read_header_attributes

EMBED_AGAIN = "write it again with byov-train --run NAME --embed-only"


@dataclass(frozen=True)
class EmbeddingProvenance:
    """The model and the features that a video's embeddings were computed from."""

    run: str
    model_sha256: str  # digest of the model file
    dataset: str
    video: str
    encoder: str
    encoder_revision: str
    encoder_sha256: str
    preprocessing: str
    column: str  # dataset in the feature file, like "merged/0.3"
    column_sha256: str
    first_frame: int  # in the video; above 0 for sub-clips embedded on their own
    source_sha256: str = ""  # digest of the video file; "" in a run, whose feature files have it
    schema_version: int = SCHEMA_VERSION
    byov_version: str = __version__


def write_embedding(
    path: Path,
    embedding: NDArray[np.float32],
    pts_seconds: NDArray[np.float64],
    source: EmbeddingProvenance,
    *,
    view: str | None = None,
) -> None:
    """Write the embeddings (T, D) and frame times (T,) of a video, and its view if the folder is not named after it."""
    columns = {"embedding": ((embedding.shape[1],), DTYPES["embedding"]), "pts_seconds": ((), DTYPES["pts_seconds"])}
    with RowWriter(path, columns) as rows:
        rows.append({"embedding": embedding, "pts_seconds": pts_seconds})
        rows.finish(asdict(source) | ({} if view is None else {"view": view}) | {"complete": True})


def read_embedding(path: Path) -> tuple[NDArray[np.float32], EmbeddingProvenance]:
    """Return the (T, D) embeddings of a file and their provenance."""
    source = read_source(path)
    return read_array(path, "embedding", remedy=EMBED_AGAIN), source


def read_source(path: Path) -> EmbeddingProvenance:
    """Return the provenance of an embeddings file, without reading the embeddings."""
    return read_dataclass(EmbeddingProvenance, path, read_header_attributes(path, EMBED_AGAIN), EMBED_AGAIN)


def read_view(path: Path) -> str | None:
    """Return the view recorded in an embeddings file; None in the files of a run, whose folder is the view."""
    view = read_header_attributes(path, EMBED_AGAIN).get("view")
    return None if view is None else str(view)
