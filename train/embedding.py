"""The embedding pass: every frame of every video through the frozen encoder, into the run's HDF5 files."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from tqdm import tqdm

from byov.cache.clips import trimmed_clips
from byov.cache.columns import read_array, read_digest
from byov.cache.embeddings import EmbeddingSource, write_embedding
from byov.cache.layout import VIEWS
from byov.cache.runs import embedding_path, embeddings_folder
from byov.train.autoencoder import Autoencoder
from byov.train.errors import Diverged
from byov.train.feature_store import FeatureStore, Source, Video

TRIMMED_SPLITS = ("val", "test")


@dataclass(frozen=True)
class EmbeddingModel:
    """A model, and the digest of its weights; a run keeps the embeddings of two."""

    model: Autoencoder
    sha256: str
    untrained: bool


def embed_run(
    run: Path, models: Sequence[EmbeddingModel], source: Source, store: FeatureStore, device: torch.device
) -> int:
    """Write the embeddings of all videos, and of the sub-clips of val and test videos; returns the number of files."""
    for embedder in models:
        embedder.model.to(device).eval()
    written: set[Path] = set()
    for video in tqdm(source.videos, desc="embedding", unit="video", disable=None):
        features = torch.from_numpy(store.read(video)).to(device)
        pts_seconds = read_array(video.path, "pts_seconds")
        provenance = _provenance(run, source, video)
        for embedder in models:
            for path, embedding, first in _embeddings(run, embedder, source.dataset, video, features):
                times = pts_seconds[first : first + len(embedding)]
                write_embedding(path, embedding, times, provenance(model_sha256=embedder.sha256, first_frame=first))
                written.add(path)
    _remove_others(run, written)
    return len(written)


def _embeddings(
    run: Path, embedder: EmbeddingModel, dataset: str, video: Video, features: Tensor
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


def _provenance(run: Path, source: Source, video: Video) -> Callable[..., EmbeddingSource]:
    """What all embeddings of a video have in common; to be called with the rest."""
    return partial(
        EmbeddingSource,
        run=run.name,
        dataset=source.dataset,
        video=video.id,
        encoder=source.recipe["encoder"],
        encoder_revision=source.recipe["revision"],
        encoder_sha256=source.recipe["weights"],
        preprocessing=source.recipe["preprocessing"],
        column=source.column,
        column_sha256=read_digest(video.path, source.column),
    )


def _remove_others(run: Path, written: set[Path]) -> None:
    """Embeddings of videos that are no longer in the dataset must not be taken for current ones."""
    for untrained in (False, True):
        for trimmed in (False, True):
            folder = embeddings_folder(run, untrained=untrained, trimmed=trimmed)
            for view in VIEWS:
                for path in set((folder / view).glob("*.h5")) - written:
                    path.unlink(missing_ok=True)
