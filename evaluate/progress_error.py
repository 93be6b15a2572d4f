"""Error of the progress that is predicted from the nearest training frames, and its reference.

Reference progress runs from 0 at the first frame of a video to 1 at the last. Progress at the start
of a phase is the mean normalized time at which that phase starts in the training videos, and is
linearly interpolated in between. Without labels, progress is normalized time.

Shapes: P phases, T frames of a video, V videos.
"""

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from byov.evaluate.frames import Frames
from byov.evaluate.transfer import ReferenceFrames

PERCENTS = (30, 50, 70, 90)  # points in a video at which the error is also reported


def progress_errors(train: Frames, test: Frames) -> dict[str, NDArray[np.float64]]:
    """Return the absolute error of the predicted progress of each test video, shape (V,): "mean" is
    over its frames, "30%" at that point of the video, and so on.

    The scored frames of a video must be evenly spaced. Empty without phase labels.
    """
    if train.labels is None or test.labels is None:
        return {}
    if train.reference_progress is None or test.reference_progress is None:
        raise ValueError("these frames have no reference progress")
    reference = ReferenceFrames(train.embeddings, train.reference_progress)
    predicted = reference.predict_progress(test.embeddings)
    errors = np.abs(predicted - test.reference_progress)
    by_point = {"mean": np.add.reduceat(errors, test.starts) / test.lengths}
    for percent in PERCENTS:
        index = np.maximum(np.rint(percent / 100 * test.lengths).astype(np.int64) - 1, 0)
        by_point[f"{percent}%"] = errors[test.starts + index]
    return by_point


def phase_starts(labels: Sequence[int]) -> dict[int, int]:
    """Map each phase in a video to the index of the first frame that is in this phase or a later
    one.

    >>> phase_starts([0, 0, -1, 1, 1, 3])
    {0: 0, 1: 3, 3: 5}
    """
    array = np.asarray(labels)
    return {int(phase): int(np.argmax(array >= phase)) for phase in np.unique(array[array >= 0])}


def mean_phase_starts(
    videos: Iterable[Sequence[int]], progress: Iterable[NDArray[np.float64]] | None = None
) -> dict[int, float]:
    """Map each phase to the mean progress at its start, made non-decreasing over phases.

    Args:
        videos: (T,) labels of each training video.
        progress: (T,) progress of the frames of each video. Default: normalized time.

    >>> mean_phase_starts([[0, 0, 1], [0, 1, 1]])
    {0: 0.0, 1: 0.75}
    """
    labeled = list(videos)
    if progress is None:
        progress = [np.linspace(0, 1, len(labels)) for labels in labeled]
    at_starts: dict[int, list[float]] = {}
    for labels, of_frames in zip(labeled, progress, strict=True):
        for phase, start in phase_starts(labels).items():
            at_starts.setdefault(phase, []).append(float(of_frames[start]))
    phases = sorted(at_starts)
    means = np.array([np.mean(at_starts[phase]) for phase in phases])
    return dict(zip(phases, np.maximum.accumulate(means).tolist(), strict=True))


def reference_progress(
    frames: int, labels: Sequence[int] | None = None, mean_starts: dict[int, float] | None = None
) -> NDArray[np.float64]:
    """Return the (T,) reference progress of a video.

    Args:
        frames: Number of frames T.
        labels: (T,) phase of each frame, -1 if unlabeled; None for a video without labels.
        mean_starts: Result of `mean_phase_starts`. Phases missing from it are ignored.

    >>> reference_progress(5, [0, 0, 0, 1, 1], {0: 0.0, 1: 0.5}).round(3).tolist()
    [0.0, 0.167, 0.333, 0.5, 1.0]
    """
    events = {frames - 1: 1.0, 0: 0.0}
    for phase, start in phase_starts(labels or ()).items():
        if mean_starts and phase in mean_starts:
            events[start] = mean_starts[phase]
    times = sorted(events)
    return np.interp(np.arange(frames), times, [events[time] for time in times])
