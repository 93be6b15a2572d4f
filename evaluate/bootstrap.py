"""95% intervals by resampling the scored videos.

Videos are drawn with replacement within each view; the two sub-clips of a video come and go together. Nothing is fitted
or searched again: every score is a function of sums over videos, and a resampling weighs these sums. How a task does
that is in the task's file.
"""

from collections.abc import Sequence

import numpy as np

from byov.evaluate.task import Estimates, EvaluationOptions, TaskData, Weights
from byov.evaluate.tasks import TASKS
from byov.progress import NO_PROGRESS, Progress, track

ENDS_PERCENT = (2.5, 97.5)


def intervals(
    data: TaskData, tasks: Sequence[str], options: EvaluationOptions, progress: Progress = NO_PROGRESS
) -> dict[str, tuple[float, float]]:
    """By name of score; few-shot has its spread over draws, actions have none."""
    estimates: dict[str, Estimates] = {}
    for task in track([TASKS[name] for name in tasks], progress, "resampling", unit="task", brief=True):
        scored = task.scored(data)
        if task.estimate:
            estimates |= task.estimate(scored, draw_weights(scored, options.bootstrap, options.seed), options)
    return {name: _interval(values) for name, values in estimates.items() if np.isfinite(values).any()}


def draw_weights(data: TaskData, count: int, seed: int) -> Weights:
    """(N, V) by segment of the test frames."""
    videos = len(data.test.lengths)
    recordings = np.arange(videos) if data.recordings is None else data.recordings
    is_ego = data.test.is_ego[data.first_segments]
    random = np.random.default_rng(seed)
    drawn = np.zeros((count, len(is_ego)))
    for view in (True, False):
        of_view = np.flatnonzero(is_ego == view)
        if len(of_view):
            drawn[:, of_view] = random.multinomial(len(of_view), np.full(len(of_view), 1 / len(of_view)), count)
    return drawn[:, recordings]


def _interval(estimates: Estimates) -> tuple[float, float]:
    low, high = np.nanpercentile(estimates, ENDS_PERCENT)
    return float(low), float(high)
