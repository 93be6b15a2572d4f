"""Phase progression: how well a linear map of the embedding tells how far it is to the end of each phase."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from byov.evaluate.frames import Frames, Missing, absent
from byov.evaluate.scores import Score
from byov.evaluate.task import Column, Estimates, EvaluationOptions, EvaluationTask, TaskData, Weights
from byov.records import UNLABELED

# scikit-learn is imported where it is needed: it takes a second.

TIME_COLUMN_PER_FRAME = 0.001  # published code
TIME_COLUMN_DATASETS = ("pour_liquid",)  # published code


@dataclass(frozen=True)
class PhaseFit:
    phase: int
    weights: NDArray[np.float64]  # (D,)
    intercept: float

    def predict(self, inputs: NDArray[np.float64]) -> NDArray[np.float64]:
        """(F, D) → (F,)"""
        predicted: NDArray[np.float64] = inputs @ self.weights + self.intercept
        return predicted


def phase_progression(train: Frames, test: Frames, *, time_column: bool = False) -> float | Missing:
    """Mean R² over the phases. `time_column`: the frame's index joins its embedding, as AE2 does for Pour Liquid."""
    return phase_progression_of_each(train, [test], time_column=time_column)[0]


def phase_progression_of_each(
    train: Frames, tests: Sequence[Frames], *, time_column: bool = False
) -> list[float | Missing]:
    """The same for several sets of videos, the training videos among them or not, from one fit."""
    if any(frames.labels is None for frames in (train, *tests)):
        return [Missing("no phase labels") for _ in tests]
    if lacking := absent(train.is_ego, None, "training"):
        return [lacking for _ in tests]
    fits = fit_phases(train, time_column)
    if not fits:
        return [Missing("no training video shows the end of a phase") for _ in tests]
    return [absent(test.is_ego, None, "test") or _mean_r2(fits, test, time_column) for test in tests]


def fit_phases(train: Frames, time_column: bool) -> list[PhaseFit]:
    """A linear map for each phase whose end is known in some training video."""
    from sklearn.linear_model import LinearRegression

    inputs, phases = regressor_inputs(train, time_column), np.unique(train.phases[train.is_labeled])
    targets = targets_of(train, phases)
    known = ~np.isnan(targets)
    fits = []
    # Most phases are in every video: those are solved together.
    for frames in np.unique(known[:, known.any(axis=0)], axis=1).T:
        together = np.flatnonzero((known == frames[:, None]).all(axis=0))
        solved = LinearRegression().fit(inputs[frames], targets[np.ix_(frames, together)])
        fits += [
            PhaseFit(int(phases[phase]), weights, float(intercept))
            for phase, weights, intercept in zip(together, solved.coef_, solved.intercept_, strict=True)
        ]
    return fits


def _mean_r2(fits: Sequence[PhaseFit], test: Frames, time_column: bool) -> float | Missing:
    """Over the phases that have one: not a phase that no test video has."""
    from sklearn.metrics import r2_score

    inputs, scores = regressor_inputs(test, time_column), []
    for fit in fits:
        targets = targets_of(test, np.array([fit.phase]))[:, 0]
        known = ~np.isnan(targets)
        if known.any() and np.ptp(targets[known]) > 0:  # else every video is one frame: nothing to explain
            scores.append(r2_score(targets[known], fit.predict(inputs[known])))
    return float(np.mean(scores)) if scores else Missing("no test video of two frames or more has a phase of training")


def regressor_inputs(frames: Frames, time_column: bool) -> NDArray[np.float64]:
    """(F, D) or (F, D + 1).

    In double precision, as AE2's are with the time column. Without it AE2 hands scikit-learn single precision, which is
    then that of the fit: at Break Eggs' size its score is 1e-6 from this one, and moves with the order of the videos.
    """
    embeddings = frames.embeddings.astype(np.float64)
    time = frames.index_in_video[:, None].astype(np.float64) * TIME_COLUMN_PER_FRAME
    return np.hstack([embeddings, time]) if time_column else embeddings


def targets_of(frames: Frames, phases: NDArray[np.int64]) -> NDArray[np.float64]:
    """(F, phases) (t - last frame of the phase) / T; NaN in a video that does not show the phase's end."""
    targets = np.full((len(frames.phases), len(phases)), np.nan)
    for start, length in zip(frames.starts, frames.lengths, strict=True):
        own = slice(start, start + length)
        for i, phase in enumerate(phases):
            last = _last_frame(frames.phases[own], phase)
            if last is not None:
                targets[own, i] = (np.arange(length) - last) / length
    return targets


def _last_frame(labels: NDArray[np.int64], phase: int) -> int | None:
    """Of a phase in a video; None if it has none, or if unlabeled frames follow: the phase may go on there."""
    of_phase = np.flatnonzero(labels == phase)
    if not len(of_phase) or UNLABELED in labels[of_phase[-1] + 1 :][:1]:
        return None
    return int(of_phase[-1])


def _score(data: TaskData, options: EvaluationOptions) -> dict[str, Score]:
    train, test = data.training, data.test
    scored = {"train": train, "val": test} if options.training_progression else {"val": test}
    scores = phase_progression_of_each(train, list(scored.values()), time_column=options.time_column)
    return {f"progression/{split}": Score.of(score) for split, score in zip(scored, scores, strict=True)}


def _estimate(data: TaskData, weights: Weights, options: EvaluationOptions) -> dict[str, Estimates]:
    test = data.test
    if test.labels is None:
        return {}
    inputs, scores = regressor_inputs(test, options.time_column), []
    for fit in fit_phases(data.training, options.time_column):
        targets = targets_of(test, np.array([fit.phase]))[:, 0]
        known = ~np.isnan(targets)
        targets = np.where(known, targets, 0)
        errors = np.where(known, targets - fit.predict(inputs), 0)
        counts, sums, squares, losses = (
            weights @ np.add.reduceat(values, test.starts)
            for values in (known.astype(np.float64), targets, targets**2, errors**2)
        )
        with np.errstate(invalid="ignore", divide="ignore"):  # no video with the phase was drawn
            scores.append(1 - losses / (squares - sums**2 / counts))
    return {"progression/val": _mean_of_finite(np.stack(scores))} if scores else {}


def _mean_of_finite(estimates: NDArray[np.float64]) -> Estimates:
    """(P, N) by phase → (N,) over the phases that a resampling has; NaN if it has none."""
    given = np.isfinite(estimates)
    means: Estimates = np.where(given, estimates, 0).sum(axis=0) / np.maximum(given.sum(axis=0), 1)
    return np.where(given.any(axis=0), means, np.nan)


def _columns(_: EvaluationOptions) -> tuple[Column, ...]:
    return (Column("progression/val", "Phase progression", "R²", "progression", percent=False),)


TASK = EvaluationTask(
    name="progression",
    prefix="progression",
    subject="Phase progression",
    score=_score,
    columns=_columns,
    main_columns=_columns,
    estimate=_estimate,
    needs_labels=True,
    needs_time=True,
    needs_training=True,
    saturated_by_time=True,
    measured="phase progression",
)
