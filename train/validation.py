"""How good the encoder is on the val split, often enough to choose a model: the evaluator's own measures."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from byov.errors import Diverged
from byov.evaluate.frames import Frames, Missing
from byov.evaluate.kendalls_tau import tau_for_selection
from byov.evaluate.protocols import trimmed_clips
from byov.evaluate.retrieval import mean_average_precision
from byov.records import UNLABELED
from byov.train.feature_store import CachedVideo, FeatureStore
from byov.train.methods.base import Method

CROSS_VIEW = ("ego2exo", "exo2ego")
K = 10  # map@10, as in the paper's main table
TAU_STRIDE = 5  # every 5th frame, as AE2's evaluator


@dataclass(frozen=True)
class EmbeddedClip:
    """One video, or a sub-clip of it."""

    video: CachedVideo
    embedding: NDArray[np.float32]  # (T, D)
    labels: tuple[int, ...] | None  # of its frames


class Validator:
    """Embeds the val videos, whole and as sub-clips on their own, and scores them."""

    def __init__(self, dataset: str, videos: Sequence[CachedVideo], store: FeatureStore, device: torch.device) -> None:
        self._dataset, self._videos, self._store, self._device = dataset, videos, store, device

    def __call__(self, model: Method) -> dict[str, float]:
        """Metric → value; those that the split's views and labels do not allow are left out."""
        whole, clips = [], []
        for video in self._videos:
            features = torch.from_numpy(self._store.read(video)).to(self._device)
            whole.append(_embed(model, video, features, 0, video.frames))
            for first, last in trimmed_clips(self._dataset, video.view, video.id, video.frames):
                clips.append(_embed(model, video, features, first, last + 1))
        by_view = cross_view_map(whole)
        metrics = {f"map@{K}_{setting}": value for setting, value in by_view.items()}
        metrics |= {"retrieval": _mean(by_view), "trimmed": _mean(cross_view_map(clips)), "tau": mean_tau(whole)}
        metrics["both"] = _mean({name: metrics[name] for name in ("retrieval", "trimmed")})
        return {name: value for name, value in metrics.items() if value is not None}


def cross_view_map(clips: Sequence[EmbeddedClip]) -> dict[str, float | None]:
    """map@10 of ego frames among exo frames and the reverse; None without labels or one of the views."""
    labeled = [clip for clip in clips if clip.labels is not None and max(clip.labels) > UNLABELED]
    if not labeled:
        return dict.fromkeys(CROSS_VIEW)
    scores = mean_average_precision(_joined(labeled).labeled_frames, (K,), CROSS_VIEW)
    return {setting: _known(scores[setting][K]) for setting in CROSS_VIEW}


def mean_tau(clips: Sequence[EmbeddedClip]) -> float | None:
    """Over the ordered pairs of videos. A pair whose nearest frame never changes counts 0: a collapse is no success."""
    return None if len(clips) < 2 else _known(tau_for_selection(_joined(clips), stride=TAU_STRIDE))


def _joined(clips: Sequence[EmbeddedClip]) -> Frames:
    labels = [clip.labels for clip in clips if clip.labels is not None]
    return Frames(
        np.concatenate([clip.embedding for clip in clips]),
        np.concatenate(labels) if len(labels) == len(clips) else None,
        np.array([len(clip.embedding) for clip in clips]),
        np.array([clip.video.view == "ego" for clip in clips]),
        tuple(clip.video.id for clip in clips),
    )


def _embed(model: Method, video: CachedVideo, features: torch.Tensor, first: int, end: int) -> EmbeddedClip:
    labels = None if video.labels is None else video.labels[first:end]
    embedding = model.embed(features[first:end]).cpu()
    if not embedding.isfinite().all():
        raise Diverged(f"the model's embeddings of {video.id} are not finite; start another run with a lower --lr")
    return EmbeddedClip(video, embedding.numpy(), labels)


def _known(score: float | Missing) -> float | None:
    return None if isinstance(score, Missing) else score


def _mean(values: dict[str, float | None]) -> float | None:
    known = [value for value in values.values() if value is not None]
    return sum(known) / len(known) if known else None
