"""Phase progression: how well a linear map of the embedding tells how far it is to the end of each phase."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import LinearRegression
from sklearn.metrics import r2_score

from byov.evaluate.frames import Frames, Missing, Score, absent

TIME_COLUMN_PER_FRAME = 0.001  # published code


@dataclass(frozen=True)
class PhaseFit:
    phase: int
    weights: NDArray[np.float64]  # (D,)
    intercept: float


def phase_progression(train: Frames, test: Frames, *, time_column: bool = False) -> Score:
    """Mean R² over the phases. `time_column`: the frame's index joins its embedding, as AE2 does for Pour Liquid."""
    return phase_progression_of_each(train, [test], time_column=time_column)[0]


def phase_progression_of_each(train: Frames, tests: Sequence[Frames], *, time_column: bool = False) -> list[Score]:
    """The same for several sets of videos, the training videos among them or not, from one fit."""
    if any(frames.labels is None for frames in (train, *tests)):
        return [Missing("no phase labels") for _ in tests]
    if lacking := absent(train.is_ego, None, "training"):
        return [lacking for _ in tests]
    regressors = fit_phases(train, time_column)
    return [absent(test.is_ego, None, "test") or _mean_r2(regressors, test, time_column) for test in tests]


def fit_phases(train: Frames, time_column: bool) -> list[PhaseFit]:
    """A linear map for each phase of the training videos."""
    inputs, phases = regressor_inputs(train, time_column), np.unique(train.phases)
    targets = targets_of(train, phases)
    known = ~np.isnan(targets)
    fits = []
    # Most phases are in every video: those are solved together.
    for frames in np.unique(known, axis=1).T:
        together = np.flatnonzero((known == frames[:, None]).all(axis=0))
        solved = LinearRegression().fit(inputs[frames], targets[np.ix_(frames, together)])
        fits += [
            PhaseFit(int(phases[phase]), weights, float(intercept))
            for phase, weights, intercept in zip(together, solved.coef_, solved.intercept_, strict=True)
        ]
    return fits


def _mean_r2(fits: Sequence[PhaseFit], test: Frames, time_column: bool) -> Score:
    """Over the phases that have one: not a phase that no test video has."""
    inputs = regressor_inputs(test, time_column)
    scores = []
    for fit in fits:
        targets = targets_of(test, np.array([fit.phase]))[:, 0]
        known = ~np.isnan(targets)
        if known.any() and np.ptp(targets[known]) > 0:  # else every video is one frame: nothing to explain
            scores.append(r2_score(targets[known], inputs[known] @ fit.weights + fit.intercept))
    return float(np.mean(scores)) if scores else Missing("no test video of two frames or more has a phase of training")


def regressor_inputs(frames: Frames, time_column: bool) -> NDArray[np.float64]:
    """(F, D) or (F, D + 1)"""
    embeddings = frames.embeddings.astype(np.float64)
    time = frames.index_in_video[:, None].astype(np.float64) * TIME_COLUMN_PER_FRAME
    return np.hstack([embeddings, time]) if time_column else embeddings


def targets_of(frames: Frames, phases: NDArray[np.int64]) -> NDArray[np.float64]:
    """(F, phases) (t - last frame of the phase) / T; NaN in a video without the phase."""
    targets = np.full((len(frames.phases), len(phases)), np.nan)
    for start, length in zip(frames.starts, frames.lengths, strict=True):
        own = slice(start, start + length)
        for i, phase in enumerate(phases):
            of_phase = np.flatnonzero(frames.phases[own] == phase)
            if len(of_phase):
                targets[own, i] = (np.arange(length) - of_phase[-1]) / length
    return targets
