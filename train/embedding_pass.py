"""Embedding pass: write the frame embeddings of all videos of a dataset into a run's folder."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from byov.cache.embeddings import EmbeddingProvenance, write_embedding
from byov.cache.hdf5 import read_array, read_digest
from byov.cache.layout import VIEWS
from byov.cache.runs import embedding_path, embeddings_folder
from byov.errors import Diverged, Interrupted
from byov.evaluate.protocols import trimmed_clips
from byov.progress import NO_PROGRESS, Progress, Stop, never, track
from byov.train.feature_store import FeatureStore, TrainingData
from byov.train.methods.base import Method

TRIMMED_SPLITS = ("val", "test")  # the splits that are evaluated


@dataclass(frozen=True)
class EmbeddingModel:
    """A model to embed with: the trained one of a run, or the same model at its initialization."""

    model: Method
    sha256: str
    untrained: bool


def embed_videos(
    run: Path,
    models: Sequence[EmbeddingModel],
    data: TrainingData,
    store: FeatureStore,
    device: torch.device,
    progress: Progress = NO_PROGRESS,
    stop: Stop = never,
) -> int:
    """Embed every video, and the sub-clips of val and test videos on their own.

    Files of videos that are no longer in the dataset are deleted.

    Returns:
        The number of files written.

    Raises:
        Interrupted: `stop` returned true; it is checked before each video.
        Diverged: An embedding is not finite.
    """
    for embedder in models:
        embedder.model.to(device).eval()
    written: set[Path] = set()
    for video in track(data.videos, progress, "embedding", unit="video"):
        if stop():
            raise Interrupted("stopped while embedding")
        features = torch.from_numpy(store.read(video)).to(device)
        pts_seconds = read_array(video.path, "pts_seconds")
        features_sha256 = read_digest(video.path, data.column)
        clips: list[tuple[int, int] | None] = [None]  # the whole video
        if video.split in TRIMMED_SPLITS:
            clips += trimmed_clips(data.dataset, video.view, video.id, video.frames)
        for embedder in models:
            for clip in clips:
                first, last = clip or (0, video.frames - 1)
                embedding = embedder.model.embed(features[first : last + 1]).cpu().numpy()
                if not np.isfinite(embedding).all():
                    raise Diverged(f"The embeddings of {video.id} are not finite; the model is unusable.")
                provenance = EmbeddingProvenance(
                    run=run.name,
                    model_sha256=embedder.sha256,
                    dataset=data.dataset,
                    video=video.id,
                    encoder=data.identity["encoder"],
                    encoder_revision=data.identity["revision"],
                    encoder_sha256=data.identity["weights"],
                    preprocessing=data.identity["preprocessing"],
                    column=data.column,
                    column_sha256=features_sha256,
                    first_frame=first,
                )
                folder = embeddings_folder(run, untrained=embedder.untrained, trimmed=clip is not None)
                path = embedding_path(folder, video.view, video.id, clip)
                write_embedding(path, embedding, pts_seconds[first : last + 1], provenance)
                written.add(path)
    _delete_others(run, written)
    return len(written)


def _delete_others(run: Path, written: set[Path]) -> None:
    for untrained in (False, True):
        for trimmed in (False, True):
            folder = embeddings_folder(run, untrained=untrained, trimmed=trimmed)
            for view in VIEWS:
                for path in set((folder / view).glob("*.h5")) - written:
                    path.unlink(missing_ok=True)
