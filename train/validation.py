"""Validation metrics during training, computed with the functions of the evaluator."""

import logging
from collections.abc import Sequence
from statistics import fmean

import numpy as np
import torch

from byov.cache.layout import trimmed_clips
from byov.errors import Diverged
from byov.evaluate.frames import Frames, Missing
from byov.evaluate.kendalls_tau import tau_for_selection
from byov.evaluate.retrieval import mean_average_precision
from byov.records import UNLABELED
from byov.train.feature_store import CachedVideo, FeatureStore, TrainingData
from byov.train.methods.base import Method

LOGGER = logging.getLogger(__name__)
CROSS_VIEW = ("ego2exo", "exo2ego")
K = 10  # map@10, as in the paper's main table
TAU_STRIDE = 5  # every 5th frame, as in AE2's evaluator


def selection_metric(data: TrainingData, select: str) -> str:
    """Return the model-selection metric, falling back to one that the val split supports."""
    val = data.split("val")
    labeled_views = {video.view for video in val if video.labels is not None}
    if select == "last" or (val and select == "tau") or len(labeled_views) == 2:
        return select
    possible = "tau" if val else "last"
    LOGGER.info(
        f"--select {select} needs val videos of both views with phase labels; using --select "
        f"{possible}"
    )
    return possible


class Validator:
    """Validation function that embeds the val videos, whole and as sub-clips, and scores the
    embeddings.
    """

    def __init__(
        self, dataset: str, videos: Sequence[CachedVideo], store: FeatureStore, device: torch.device
    ) -> None:
        self._store = store
        self._device = device
        self._whole = [(video, 0, video.frames) for video in videos]
        self._trimmed = [
            (video, *clip)
            for video in videos
            for clip in trimmed_clips(dataset, video.view, video.id, video.frames)
        ]

    def __call__(self, model: Method) -> dict[str, float]:
        """Return a dict mapping metric names to values; metrics that the val split does not support
        are omitted.
        """
        model.eval()
        whole = self._embed(model, self._whole)
        trimmed = self._embed(model, self._trimmed)
        model.train()
        standard = cross_view_map(whole)
        clips = cross_view_map(trimmed)
        metrics = {f"map@{K}_{direction}": score for direction, score in standard.items()}
        means = {
            name: fmean(scores.values())
            for name, scores in (("retrieval", standard), ("trimmed", clips))
            if scores
        }
        tau = tau_for_selection(whole, stride=TAU_STRIDE)
        metrics |= means | ({} if isinstance(tau, Missing) else {"tau": tau})
        return metrics | ({"both": fmean(means.values())} if means else {})

    def _embed(self, model: Method, clips: Sequence[tuple[CachedVideo, int, int]]) -> Frames:
        """Embed clips, each given as a video with a half-open interval of frames."""
        embeddings = []
        labels = []
        for video, start, stop in clips:
            features = torch.from_numpy(self._store.read(video)[start:stop]).to(self._device)
            embedding = model.embed(features).cpu()
            if not embedding.isfinite().all():
                raise Diverged(
                    f"The embeddings of {video.id} are not finite. Start another run with a lower "
                    "--lr."
                )
            embeddings.append(embedding.numpy())
            labels.append((video.labels or (UNLABELED,) * video.frames)[start:stop])
        return Frames(
            np.concatenate(embeddings),
            np.concatenate(labels),
            np.array([len(embedding) for embedding in embeddings]),
            np.array([video.view == "ego" for video, _, _ in clips]),
        )


def cross_view_map(frames: Frames) -> dict[str, float]:
    """Return map@10 for ego-to-exo and exo-to-ego retrieval; empty if labels or one of the views
    are missing.
    """
    if frames.labels is None or frames.labels.max() == UNLABELED:
        return {}
    scores = mean_average_precision(frames.labeled_frames, (K,), CROSS_VIEW)
    means = {direction: scores[direction][K] for direction in CROSS_VIEW}
    return {
        direction: score for direction, score in means.items() if not isinstance(score, Missing)
    }
