"""How good the encoder is on the val split, often enough to choose a model: cross-view retrieval and Kendall's tau.

The evaluator's own measures, without its packages; a test holds the two together.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from byov.cache.sub_clips import trimmed_clips
from byov.errors import Diverged
from byov.train.autoencoder import Autoencoder
from byov.train.feature_store import CachedVideo, FeatureStore

K = 10  # map@10, as in the paper's main table
BLOCK_ELEMENTS = 2**22  # of one block of distances: 32 MiB
TAU_STRIDE = 5  # every 5th frame, as AE2's evaluator


@dataclass(frozen=True)
class Embedded:
    """One video or sub-clip."""

    video: CachedVideo
    embedding: Tensor  # (T, D)
    labels: Tensor | None  # (T,)


class Validator:
    """Embeds the val videos, whole and as sub-clips on their own, and scores them."""

    def __init__(self, dataset: str, videos: Sequence[CachedVideo], store: FeatureStore, device: torch.device) -> None:
        self._dataset, self._videos, self._store, self._device = dataset, videos, store, device

    def __call__(self, model: Autoencoder) -> dict[str, float]:
        """Metric → value; those that the split's views and labels do not allow are left out."""
        whole, clips = [], []
        for video in self._videos:
            features = torch.from_numpy(self._store.read(video)).to(self._device)
            whole.append(_embed(model, video, features, 0, video.frames))
            for first, last in trimmed_clips(self._dataset, video.view, video.id, video.frames):
                clips.append(_embed(model, video, features, first, last + 1))
        metrics = {
            "map@10_ego2exo": cross_view_map(whole, "ego"),
            "map@10_exo2ego": cross_view_map(whole, "exo"),
            "retrieval": _mean([cross_view_map(whole, view) for view in ("ego", "exo")]),
            "trimmed": _mean([cross_view_map(clips, view) for view in ("ego", "exo")]),
            "tau": kendalls_tau([item.embedding for item in whole]),
        }
        metrics["both"] = _mean([metrics["retrieval"], metrics["trimmed"]])
        return {name: value for name, value in metrics.items() if value is not None}


def cross_view_map(items: Sequence[Embedded], query_view: str, k: int = K) -> float | None:
    """map@k of the frames of one view, searched among those of the other; None without labels or one of the views."""
    queries = [item for item in items if item.video.view == query_view and item.labels is not None]
    candidates = [item for item in items if item.video.view != query_view and item.labels is not None]
    if not queries or not candidates:
        return None
    found = torch.cat([item.embedding for item in candidates]).double()
    found_labels = torch.cat([item.labels for item in candidates if item.labels is not None])
    precisions = [
        _average_precision(item.embedding.double(), item.labels, found, found_labels, k)
        for item in queries
        if item.labels is not None
    ]
    return float(torch.cat(precisions).mean())


def _average_precision(query: Tensor, labels: Tensor, found: Tensor, found_labels: Tensor, k: int) -> Tensor:
    """(T,) AP@k of each query frame: mean of the precision at the ranks of its relevant hits, 0 without any."""
    rows = max(1, BLOCK_ELEMENTS // len(found))
    nearest = torch.cat(
        [torch.cdist(some, found).topk(min(k, len(found)), largest=False).indices for some in torch.split(query, rows)]
    )
    relevant = (found_labels[nearest] == labels[:, None]).double()  # (T, k)
    precision = relevant.cumsum(1) / torch.arange(1, relevant.shape[1] + 1, device=relevant.device)
    return (precision * relevant).sum(1) / relevant.sum(1).clamp(min=1)


def kendalls_tau(embeddings: Sequence[Tensor], stride: int = TAU_STRIDE) -> float | None:
    """Mean tau-b over ordered pairs of videos between 0..n-1 and each frame's nearest neighbour in the other video."""
    sampled = [embedding[::stride].double() for embedding in embeddings]
    taus = [
        tau
        for query in sampled
        for other in sampled
        if query is not other and (tau := _tau(torch.cdist(query, other).argmin(dim=1))) is not None
    ]
    return _mean(taus)


def _tau(neighbours: Tensor) -> float | None:
    """tau-b of a sequence against its own order; None if it is constant."""
    signs = [(neighbours[first + 1 :] - neighbours[first]).sign() for first in range(len(neighbours) - 1)]
    concordance = sum(int(later.sum()) for later in signs)
    untied = sum(int(later.count_nonzero()) for later in signs)
    pairs = len(neighbours) * (len(neighbours) - 1) // 2
    return concordance / (pairs * untied) ** 0.5 if untied else None


def _embed(model: Autoencoder, video: CachedVideo, features: Tensor, first: int, end: int) -> Embedded:
    labels = None if video.labels is None else torch.tensor(video.labels[first:end])
    embedding = model.embed(features[first:end]).cpu()  # not every device has float64
    if not embedding.isfinite().all():
        raise Diverged(f"the model's embeddings of {video.id} are not finite; start another run with a lower --lr")
    return Embedded(video, embedding, labels)


def _mean(values: Sequence[float | None]) -> float | None:
    there = [value for value in values if value is not None]
    return sum(there) / len(there) if there else None
