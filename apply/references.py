"""Training frames of a run as reference frames: their embeddings, progress and phases."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

import byov
from byov.apply.arrays import VideoArrays, load_features
from byov.evaluate.progress_error import mean_phase_starts, reference_progress
from byov.evaluate.transfer import ReferenceFrames
from byov.records import UNLABELED
from byov.train.progress import aligned_progress


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
