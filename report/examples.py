"""Examples of what an embedding does: retrieved frames, failures and t-SNE maps."""

import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax

from byov.apply.align import nearest
from byov.cache.features import Header, video_header
from byov.errors import CacheError, EvaluationError
from byov.evaluate.frames import Frames
from byov.evaluate.kendalls_tau import tau_of_each_pair
from byov.evaluate.protocols import Segment, segments
from byov.evaluate.readers import CachedFeatures, EmbeddingReader, RunEmbeddings
from byov.evaluate.scope import available_tasks
from byov.evaluate.tasks import EvaluationOptions
from byov.records import VIEWS, Split
from byov.report import content
from byov.report.content import FrameRef

LOGGER = logging.getLogger(__name__)
SPLITS: tuple[Split, ...] = ("test", "val", "train")  # in order of preference
MAX_VIDEOS = 60  # maximum number of videos per view
TSNE_POINTS = 600
MIN_TSNE_POINTS = 5
PERPLEXITY = 30.0
QUERIES = 3  # per direction
RETRIEVED = 5  # frames per query
WORST_VIDEOS = 3
WORST_FRAMES = 5
TAU_STRIDE = EvaluationOptions().tau_stride


@dataclass(frozen=True, eq=False)
class SplitEmbeddings:
    """Embeddings of a run for the videos shown in a report. Methods take the index of a video."""

    runs_dir: Path
    features_dir: Path
    reader: RunEmbeddings
    split: Split
    segments: tuple[Segment, ...]
    frames: Frames

    @property
    def feature_folder(self) -> Path:
        return self.features_dir / self.reader.run.dataset / self.reader.run.encoder_folder

    @cached_property
    def taus(self) -> NDArray[np.float64]:
        """Kendall's tau for each query and candidate video, shape (V, V); NaN if undefined."""
        return tau_of_each_pair(self.frames.every(TAU_STRIDE))

    @cached_property
    def mean_taus(self) -> NDArray[np.float64]:
        """Mean tau of each video over its pairs, as query and as candidate, shape (V,);

        NaN if undefined.
        """
        if "tau" not in available_tasks(self.reader.manifest):
            return np.full(len(self.segments), np.nan)
        known = np.ma.masked_invalid(np.concatenate([self.taus, self.taus.T], axis=1))
        means: NDArray[np.float64] = known.mean(axis=1).filled(np.nan)
        return means

    def videos_of(self, view: str) -> list[int]:
        return [index for index, segment in enumerate(self.segments) if segment.video.view == view]

    def embeddings(self, video: int) -> NDArray[np.float32]:
        """Return the (T, D) embeddings of a video."""
        first = self.frames.starts[video]
        return self.frames.embeddings[first : first + self.frames.lengths[video]]

    @property
    def by_video(self) -> list[NDArray[np.float32]]:
        """Embeddings (T, D) of each video."""
        return np.split(self.frames.embeddings, self.frames.starts[1:])

    def feature_header(self, video: int) -> Header:
        return video_header(self.feature_folder, self.segments[video].video)


def read_split(
    runs_dir: Path, features_dir: Path, run: str, split: Split | None = None
) -> SplitEmbeddings:
    """Read a run's embeddings for a split, of at most MAX_VIDEOS videos per view."""
    reader = RunEmbeddings(runs_dir, features_dir, run)
    available = {video.split for video in reader.manifest.videos if video.frames}
    usual: Split = min(SPLITS, key=lambda name: name not in available)
    if split is None and usual != "test":
        LOGGER.info(
            f"{reader.manifest.dataset} has no test videos; the report shows the {usual} split"
        )
    split = split or usual
    everything = segments(reader.manifest, split)
    shown = limit_videos(everything)
    if len(shown) < len(everything):
        LOGGER.info(f"the figures show {len(shown)} of the {len(everything)} {split} videos")
    return SplitEmbeddings(
        runs_dir, features_dir, reader, split, tuple(shown), reader.frames_of(shown, split)
    )


def limit_videos(everything: Sequence[Segment]) -> list[Segment]:
    """Select at most MAX_VIDEOS evenly spaced videos per view, ego first."""
    views = [[segment for segment in everything if segment.video.view == view] for view in VIEWS]
    return [videos[index] for videos in views for index in evenly_spaced(len(videos), MAX_VIDEOS)]


def _require_two_videos(data: SplitEmbeddings) -> None:
    if len(data.segments) == 1:
        raise EvaluationError(f"the {data.split} split has only one video")


def choose_strips(data: SplitEmbeddings) -> tuple[content.Strip, ...]:
    """Retrieve frames across views, with queries evenly spaced over videos and frames."""
    for view in VIEWS:
        if not data.videos_of(view):
            raise EvaluationError(f"the {data.split} split has no {view} videos")
    strips = {}
    for query_view, candidate_view in (VIEWS, VIEWS[::-1]):
        queries = data.videos_of(query_view)
        for part in range(QUERIES):
            video = queries[(2 * part + 1) * len(queries) // (2 * QUERIES)]
            frame = (2 * part + 1) * len(data.segments[video]) // (2 * QUERIES)
            query = data.embeddings(video)[frame].astype(np.float64)
            nearest_frames = []
            for other in data.videos_of(candidate_view):
                distances = np.linalg.norm(data.embeddings(other) - query, axis=1)
                nearest_frames.append((distances.min(), FrameRef(other, int(distances.argmin()))))
            strips[video, frame] = (
                FrameRef(video, frame),
                *(ref for _, ref in sorted(nearest_frames)[:RETRIEVED]),
            )
    return tuple(strips.values())


def find_failures(data: SplitEmbeddings) -> content.Failures:
    """Find the videos with the lowest mean tau, and their worst matches."""
    _require_two_videos(data)
    if "tau" not in available_tasks(data.reader.manifest):
        raise EvaluationError(
            f"the videos of {data.reader.manifest.dataset} show different actions, so Kendall's "
            "tau is undefined"
        )
    taus = data.taus
    means = data.mean_taus
    ascending = np.argsort(means, kind="stable")  # NaN values come last
    chosen = [int(video) for video in ascending[:WORST_VIDEOS] if not np.isnan(means[video])]
    if not chosen:
        raise EvaluationError("Kendall's tau is undefined because the nearest frame never changes")
    worst = []
    for video in chosen:
        frames = centers(len(data.segments[video]), WORST_FRAMES)
        others = [other for other in range(len(data.segments)) if other != video]
        partner = min(others, key=lambda other: np.nan_to_num(taus[video, other], nan=np.inf))
        matched = nearest(data.embeddings(video)[list(frames)], data.embeddings(partner)).tolist()
        pairs = [
            (FrameRef(video, at), FrameRef(partner, match))
            for at, match in zip(frames, matched, strict=True)
        ]
        worst.append(
            content.WorstVideo(
                video, float(means[video]), partner, float(taus[video, partner]), tuple(pairs)
            )
        )
    reference = FrameRef(chosen[0], len(data.segments[chosen[0]]) // 2)
    z = data.embeddings(reference.video).astype(np.float64)
    # The softmax of unit vectors is always flat.
    is_unit = np.allclose(np.linalg.norm(z, axis=1), 1, atol=1e-2)
    similarity = None if is_unit else softmax(z @ z[reference.frame] / np.sqrt(z.shape[1]))
    return content.Failures(tuple(worst), reference, similarity)


def project(
    data: SplitEmbeddings,
    runs: Sequence[SplitEmbeddings],
    sampled: Sequence[tuple[int, ...]],
    seed: int,
) -> content.Projection:
    """Compute t-SNE maps of the frozen features, the untrained model and the runs from some samples
    of each video.
    """
    limit = max(TSNE_POINTS // len(sampled), 2)
    chosen = [[frames[index] for index in evenly_spaced(len(frames), limit)] for frames in sampled]
    points = [FrameRef(video, frame) for video, frames in enumerate(chosen) for frame in frames]
    if len(points) < MIN_TSNE_POINTS:
        raise EvaluationError(f"t-SNE needs at least {MIN_TSNE_POINTS} frames, found {len(points)}")

    def read(reader: EmbeddingReader) -> NDArray[np.float32]:
        videos = zip(data.segments, chosen, strict=True)
        return np.concatenate([reader.rows(segment)[frames] for segment, frames in videos])

    run = data.reader.run
    features = CachedFeatures(data.features_dir, run.dataset, run.encoder_folder, run.column)
    embeddings = {f"Frozen: {features.name}": read(features)}
    # The embeddings of the untrained model may have been deleted.
    with suppress(CacheError, EvaluationError):
        embeddings["Untrained"] = read(
            RunEmbeddings(data.runs_dir, data.features_dir, run.name, untrained=True)
        )
    for run_data in runs:
        embeddings[f"Trained: {run_data.reader.run.name}"] = read(run_data.reader)
    return content.Projection(
        tuple(points), tuple((title, tsne(rows, seed)) for title, rows in embeddings.items())
    )


def sampled_vectors(
    data: SplitEmbeddings, runs: Sequence[SplitEmbeddings], samples: Sequence[tuple[int, ...]]
) -> tuple[content.RunVectors, ...]:
    _require_two_videos(data)
    vectors = []
    for run in runs:
        sampled = tuple(run.embeddings(video)[list(frames)] for video, frames in enumerate(samples))
        vectors.append(content.RunVectors(run.reader.run.name, sampled, run.taus))
    return tuple(vectors)


def evenly_spaced(count: int, limit: int) -> tuple[int, ...]:
    """Return at most `limit` of the indices 0 ... count - 1, evenly spaced, including the first and
    the last.

    >>> evenly_spaced(3, 5), evenly_spaced(10, 4)
    ((0, 1, 2), (0, 3, 6, 9))
    """
    return tuple(np.linspace(0, count - 1, min(count, limit)).round().astype(np.int64).tolist())


def centers(count: int, parts: int) -> tuple[int, ...]:
    """Return the middle index of each of `parts` equal parts of 0 ... count - 1, without
    duplicates.

    >>> centers(9, 3), centers(2, 3)
    ((1, 4, 7), (0, 1))
    """
    return tuple(dict.fromkeys((2 * part + 1) * count // (2 * parts) for part in range(parts)))


def tsne(points: NDArray[np.float32], seed: int) -> NDArray[np.float64]:
    """Return the (n, 2) t-SNE of (n, D) points; zeros if all are equal.

    Uses a single thread to be reproducible.
    """
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits

    centered = points.astype(np.float64) - points.mean(axis=0, dtype=np.float64)
    scale = np.abs(centered).max()
    if scale <= np.finfo(np.float32).eps * np.abs(points).max():
        return np.zeros((len(points), 2))
    if centered.shape[1] < 2:
        centered = np.pad(centered, ((0, 0), (0, 1)))
    fit = TSNE(2, perplexity=min(PERPLEXITY, (len(points) - 1) / 3), init="pca", random_state=seed)
    with threadpool_limits(1):
        coordinates: NDArray[np.float32] = fit.fit_transform(centered / scale)
    return coordinates.astype(np.float64)
