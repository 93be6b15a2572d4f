"""Training frames of a run, and estimates of the progress of other videos from them."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

import byov
from byov.apply.arrays import VideoArrays, load_features
from byov.evaluate.progress_error import mean_phase_starts, reference_progress
from byov.evaluate.transfer import ReferenceFrames, square_distances
from byov.records import UNLABELED
from byov.train.progress import aligned_progress

# Limits for videos that show the action as usual, chosen on the demo set; docs/annotate.md has the
# resulting errors.
#
# Mean distance to the nearest training frames, relative to the usual distance.
UNFAMILIAR = 1.8
DISAGREEMENT = 0.036  # mean standard deviation of progress among the nearest training frames
DISORDER = 0.02  # mean distance of the progress from a non-decreasing curve
LATE_START = 0.25  # progress at the start of the video
EARLY_END = 0.7  # progress at the end of the video
END_FRAMES = 0.05  # fraction of the frames that count as the start, or as the end
SAMPLED_FRAMES = 500  # number of training frames from which the usual distance is computed


@dataclass(frozen=True, eq=False)
class Estimate:
    """Estimate of the progress of a video from the nearest training frames.

    Attributes:
        progress: (T,) mean progress of the training frames nearest to each frame.
        unfamiliarity: (T,) distance to them, relative to the usual distance.
        disagreement: (T,) standard deviation of their progress.
    """

    progress: NDArray[np.float64]
    unfamiliarity: NDArray[np.float64]
    disagreement: NDArray[np.float64]

    @cached_property
    def ends(self) -> tuple[float, float]:
        """Mean progress of the first and of the last frames."""
        count = max(1, round(END_FRAMES * len(self.progress)))
        return float(self.progress[:count].mean()), float(self.progress[-count:].mean())

    @cached_property
    def disorder(self) -> float:
        """Mean distance of the progress from the closest non-decreasing curve."""
        from sklearn.isotonic import isotonic_regression  # takes a second to import

        return float(np.abs(self.progress - isotonic_regression(self.progress)).mean())

    def problems(self) -> list[str]:
        """Return reasons why the video does not seem to show the action as the training videos
        do.
        """
        first, last = self.ends
        reasons = {
            "its frames look unlike the training videos": self.unfamiliarity.mean() > UNFAMILIAR,
            "similar training frames disagree about the progress": self.disagreement.mean()
            > DISAGREEMENT,
            "the action does not advance steadily": self.disorder > DISORDER,
            f"it starts at {first:.0%} of the action": first > LATE_START,
            f"it ends at {last:.0%} of the action": last < EARLY_END,
        }
        return [reason for reason, applies in reasons.items() if applies]


@dataclass(frozen=True, eq=False)
class TrainingFrames:
    """Frames of all training videos of a run.

    Attributes:
        videos: Embeddings (T, D) of each training video, and its manifest entry.
        frames: All frames as reference frames.
        labels: (F,) phase of each frame, UNLABELED if unknown.
        video_of_frame: (F,) index of the video of each frame.
    """

    videos: VideoArrays
    frames: ReferenceFrames
    labels: NDArray[np.int64]
    video_of_frame: NDArray[np.int64]

    def estimate(self, embedding: NDArray[np.float32]) -> Estimate:
        """Estimate the progress of a video with embeddings (T, D)."""
        distances, neighbors = self.frames.nearest(embedding)
        progress = self.frames.progress[neighbors]  # (T, K)
        unfamiliarity = distances.mean(axis=1) / self.usual_distance
        return Estimate(progress.mean(axis=1), unfamiliarity, progress.std(axis=1))

    @cached_property
    def usual_distance(self) -> float:
        """Median distance of training frames to the nearest frames of other training videos."""
        embeddings = self.frames.embeddings
        count = min(SAMPLED_FRAMES, len(embeddings))
        sampled = np.random.default_rng(0).choice(len(embeddings), count, replace=False)
        distances = np.sqrt(square_distances(embeddings[sampled], embeddings))
        distances[self.video_of_frame[sampled][:, None] == self.video_of_frame] = np.inf
        nearest = np.sort(distances, axis=1)[:, : self.frames.neighbors]
        finite = nearest[np.isfinite(nearest).all(axis=1)]
        return float(np.median(finite.mean(axis=1))) or 1.0 if len(finite) else 1.0


def read_training_frames(run: "byov.Run") -> TrainingFrames:
    """Read the embeddings of the training videos and compute the progress of their frames."""
    videos = run.embeddings("train")
    entries = list(videos.videos.values())
    embeddings = list(videos.values())
    labels = [video.labels or (UNLABELED,) * (video.frames or 0) for video in entries]
    progress = training_progress(run, videos)
    return TrainingFrames(
        videos,
        ReferenceFrames(
            np.concatenate(embeddings), np.concatenate([progress[video] for video in videos])
        ),
        np.concatenate(labels),
        np.repeat(np.arange(len(entries)), [len(rows) for rows in embeddings]),
    )


def training_progress(run: "byov.Run", videos: VideoArrays) -> dict[str, NDArray[np.float64]]:
    """Return the progress (T,) of the frames of each training video.

    In labeled videos, progress is linear between events. Unlabeled videos are aligned with all
    training videos; the mean progress of an event in the aligned videos that are labeled is then
    its progress in all videos.
    """
    entries = videos.videos
    labels = {
        name: video.labels
        for name, video in entries.items()
        if video.labels is not None and videos.ordered
    }
    if len(labels) == len(entries):
        aligned: dict[str, NDArray[np.float64]] = {}
        starts = mean_phase_starts(labels.values())
    else:
        aligned = _align(run, videos)
        starts = mean_phase_starts(labels.values(), [aligned[name] for name in labels])
    return {
        name: reference_progress(video.frames or 0, video.labels, starts)
        if name in labels
        else aligned[name]
        for name, video in entries.items()
    }


def _align(run: "byov.Run", videos: VideoArrays) -> dict[str, NDArray[np.float64]]:
    features = load_features(
        run.dataset,
        split="train",
        encoder=run.record.encoder,
        ratio=run.record.ratio,
        features_dir=run.features_dir,
    )
    views = [video.view for video in features.videos.values()]
    aligned = aligned_progress(list(features), views, features.__getitem__)
    progress = dict(zip(features, aligned, strict=True))
    return {name: progress[name].double().numpy() for name in videos}
