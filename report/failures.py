"""The videos with the lowest Kendall's tau, and how similar one frame of the worst is to all others there."""

import numpy as np
from numpy.typing import NDArray

from byov.apply.align import nearest
from byov.evaluate.evaluation import tasks_of
from byov.evaluate.kendalls_tau import tau_of_each_pair
from byov.evaluate.tasks import EvaluationOptions
from byov.report.content import Failures, Unavailable, WorstVideo
from byov.report.gallery import Gallery
from byov.report.material import Material
from byov.report.spread import centers

WORST = 3
FRAMES = 5  # the middle one is the reference of the worst
STRIDE = EvaluationOptions().tau_stride  # as the evaluator

Taus = NDArray[np.float64]  # (V, V) of query and candidate videos; NaN where a pair has none


def pair_taus(material: Material) -> Taus | Unavailable:
    if len(material) == 1:
        return Unavailable(f"the {material.split} split has only one video: none to match it with")
    if "tau" not in tasks_of(material.reader.manifest):
        return Unavailable(f"the videos of {material.reader.manifest.dataset} show different actions: they have no tau")
    return tau_of_each_pair(material.frames.every(STRIDE))


def find_failures(material: Material, gallery: Gallery, taus: Taus | Unavailable) -> Failures | Unavailable:
    if isinstance(taus, Unavailable):
        return taus
    means = mean_taus(taus)
    rising = np.argsort(means, kind="stable")  # NaN comes last
    chosen = [int(video) for video in rising[:WORST] if not np.isnan(means[video])]
    if not chosen:
        return Unavailable("no pair of videos has a Kendall's tau: the nearest frame never changes")
    worst = tuple(_worst(material, gallery, video, float(means[video]), taus[video]) for video in chosen)
    reference = material.length(chosen[0]) // 2
    return Failures(
        worst=worst,
        reference=gallery.ref(chosen[0], reference),
        similarity=softmax_similarity(material.embeddings(chosen[0]), reference),
    )


def mean_taus(taus: Taus) -> NDArray[np.float64]:
    """(V,) the mean over a video's pairs in both roles; NaN if it has none."""
    given = ~np.isnan(taus)
    known = np.where(given, taus, 0)
    sums, counts = known.sum(axis=0) + known.sum(axis=1), given.sum(axis=0) + given.sum(axis=1)
    means = np.full(len(taus), np.nan)
    np.divide(sums, counts, out=means, where=counts > 0)
    return means


def softmax_similarity(embeddings: NDArray[np.float32], reference: int) -> NDArray[np.float64]:
    """(T, D) → (T,) softmax over the frames of z_ref · z_t / sqrt(D)."""
    exact = embeddings.astype(np.float64)
    scores = exact @ exact[reference] / np.sqrt(exact.shape[1])
    weights = np.exp(scores - scores.max())
    share: NDArray[np.float64] = weights / weights.sum()
    return share


def _worst(material: Material, gallery: Gallery, video: int, tau: float, taus: NDArray[np.float64]) -> WorstVideo:
    """taus: (V,) of the video as query. Its partner is where the order of its frames is kept least."""
    frames = centers(material.length(video), FRAMES)
    others = [other for other in range(len(material)) if other != video]
    partner = min(others, key=lambda other: np.inf if np.isnan(taus[other]) else taus[other])
    matched = tuple(nearest(material.embeddings(video)[list(frames)], material.embeddings(partner)).tolist())
    gallery.show(video, frames)
    gallery.show(partner, matched)
    return WorstVideo(video, tau, frames, partner, float(taus[partner]), matched)
