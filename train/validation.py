"""Validation metrics during training, computed by the evaluator's own functions."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from byov.cache.layout import trimmed_clips
from byov.errors import Diverged
from byov.evaluate.frames import Frames, Missing
from byov.evaluate.kendalls_tau import tau_for_selection
from byov.evaluate.retrieval import mean_average_precision
from byov.records import UNLABELED
from byov.train.feature_store import CachedVideo, FeatureStore
from byov.train.methods.base import Method

CROSS_VIEW = ("ego2exo", "exo2ego")
K = 10  # map@10, as in the paper's main table
TAU_STRIDE = 5  # every 5th frame, as in AE2's evaluator


@dataclass(frozen=True)
class EmbeddedClip:
    """Embeddings of a video or of one of its sub-clips."""

    video: CachedVideo
    embedding: NDArray[np.float32]  # (T, D)
    labels: tuple[int, ...] | None  # phase of each frame


class Validator:
    """Embeds the val videos, as a whole and as sub-clips, and scores the embeddings."""

    def __init__(self, dataset: str, videos: Sequence[CachedVideo], store: FeatureStore, device: torch.device) -> None:
        self._dataset, self._videos, self._store, self._device = dataset, videos, store, device

    def __call__(self, model: Method) -> dict[str, float]:
        """Return metric → value, without the metrics that the views and labels of the split do not allow."""
        whole, clips = [], []
        model.eval()
        for video in self._videos:
            features = torch.from_numpy(self._store.read(video)).to(self._device)
            whole.append(_embed(model, video, features, 0, video.frames))
            for first, last in trimmed_clips(self._dataset, video.view, video.id, video.frames):
                clips.append(_embed(model, video, features, first, last + 1))
        model.train()
        by_direction = cross_view_map(whole)
        metrics = {f"map@{K}_{direction}": value for direction, value in by_direction.items()}
        metrics["retrieval"] = _mean(by_direction.values())
        metrics["trimmed"] = _mean(cross_view_map(clips).values())
        metrics["tau"] = _value(tau_for_selection(_concatenate(whole), stride=TAU_STRIDE))
        metrics["both"] = _mean((metrics["retrieval"], metrics["trimmed"]))
        return {name: value for name, value in metrics.items() if value is not None}


def cross_view_map(clips: Sequence[EmbeddedClip]) -> dict[str, float | None]:
    """Return map@10 of ego queries in exo frames and the reverse; None without labels or without one of the views."""
    labeled = [clip for clip in clips if clip.labels is not None and max(clip.labels) > UNLABELED]
    if not labeled:
        return dict.fromkeys(CROSS_VIEW)
    scores = mean_average_precision(_concatenate(labeled).labeled_frames, (K,), CROSS_VIEW)
    return {direction: _value(scores[direction][K]) for direction in CROSS_VIEW}


def _embed(model: Method, video: CachedVideo, features: torch.Tensor, first: int, end: int) -> EmbeddedClip:
    embedding = model.embed(features[first:end]).cpu()
    if not embedding.isfinite().all():
        raise Diverged(f"The embeddings of {video.id} are not finite. Start another run with a lower --lr.")
    return EmbeddedClip(video, embedding.numpy(), None if video.labels is None else video.labels[first:end])


def _concatenate(clips: Sequence[EmbeddedClip]) -> Frames:
    labels = [clip.labels for clip in clips if clip.labels is not None]
    return Frames(
        np.concatenate([clip.embedding for clip in clips]),
        np.concatenate(labels) if len(labels) == len(clips) else None,
        np.array([len(clip.embedding) for clip in clips]),
        np.array([clip.video.view == "ego" for clip in clips]),
        tuple(clip.video.id for clip in clips),
    )


def _value(score: float | Missing) -> float | None:
    return None if isinstance(score, Missing) else score


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
