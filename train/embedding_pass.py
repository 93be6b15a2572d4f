"""The embedding pass: every frame of every video through the frozen encoder, into the run's HDF5 files."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from byov.cache.embeddings import EmbeddingProvenance, write_embedding
from byov.cache.hdf5 import read_array, read_digest
from byov.cache.layout import VIEWS
from byov.cache.runs import embedding_path, embeddings_folder
from byov.errors import Diverged, Interrupted
from byov.evaluate.protocols import trimmed_clips
from byov.progress import NO_PROGRESS, Progress, Stop, never, track
from byov.train.feature_store import CachedVideo, FeatureStore, TrainingData
from byov.train.methods.base import Method

TRIMMED_SPLITS = ("val", "test")


@dataclass(frozen=True)
class EmbeddingModel:
    """A model, and the digest of its weights; a run keeps the embeddings of two."""

    model: Method
    sha256: str
    untrained: bool


def embed_run(
    run: Path,
    models: Sequence[EmbeddingModel],
    data: TrainingData,
    store: FeatureStore,
    device: torch.device,
    progress: Progress = NO_PROGRESS,
    stop: Stop = never,
) -> int:
    """Write the embeddings of all videos, and of the sub-clips of val and test videos; returns the number of files."""
    for embedder in models:
        embedder.model.to(device).eval()
    written: set[Path] = set()
    for video in track(data.videos, progress, "embedding", unit="video"):
        if stop():
            raise Interrupted("stopped while embedding")
        features = torch.from_numpy(store.read(video)).to(device)
        pts_seconds = read_array(video.path, "pts_seconds")
        provenance = _provenance(run, data, video)
        for embedder in models:
            for path, embedding, first in _embeddings(run, embedder, data.dataset, video, features):
                times = pts_seconds[first : first + len(embedding)]
                write_embedding(path, embedding, times, provenance(model_sha256=embedder.sha256, first_frame=first))
                written.add(path)
    _remove_others(run, written)
    return len(written)


def _embeddings(
    run: Path, embedder: EmbeddingModel, dataset: str, video: CachedVideo, features: Tensor
) -> Iterator[tuple[Path, NDArray[np.float32], int]]:
    """Path, embeddings and first frame: of the whole video, then of its sub-clips."""
    clips: list[tuple[int, int]] = []
    if video.split in TRIMMED_SPLITS:
        clips = trimmed_clips(dataset, video.view, video.id, video.frames)
    for clip in (None, *clips):
        first, last = clip or (0, video.frames - 1)
        folder = embeddings_folder(run, untrained=embedder.untrained, trimmed=clip is not None)
        embedding: NDArray[np.float32] = embedder.model.embed(features[first : last + 1]).cpu().numpy()
        if not np.isfinite(embedding).all():
            raise Diverged(f"the model's embeddings of {video.id} are not finite; the run is of no use")
        yield embedding_path(folder, video.view, video.id, clip), embedding, first


def _provenance(run: Path, data: TrainingData, video: CachedVideo) -> Callable[..., EmbeddingProvenance]:
    """What all embeddings of a video have in common; to be called with the rest."""
    return partial(
        EmbeddingProvenance,
        run=run.name,
        dataset=data.dataset,
        video=video.id,
        encoder=data.identity["encoder"],
        encoder_revision=data.identity["revision"],
        encoder_sha256=data.identity["weights"],
        preprocessing=data.identity["preprocessing"],
        column=data.column,
        column_sha256=read_digest(video.path, data.column),
    )


def _remove_others(run: Path, written: set[Path]) -> None:
    """Embeddings of videos that are no longer in the dataset must not be taken for current ones."""
    for untrained in (False, True):
        for trimmed in (False, True):
            folder = embeddings_folder(run, untrained=untrained, trimmed=trimmed)
            for view in VIEWS:
                for path in set((folder / view).glob("*.h5")) - written:
                    path.unlink(missing_ok=True)
