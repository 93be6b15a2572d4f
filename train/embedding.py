"""The embedding pass: every frame of every video through the frozen encoder, into the run's HDF5 files."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
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
class Encoders:
    """The two models whose embeddings a run keeps, each with the digest of its weights."""

    trained: tuple[Autoencoder, str]
    untrained: tuple[Autoencoder, str]


def embed_run(run: Path, encoders: Encoders, source: Source, store: FeatureStore, device: torch.device) -> int:
    """Write the embeddings of all videos, and of the sub-clips of val and test videos; returns the number of files."""
    written: set[Path] = set()
    with tqdm(total=2 * len(source.videos), desc="embedding", unit="video", disable=None) as bar:
        for untrained, (model, digest) in ((False, encoders.trained), (True, encoders.untrained)):
            model.to(device).eval()
            for video in source.videos:
                for path, embedding, pts_seconds, first in _embeddings(
                    run, model, source, store, video, untrained, device
                ):
                    provenance = _provenance(run, digest, source, video, first)
                    write_embedding(path, embedding, pts_seconds, provenance)
                    written.add(path)
                bar.update()
    _remove_others(run, written)
    return len(written)


def _embeddings(
    run: Path,
    model: Autoencoder,
    source: Source,
    store: FeatureStore,
    video: Video,
    untrained: bool,
    device: torch.device,
) -> Iterator[tuple[Path, NDArray[np.float32], NDArray[np.float64], int]]:
    """Path, embeddings, times and first frame: of the whole video, then of its sub-clips."""
    features = torch.from_numpy(store.read(video)).to(device)
    pts_seconds = read_array(video.path, "pts_seconds")
    clips: list[tuple[int, int]] = []
    if video.split in TRIMMED_SPLITS:
        clips = trimmed_clips(source.dataset, video.view, video.id, video.frames)
    for clip in (None, *clips):
        first, last = clip or (0, video.frames - 1)
        folder = embeddings_folder(run, untrained=untrained, trimmed=clip is not None)
        embedding: NDArray[np.float32] = model.embed(features[first : last + 1]).cpu().numpy()
        if not np.isfinite(embedding).all():
            raise Diverged(f"the model's embeddings of {video.id} are not finite; the run is of no use")
        yield embedding_path(folder, video.view, video.id, clip), embedding, pts_seconds[first : last + 1], first


def _provenance(run: Path, model_sha256: str, source: Source, video: Video, first_frame: int) -> EmbeddingSource:
    return EmbeddingSource(
        run=run.name,
        model_sha256=model_sha256,
        dataset=source.dataset,
        video=video.id,
        encoder=source.recipe["encoder"],
        encoder_revision=source.recipe["revision"],
        encoder_sha256=source.recipe["weights"],
        preprocessing=source.recipe["preprocessing"],
        column=source.column,
        column_sha256=read_digest(video.path, source.column),
        first_frame=first_frame,
    )


def _remove_others(run: Path, written: set[Path]) -> None:
    """Embeddings of videos that are no longer in the dataset must not be taken for current ones."""
    for untrained in (False, True):
        for trimmed in (False, True):
            folder = embeddings_folder(run, untrained=untrained, trimmed=trimmed)
            for view in VIEWS:
                for path in set((folder / view).glob("*.h5")) - written:
                    path.unlink(missing_ok=True)
