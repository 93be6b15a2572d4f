"""t-SNE of the same frames before and after training."""

import numpy as np
from numpy.typing import NDArray

from byov.errors import CacheError, EvaluationError
from byov.evaluate.embedding_readers import CachedFeatures
from byov.report.content import Projection, Unavailable
from byov.report.gallery import Gallery
from byov.report.material import Material
from byov.report.nearest_frames import PLAYER_FRAMES
from byov.report.spread import evenly

VIDEOS = 2  # of each view
FEWEST_POINTS = 5
PERPLEXITY = 30.0
METHOD = "exact"  # the approximate one adds up in an order that its threads decide


def choose_frames(material: Material) -> list[tuple[int, tuple[int, ...]]]:
    """(video, frames) of the first videos of each view."""
    chosen = [video for view in ("ego", "exo") for video in material.of_view(view)[:VIDEOS]]
    return [(video, evenly(material.length(video), PLAYER_FRAMES)) for video in chosen]


def project(material: Material, gallery: Gallery, seed: int) -> Projection | Unavailable:
    chosen, run = choose_frames(material), material.reader.run
    count = sum(len(frames) for _, frames in chosen)
    if count < FEWEST_POINTS:
        return Unavailable(f"a map needs at least {FEWEST_POINTS} frames, the videos have {count}")
    try:
        features = CachedFeatures(material.features_dir, run.dataset, run.encoder_folder, run.column)
        before = [_rows(material, features, video)[list(frames)] for video, frames in chosen]
    except (CacheError, EvaluationError) as error:
        return Unavailable(material.without_places(error))
    after = [material.embeddings(video)[list(frames)] for video, frames in chosen]
    return Projection(
        frames=tuple(gallery.ref(video, frame) for video, frames in chosen for frame in frames),
        before=tsne(np.concatenate(before), seed),
        after=tsne(np.concatenate(after), seed),
        before_name=features.name,
    )


def _rows(material: Material, features: CachedFeatures, video: int) -> NDArray[np.float32]:
    """(T, d) of a video, if they are still what the run has embedded."""
    material.feature_header(video)
    return features.rows(material.segments[video])


def perplexity(points: int) -> float:
    return min(PERPLEXITY, (points - 1) / 3)


def tsne(points: NDArray[np.float32], seed: int) -> NDArray[np.float64]:
    """(n, D) → (n, 2) by t-SNE."""
    from sklearn.manifold import TSNE

    centred = points.astype(np.float64) - points.mean(axis=0, dtype=np.float64)
    scale = np.abs(centred).max()
    if scale <= np.finfo(np.float32).eps * np.abs(points).max():  # all are one point
        return np.zeros((len(points), 2))
    if centred.shape[1] < 2:
        centred = np.pad(centred, ((0, 0), (0, 1)))
    fit = TSNE(2, perplexity=perplexity(len(points)), init="pca", random_state=seed, method=METHOD)
    placed: NDArray[np.float64] = fit.fit_transform(centred / scale).astype(np.float64)
    return placed
