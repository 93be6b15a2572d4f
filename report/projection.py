"""t-SNE of the same frames by frozen features, by the untrained model and by the runs."""

from collections.abc import Sequence
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

from byov.errors import CacheError, EvaluationError
from byov.evaluate.embeddings import CachedFeatures, EmbeddingReader, RunEmbeddings
from byov.report.content import FrameRef, PointMap, Projection, Unavailable
from byov.report.material import Material
from byov.report.spread import evenly

POINTS = 600  # of all videos
FEWEST_POINTS = 5
PERPLEXITY = 30.0

Chosen = list[tuple[int, tuple[int, ...]]]  # (video, frames)


def choose_frames(moments: Sequence[tuple[int, ...]]) -> Chosen:
    """As many of each video; moments: the frames of each that the page knows."""
    most = max(POINTS // len(moments), 2)
    return [(video, tuple(known[at] for at in evenly(len(known), most))) for video, known in enumerate(moments)]


def project(materials: Sequence[Material], chosen: Chosen, seed: int) -> Projection | Unavailable:
    """materials: of the run, and of those that it is compared with."""
    material, count = materials[0], sum(len(frames) for _, frames in chosen)
    if count < FEWEST_POINTS:
        return Unavailable(f"a map needs at least {FEWEST_POINTS} frames, the videos have {count}")
    run = material.reader.run
    try:
        features = CachedFeatures(material.features_dir, run.dataset, run.encoder_folder, run.column)
        for video, _ in chosen:
            material.feature_header(video)  # are they still what the run has embedded?
        frozen = _rows(material, features, chosen)
    except (CacheError, EvaluationError) as error:
        return Unavailable(material.without_places(error))
    points = [(f"Frozen: {features.name}", frozen)]
    untrained = RunEmbeddings(material.runs_dir, material.features_dir, run.name, untrained=True)
    with suppress(CacheError, EvaluationError):  # a run need not have kept them
        points.append(("Untrained", _rows(material, untrained, chosen)))
    points += [
        (f"Trained: {one.reader.run.name}", np.concatenate([one.embeddings(video)[list(at)] for video, at in chosen]))
        for one in materials
    ]
    return Projection(
        frames=tuple(FrameRef(video, frame) for video, frames in chosen for frame in frames),
        maps=tuple(PointMap(title, tsne(rows, seed)) for title, rows in points),
        frames_of_split=len(material.frames.embeddings),
    )


def _rows(material: Material, reader: EmbeddingReader, chosen: Chosen) -> NDArray[np.float32]:
    return np.concatenate([reader.rows(material.segments[video])[list(frames)] for video, frames in chosen])


def perplexity(points: int) -> float:
    return min(PERPLEXITY, (points - 1) / 3)


def tsne(points: NDArray[np.float32], seed: int) -> NDArray[np.float64]:
    """(n, D) → (n, 2) by t-SNE. In one thread: several would add up in an order that they decide."""
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits

    centered = points.astype(np.float64) - points.mean(axis=0, dtype=np.float64)
    scale = np.abs(centered).max()
    if scale <= np.finfo(np.float32).eps * np.abs(points).max():  # all are one point
        return np.zeros((len(points), 2))
    if centered.shape[1] < 2:
        centered = np.pad(centered, ((0, 0), (0, 1)))
    with threadpool_limits(1):
        fit = TSNE(2, perplexity=perplexity(len(points)), init="pca", random_state=seed)
        placed: NDArray[np.float64] = fit.fit_transform(centered / scale).astype(np.float64)
    return placed
