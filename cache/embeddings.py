"""One video's frame embeddings in a run: what its file holds, how it is written, and how it is read back."""

from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from byov import __version__
from byov.cache.hdf5 import (
    DTYPES,
    SCHEMA_VERSION,
    RowWriter,
    open_file,
    read_checked,
    read_complete_attributes,
    typed_attribute,
)
from byov.errors import CacheError

EMBED_AGAIN = "make it again with byov-train --run NAME --embed-only"


@dataclass(frozen=True)
class EmbeddingProvenance:
    """Which model made a file's embeddings, and from which features."""

    run: str
    model_sha256: str  # of the model's safetensors file
    dataset: str
    video: str
    encoder: str
    encoder_revision: str
    encoder_sha256: str
    preprocessing: str
    column: str  # of the feature file: "merged/0.3"
    column_sha256: str
    first_frame: int  # of the video; above 0 in sub-clips that were embedded on their own
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
    """Write (T, D) embeddings and the times of their frames; with the view, where no folder of that name says it."""
    columns = {"embedding": ((embedding.shape[1],), DTYPES["embedding"]), "pts_seconds": ((), DTYPES["pts_seconds"])}
    with RowWriter(path, columns) as rows:
        rows.append({"embedding": embedding, "pts_seconds": pts_seconds})
        rows.finish(asdict(source) | ({} if view is None else {"view": view}) | {"complete": True})


def read_embedding(path: Path) -> tuple[NDArray[np.float32], EmbeddingProvenance]:
    """The (T, D) embeddings of a file, and where they come from."""
    with open_file(path, EMBED_AGAIN) as file:
        attrs = read_complete_attributes(file, path, EMBED_AGAIN)
        embedding: NDArray[np.float32] = read_checked(file, "embedding")
    return embedding, _source(path, attrs)


def read_view(path: Path) -> str | None:
    """The view that a file says of its video; None if it says none, as in a run, where the folder does."""
    with open_file(path, EMBED_AGAIN) as file:
        view = read_complete_attributes(file, path, EMBED_AGAIN).get("view")
    return None if view is None else str(view)


def read_source(path: Path) -> EmbeddingProvenance:
    """Where a file's embeddings come from, without reading them."""
    with open_file(path, EMBED_AGAIN) as file:
        attrs = read_complete_attributes(file, path, EMBED_AGAIN)
    return _source(path, attrs)


def _source(path: Path, attrs: dict[str, Any]) -> EmbeddingProvenance:
    try:
        return EmbeddingProvenance(
            **{field.name: typed_attribute(attrs, field.name, field.type) for field in fields(EmbeddingProvenance)}
        )
    except (KeyError, ValueError) as error:
        raise CacheError(f"{path}: incomplete header ({error}); {EMBED_AGAIN}") from error
