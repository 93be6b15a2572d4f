"""An embedded video as a file: HDF5 as in a run, or .npz for those who have NumPy only."""

from pathlib import Path
from typing import Any

import numpy as np

from byov.apply.run_embedder import EmbeddedVideo
from byov.cache.atomic import replacing
from byov.cache.embeddings import write_embedding


def write_embedded(path: Path, video: EmbeddedVideo, view: str | None) -> None:
    """Write what the path's ending says; the view only if it is known."""
    if path.suffix.lower() == ".npz":
        _write_npz(path, video, view)
    else:
        write_embedding(path, video.embedding, video.pts_seconds, video.source, view=view)


def _write_npz(path: Path, video: EmbeddedVideo, view: str | None) -> None:
    """Arrays and texts; np.load needs no allow_pickle for them."""
    texts = {"run": video.source.run, "model_sha256": video.source.model_sha256, "video": video.source.video}
    texts |= {} if view is None else {"view": view}
    arrays: dict[str, Any] = {name: np.array(text) for name, text in texts.items()}
    arrays |= {"embedding": video.embedding, "pts_seconds": video.pts_seconds}
    with replacing(path) as partial, partial.open("wb") as file:
        np.savez(file, **arrays)
