"""Embedding pass: write frame embeddings of all videos in a dataset to the run folder."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from byov.cache.embeddings import EmbeddingProvenance, write_embedding
from byov.cache.hdf5 import read_array
from byov.cache.layout import embedded_parts, prefix_lengths
from byov.cache.runs import check_model, embedding_path, embeddings_folder
from byov.errors import Diverged, Interrupted
from byov.progress import NO_PROGRESS, Progress, Stop, never, track
from byov.train.feature_store import FeatureStore, TrainingData
from byov.train.methods.base import Method, build_method


def embed_videos(
    run: Path,
    training: Mapping[str, Any],
    data: TrainingData,
    store: FeatureStore,
    device: torch.device,
    progress: Progress = NO_PROGRESS,
    stop: Stop = never,
) -> int:
    """Embed all videos, plus sub-clips and prefixes of val and test videos, with the trained and
    the untrained model.

    Embeddings of videos that are no longer in the dataset are deleted. Returns the number of files
    written. Raises Diverged if an embedding is not finite, and Interrupted if `stop` returns true.
    """
    digest = check_model(run, training).sha256  # checked before loading, for clearer errors
    trained = Method.from_pretrained(run)
    initial = build_method(data.width, trained.config)
    initial.copy_feature_statistics(trained)
    models = [
        (False, digest, trained.to(device).eval()),
        (True, training["untrained_sha256"], initial.to(device).eval()),
    ]
    written: set[Path] = set()
    for video in track(data.videos, progress, "embedding", unit="video"):
        if stop():
            raise Interrupted(
                f"stopped while embedding; continue with byov-train --run {run.name} --embed-only"
            )
        features = torch.from_numpy(store.read(video)).to(device)
        pts_seconds = read_array(video.path, "pts_seconds")
        parts = embedded_parts(data.dataset, video.view, video.id, video.split, video.frames)
        for untrained, model_sha256, model in models:
            for protocol, clip in parts:
                start, end = clip or (0, video.frames)
                if protocol == "online":  # embed each prefix and keep its last frame
                    lengths = prefix_lengths(video.frames)
                    frames = np.array(lengths) - 1
                    embedded = torch.stack(
                        [model.embed(features[:length])[-1] for length in lengths]
                    )
                else:
                    frames = np.arange(start, end)
                    embedded = model.embed(features[start:end])
                embedding = embedded.cpu().numpy()
                if not np.isfinite(embedding).all():
                    raise Diverged(
                        f"The embeddings of {video.id} are not finite; the model is unusable."
                    )
                provenance = EmbeddingProvenance(
                    run=run.name,
                    model_sha256=model_sha256,
                    dataset=data.dataset,
                    view=video.view,
                    video=video.id,
                    encoder=data.identity["encoder"],
                    encoder_revision=data.identity["revision"],
                    encoder_sha256=data.identity["weights"],
                    preprocessing=data.identity["preprocessing"],
                    column=data.column,
                    column_sha256=video.sha256,
                    first_frame=start,
                )
                folder = embeddings_folder(run, protocol, untrained=untrained)
                path = embedding_path(folder, video.view, video.id, clip)
                write_embedding(path, embedding, pts_seconds[frames], provenance)
                written.add(path)
    for outdated in set(run.glob("embeddings*/*/*.h5")) - written:
        outdated.unlink(missing_ok=True)
    return len(written)
