"""Error of event times that are transferred from a few labeled training videos to the test videos.

An event is the first frame of a phase.
"""

import numpy as np
from numpy.typing import NDArray

from byov.evaluate.frames import Frames
from byov.evaluate.progress_error import phase_starts
from byov.evaluate.transfer import find_events, phase_log_likelihoods
from byov.records import VIEWS, View

DRAWS = 5  # random choices of the labeled videos
LABELED = ("1", "3", "5", "all")  # numbers of labeled videos


def event_errors(
    train: Frames, test: Frames, seed: int = 0
) -> dict[tuple[str, View], NDArray[np.float64]]:
    """Compute the mean absolute error of the events in each test video.

    Args:
        train: Labeled training videos. Those that show all phases are candidates for labels.
        test: Labeled test videos.
        seed: Seed for drawing the labeled videos.

    Returns:
        Dict that maps the number of labeled videos and their view, such as ("1", "ego"), to the
        errors (V,) in frames, averaged over the draws. NaN in videos without events. There is no
        entry if the view has too few candidates.
    """
    phases = np.unique(train.phases[train.is_labeled])
    variance = float(train.embeddings.var(axis=0, dtype=np.float64).sum())
    errors = {}
    for view in VIEWS:
        candidates = np.array(
            [
                video
                for video in np.flatnonzero(train.is_ego == (view == "ego")).tolist()
                if np.isin(phases, _labels(train, video)).all()
            ],
            np.int64,
        )
        for number in LABELED:
            count = len(candidates) if number == "all" else int(number)
            if not 0 < count <= len(candidates):
                continue
            random = np.random.default_rng([seed, VIEWS.index(view), count])
            draws = 1 if number == "all" else DRAWS
            errors[number, view] = np.mean(
                [
                    _errors(
                        train.select(random.choice(candidates, count, replace=False)),
                        test,
                        int(phases.max()) + 1,
                        variance,
                    )
                    for _ in range(draws)
                ],
                axis=0,
            )
    return errors


def _errors(labeled: Frames, test: Frames, phases: int, variance: float) -> NDArray[np.float64]:
    errors = np.full(len(test.lengths), np.nan)
    for video, (start, length) in enumerate(zip(test.starts, test.lengths, strict=True)):
        starts = phase_starts(_labels(test, video).tolist())
        shown = {phase: frame for phase, frame in starts.items() if 0 < phase < phases}
        if not shown:
            continue
        rows = test.embeddings[start : start + length]
        events = find_events(
            phase_log_likelihoods(rows, labeled.embeddings, labeled.phases, phases, variance)
        )
        errors[video] = np.mean([abs(events[phase - 1] - frame) for phase, frame in shown.items()])
    return errors


def _labels(frames: Frames, video: int) -> NDArray[np.int64]:
    start = frames.starts[video]
    return frames.phases[start : start + frames.lengths[video]]
