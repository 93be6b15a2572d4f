"""Phase progression: how well a linear function of the embedding predicts the time to the end of
each phase.
"""

import numpy as np
from numpy.typing import NDArray

from byov.evaluate.frames import Frames, Missing, missing_view
from byov.records import UNLABELED

TIME_COLUMN_PER_FRAME = 0.001  # increment of the time column, as in the published code
TIME_COLUMN_DATASETS = ("pour_liquid",)  # datasets for which the published code adds a time column


def phase_progression(train: Frames, test: Frames, *, time_column: bool = False) -> float | Missing:
    """Compute the R² of linear regression from embeddings to (t - t_end) / T, averaged over phases.

    t_end is the last frame of the phase in a video of T frames. Regressors are fitted on the
    training videos that show the end of the phase and scored on the test videos that do.

    Args:
        train: Labeled frames to fit.
        test: Labeled frames to score.
        time_column: Append the frame index / 1000 to the embedding, as AE2 does for Pour Liquid.

    Returns:
        Mean R², at most 1.

    Example:
        >>> x = np.arange(4, dtype=np.float32)[:, None]
        >>> frames = Frames(x, np.array([0, 0, 1, 1]), np.array([4]), np.array([True]))
        >>> round(phase_progression(frames, frames), 6)
        1.0
    """
    from sklearn.metrics import r2_score

    if train.labels is None or test.labels is None:
        return Missing("no phase labels")
    if missing := missing_view(train.is_ego, None, "training") or missing_view(
        test.is_ego, None, "test"
    ):
        return missing
    regressors = fit_regressors(train, time_column)
    if not regressors:
        return Missing("no training video shows the end of a phase")
    inputs = regressor_inputs(test, time_column)
    scores = []
    for phase, weights, intercept in regressors:
        targets = progression_targets(test, np.array([phase]))[:, 0]
        known = ~np.isnan(targets)
        if known.any() and np.ptp(targets[known]) > 0:  # otherwise there is no variance to explain
            scores.append(r2_score(targets[known], inputs[known] @ weights + intercept))
    return (
        float(np.mean(scores))
        if scores
        else Missing("no test video of at least two frames shows a training phase")
    )


def fit_regressors(
    train: Frames, time_column: bool
) -> list[tuple[int, NDArray[np.float64], float]]:
    """Fit a regressor for each phase that ends in a training video; return (phase, weights,
    intercept) tuples.
    """
    from sklearn.linear_model import LinearRegression

    inputs = regressor_inputs(train, time_column)
    phases = np.unique(train.phases[train.is_labeled])
    targets = progression_targets(train, phases)
    known = ~np.isnan(targets)
    regressors = []
    # Phases that occur in the same videos (usually all of them) are fitted together.
    for frames in np.unique(known[:, known.any(axis=0)], axis=1).T:
        together = np.flatnonzero((known == frames[:, None]).all(axis=0))
        solved = LinearRegression().fit(inputs[frames], targets[np.ix_(frames, together)])
        for phase, weights, intercept in zip(
            together, solved.coef_, solved.intercept_, strict=True
        ):
            regressors.append((int(phases[phase]), weights, float(intercept)))
    return regressors


def regressor_inputs(frames: Frames, time_column: bool) -> NDArray[np.float64]:
    """Return (F, D) inputs in double precision, or (F, D + 1) with the time column.

    Without the time column, AE2 fits in single precision, which changes the score on Break Eggs by
    1e-6 and makes it depend on the order of the videos.
    """
    embeddings = frames.embeddings.astype(np.float64)
    if not time_column:
        return embeddings
    return np.hstack([embeddings, frames.index_in_video[:, None] * TIME_COLUMN_PER_FRAME])


def progression_targets(frames: Frames, phases: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return (F, P) targets (t - t_end) / T;

    NaN in videos that do not show the end of the phase.
    """
    targets = np.full((len(frames.phases), len(phases)), np.nan)
    for start, length in zip(frames.starts, frames.lengths, strict=True):
        video = slice(start, start + length)
        labels = frames.phases[video]
        for i, phase in enumerate(phases):
            phase_frames = np.flatnonzero(labels == phase)
            # If unlabeled frames follow, the phase may continue in them.
            if len(phase_frames) and UNLABELED not in labels[phase_frames[-1] + 1 :][:1]:
                targets[video, i] = (np.arange(length) - phase_frames[-1]) / length
    return targets
