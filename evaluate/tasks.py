"""Evaluation tasks, each with its scores, table columns and bootstrap estimates.

Other packages can add tasks by registering instances of `Task` in the "byov.tasks" entry-point
group.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from byov.cache.manifest import Manifest
from byov.errors import EvaluationError
from byov.evaluate.action_probe import action_map
from byov.evaluate.classification import (
    few_shot_f1,
    phase_f1,
    predict_phases,
    sample_remark,
    weighted_f1,
)
from byov.evaluate.event_error import LABELED, event_errors
from byov.evaluate.frames import SETTINGS, Frames, Missing, Score, view_mask
from byov.evaluate.kendalls_tau import PAIRS, kendalls_tau, tau_of_each_pair
from byov.evaluate.progress_error import PERCENTS, progress_errors
from byov.evaluate.progression import (
    fit_regressors,
    phase_progression,
    progression_targets,
    regressor_inputs,
)
from byov.evaluate.protocols import PROTOCOLS, Protocol
from byov.evaluate.retrieval import (
    average_precision_of_each_query,
    ego_first,
    mean_average_precision,
)
from byov.evaluate.table import Column
from byov.plugins import Registry
from byov.progress import NO_PROGRESS, Progress, track
from byov.records import UNLABELED, VIEWS

Weights = NDArray[np.float64]  # (N, V) how often each bootstrap sample contains each test video
# Score name → (N,) values, one per bootstrap sample; NaN if undefined.
Estimates = dict[str, NDArray[np.float64]]
SETTING_NAMES = {"regular": "Regular", "ego2exo": "Ego2Exo", "exo2ego": "Exo2Ego"}
DIRECTIONS = [f"{source}-{target}" for source in VIEWS for target in VIEWS]
MAIN_K = 10  # K in the paper's Table 1
TIME_COLUMN = (
    "progression: with AE2's time column, the frame index / 1000 as an additional input to "
    "the regressor"
)
REWARDS_TIME = (
    "progression and Kendall's tau: normalized time alone scores high (tau up to 1), so compare "
    "with Time only"
)
FEW_SHOT = "few-shot: mean ± sample standard deviation over disjoint draws of the training videos"
EVENT_ERROR = (
    "labels of one training video of the first view are transferred to the test videos of the "
    "second view, mean over five draws; mean: over the four combinations of views, with labels of "
    "1, 3, 5 or all training videos of a view, in seconds or in percent of the test video"
)


@dataclass(frozen=True)
class EvaluationOptions:
    """Options for the evaluation tasks."""

    ks: tuple[int, ...] = (5, 10, 15)  # values of K in map@K, as in the paper
    tau_stride: int = 5  # Kendall's tau uses every n-th frame; 5 in the published code
    # few-shot fractions of training videos, from the paper's appendix.
    fractions: tuple[float, ...] = (0.1, 0.5, 1.0)
    # Append the frame index for progression, which AE2 does only for Pour Liquid.
    time_column: bool = False
    training_progression: bool = False  # also score progression on the training videos
    seed: int = 0  # random seed for few-shot draws and bootstrap samples
    bootstrap: int = 0  # number of bootstrap samples for 95% confidence intervals; 0 for none


class Task(ABC):
    """Base class for evaluation tasks."""

    name: str  # value of --task
    prefix: str  # first part of its score names
    title: str  # title of its own table
    needs_labels = False  # needs phase labels; videos without any are ignored
    needs_all_frames = False  # also uses the unlabeled frames in labeled videos
    needs_order = False  # needs phases that are in the same order in all videos
    needs_actions = False  # needs video-level action labels
    needs_training = False  # fits a model on the training frames
    in_all = True  # whether --task all includes the task
    # Supported protocols, the default first.
    protocols: tuple[Protocol, ...] = ("standard", "trimmed")

    @abstractmethod
    def score(self, train: Frames, test: Frames, options: EvaluationOptions, /) -> dict[str, Score]:
        """Return a dict mapping score names to scores.

        Use `train` only if `needs_training` is set.
        """

    @abstractmethod
    def columns(self, options: EvaluationOptions, /) -> tuple[Column, ...]:
        """Return the columns of the task's own table."""

    def resample(
        self, _train: Frames, _test: Frames, _weights: Weights, _options: EvaluationOptions, /
    ) -> Estimates:
        """Return bootstrap estimates of the scores.

        Fitted models and nearest neighbors stay the same.
        """
        return {}

    def select(self, frames: Frames) -> Frames:
        """Return the frames that the task uses."""
        if not self.needs_labels:
            return frames
        return frames.labeled if self.needs_all_frames else frames.labeled_frames

    def missing_labels(self, manifest: Manifest, split: str) -> str:
        """Describe the labels that the task needs but the dataset lacks; "" if there are none."""
        if self.needs_actions and not manifest.actions:
            return "action labels"
        for needed in (split, "train") if self.needs_training else (split,):
            videos = [video for video in manifest.videos if video.split == needed and video.frames]
            is_labeled = (
                any(max(video.labels or (UNLABELED,)) > UNLABELED for video in videos) or not videos
            )
            if self.needs_labels and not (manifest.phases and is_labeled):
                return f"phase labels for any {needed} video"
        if self.needs_order and not manifest.ordered:
            return "phases in a fixed order"
        return ""


class Classification(Task):
    name = prefix = "classification"
    title = "Phase classification"
    needs_labels = needs_training = True
    protocols = PROTOCOLS

    def score(
        self, train: Frames, test: Frames, _options: EvaluationOptions, /
    ) -> dict[str, Score]:
        return {
            f"classification/{setting}": Score.of(f1, remark=sample_remark(train, setting))
            for setting, f1 in phase_f1(train, test).items()
        }

    def columns(self, _options: EvaluationOptions, /) -> tuple[Column, ...]:
        return _columns_by_setting("classification", "Classification (F1)", "F1")

    def resample(
        self, train: Frames, test: Frames, weights: Weights, _options: EvaluationOptions, /
    ) -> Estimates:
        estimates = {}
        for setting, predicted in predict_phases(train, test).items():
            if not isinstance(predicted, Missing):
                view = SETTINGS[setting][1]
                scored = test.of_view(view)
                weights_of_view = weights[:, view_mask(test.is_ego, view)]
                phases = np.union1d(scored.phases, predicted)
                # (video, true, predicted).
                counts = np.zeros((len(scored.lengths), len(phases), len(phases)))
                np.add.at(
                    counts,
                    (scored.video_of_frame, *np.searchsorted(phases, (scored.phases, predicted))),
                    1,
                )
                estimates[f"classification/{setting}"] = weighted_f1(
                    np.tensordot(weights_of_view, counts, 1)
                )
        return estimates


class Retrieval(Task):
    name = prefix = "retrieval"
    title = "Frame retrieval"
    needs_labels = True
    protocols = PROTOCOLS

    def score(
        self, _train: Frames, test: Frames, options: EvaluationOptions, /
    ) -> dict[str, Score]:
        scores = mean_average_precision(test, options.ks)
        return {
            f"retrieval/map@{k}/{setting}": Score.of(scores[setting][k])
            for k in options.ks
            for setting in SETTINGS
        }

    def columns(self, options: EvaluationOptions, /) -> tuple[Column, ...]:
        if len(options.ks) == 1:
            (k,) = options.ks
            return _columns_by_setting(f"retrieval/map@{k}", f"Retrieval (map@{k})", f"map@{k}")
        return tuple(
            Column(f"retrieval/map@{k}/{setting}", f"{name} retrieval", f"map@{k}", name)
            for setting, name in SETTING_NAMES.items()
            for k in options.ks
        )

    def resample(
        self, _train: Frames, test: Frames, weights: Weights, options: EvaluationOptions, /
    ) -> Estimates:
        """Resample the queries; their candidates stay the same."""
        first = np.unique(test.recording_of_video, return_index=True)[1]
        weights = weights[:, first][:, np.argsort(~test.is_ego[first], kind="stable")]
        test = ego_first(test)
        estimates: Estimates = {}
        for setting, precisions in average_precision_of_each_query(test, options.ks).items():
            queries = weights * view_mask(test.is_ego, SETTINGS[setting][0])
            sums = np.add.reduceat(precisions, test.starts)  # (V, K)
            with np.errstate(invalid="ignore"):
                means = (queries @ sums) / (queries @ test.lengths)[:, None]
            estimates |= {
                f"retrieval/map@{k}/{setting}": means[:, i] for i, k in enumerate(options.ks)
            }
        return estimates


class Progression(Task):
    name = prefix = "progression"
    title = "Phase progression"
    needs_labels = needs_order = needs_all_frames = needs_training = True
    protocols = ("standard",)  # in a sub-clip, a phase may be cut before its end

    def score(self, train: Frames, test: Frames, options: EvaluationOptions, /) -> dict[str, Score]:
        scored = {"train": train, "val": test} if options.training_progression else {"val": test}
        return {
            f"progression/{split}": Score.of(
                phase_progression(train, frames, time_column=options.time_column)
            )
            for split, frames in scored.items()
        }

    def columns(self, options: EvaluationOptions, /) -> tuple[Column, ...]:
        return (
            Column(
                "progression/val",
                "Phase progression",
                "R²",
                "progression",
                unit="correlation",
                note=f"{REWARDS_TIME}; {TIME_COLUMN}" if options.time_column else REWARDS_TIME,
            ),
        )

    def resample(
        self, train: Frames, test: Frames, weights: Weights, options: EvaluationOptions, /
    ) -> Estimates:
        inputs = regressor_inputs(test, options.time_column)
        scores = []
        for phase, coefficients, intercept in fit_regressors(train, options.time_column):
            targets = progression_targets(test, np.array([phase]))[:, 0]
            known = ~np.isnan(targets)
            targets = np.where(known, targets, 0)
            errors = np.where(known, targets - (inputs @ coefficients + intercept), 0)
            counts, sums, squares, losses = (
                weights @ np.add.reduceat(values, test.starts)
                for values in (known.astype(np.float64), targets, targets**2, errors**2)
            )
            with np.errstate(invalid="ignore", divide="ignore"):
                scores.append(1 - losses / (squares - sums**2 / counts))
        if not scores:
            return {}
        finite = np.isfinite(scores)  # (P, N): a bootstrap sample may lack all videos with a phase
        with np.errstate(invalid="ignore"):
            means = np.where(finite, scores, 0).sum(axis=0) / finite.sum(axis=0)
        return {"progression/val": means}


class FewShot(Task):
    name = "few-shot"
    prefix = "few_shot"
    title = "Few-shot phase classification"
    needs_labels = needs_training = True
    in_all = False  # takes as long as all other tasks together

    def score(self, train: Frames, test: Frames, options: EvaluationOptions, /) -> dict[str, Score]:
        return {
            f"few_shot/{100 * fraction:g}%/{setting}": score
            for fraction, by_setting in few_shot_f1(
                train, test, fractions=options.fractions, seed=options.seed
            ).items()
            for setting, score in by_setting.items()
        }

    def columns(self, options: EvaluationOptions, /) -> tuple[Column, ...]:
        return tuple(
            Column(
                f"few_shot/{fraction}/{setting}",
                f"{name} few-shot (F1)",
                fraction,
                f"{name} F1",
                note=FEW_SHOT,
            )
            for setting, name in SETTING_NAMES.items()
            for fraction in (f"{100 * value:g}%" for value in options.fractions)
        )


class ActionRecognition(Task):
    name = prefix = "actions"
    title = "Action recognition by linear probe"
    needs_actions = needs_training = True
    protocols = ("standard",)

    def score(
        self, train: Frames, test: Frames, _options: EvaluationOptions, /
    ) -> dict[str, Score]:
        return {
            f"actions/{setting}": Score.of(score)
            for setting, score in action_map(train, test).items()
        }

    def columns(self, _options: EvaluationOptions, /) -> tuple[Column, ...]:
        return _columns_by_setting("actions", "Actions (mAP)", "mAP")


class KendallsTau(Task):
    name = "tau"
    prefix = "kendalls_tau"
    title = "Kendall's tau for each combination of views"
    protocols = ("standard",)  # two sub-clips may show no moment in common

    def score(
        self, _train: Frames, test: Frames, options: EvaluationOptions, /
    ) -> dict[str, Score]:
        return {
            f"kendalls_tau/{views}": score
            for views, score in kendalls_tau(test, stride=options.tau_stride).items()
        }

    def columns(self, _options: EvaluationOptions, /) -> tuple[Column, ...]:
        return tuple(
            Column(
                f"kendalls_tau/{views}",
                "Kendall's tau",
                "all pairs" if views == "all" else views,
                "tau",
                unit="correlation",
                note=REWARDS_TIME,
            )
            for views in PAIRS
        )

    def resample(
        self, _train: Frames, test: Frames, weights: Weights, options: EvaluationOptions, /
    ) -> Estimates:
        """Resample the videos; a video drawn twice is not compared with itself."""
        taus = tau_of_each_pair(test.every(options.tau_stride))
        has_tau = (~np.isnan(taus)).astype(np.float64)
        estimates = {}
        for views, (query_view, candidate_view) in PAIRS.items():
            queries = weights * view_mask(test.is_ego, query_view)
            candidates = weights * view_mask(test.is_ego, candidate_view)
            sums = np.einsum("ni,ij,nj->n", queries, np.nan_to_num(taus), candidates, optimize=True)
            counts = np.einsum("ni,ij,nj->n", queries, has_tau, candidates, optimize=True)
            estimates[f"kendalls_tau/{views}"] = np.where(
                counts > 0, sums / np.maximum(counts, 1), np.nan
            )
        return estimates


class ProgressError(Task):
    name = "progress-error"
    prefix = "progress_error"
    title = "Error of the predicted progress, in percent of the action"
    needs_labels = needs_order = needs_all_frames = needs_training = True
    protocols = ("online", "standard", "trimmed")

    def score(self, train: Frames, test: Frames, options: EvaluationOptions, /) -> dict[str, Score]:
        missing = Score.of(Missing("no phase labels"))
        return {column.score: missing for column in self.columns(options)} | {
            f"progress_error/{point}": Score.of(per_video.mean())
            for point, per_video in progress_errors(train, test).items()
        }

    def columns(self, _options: EvaluationOptions, /) -> tuple[Column, ...]:
        headings = {"mean": "mean"} | {f"{percent}%": f"at {percent}%" for percent in PERCENTS}
        return tuple(
            Column(
                f"progress_error/{point}",
                "Progress error (%)",
                heading,
                "error",
                lower_is_better=True,
            )
            for point, heading in headings.items()
        )

    def resample(
        self, train: Frames, test: Frames, weights: Weights, _options: EvaluationOptions, /
    ) -> Estimates:
        return {
            f"progress_error/{point}": (weights @ per_video) / weights.sum(axis=1)
            for point, per_video in progress_errors(train, test).items()
        }


class EventError(Task):
    name = "events"
    prefix = "event_error"
    title = "Error of event times transferred from labeled videos of one view"
    needs_labels = needs_order = needs_all_frames = needs_training = True
    protocols = ("standard",)

    def score(self, train: Frames, test: Frames, options: EvaluationOptions, /) -> dict[str, Score]:
        missing = Score.of(Missing("too few labeled videos, or no known frame rate"))
        once = np.ones((1, len(test.lengths)))
        return {column.score: missing for column in self.columns(options)} | {
            name: Score.of(float(estimates[0]))
            for name, estimates in self.resample(train, test, once, options).items()
            if np.isfinite(estimates[0])
        }

    def columns(self, _options: EvaluationOptions, /) -> tuple[Column, ...]:
        group = "Event error, one labeled video (s)"
        columns = [(f"1/{views}", group, views, "1 labeled, s") for views in DIRECTIONS]
        columns += [
            (f"{number}/mean", "Mean, by number of labeled videos (s)", number, "mean, s")
            for number in LABELED
        ]
        columns.append(("1/percent", "Mean, one labeled video (%)", "1", "mean, %"))
        return tuple(
            Column(
                f"event_error/{score}",
                group,
                heading,
                short,
                lower_is_better=True,
                unit="percent" if score.endswith("percent") else "seconds",
                note=EVENT_ERROR,
            )
            for score, group, heading, short in columns
        )

    def resample(
        self, train: Frames, test: Frames, weights: Weights, options: EvaluationOptions, /
    ) -> Estimates:
        if train.labels is None or test.labels is None:
            return {}
        fps = np.full(len(test.lengths), np.nan) if test.fps is None else test.fps
        by_direction: Estimates = {}  # keyed by number of labeled videos, direction and unit
        for (number, source), errors in event_errors(train, test, options.seed).items():
            for target in VIEWS:
                has_events = ~np.isnan(errors) & (test.is_ego == (target == "ego"))
                counted = weights[:, has_events]
                for unit, values in (("mean", errors / fps), ("percent", errors / test.lengths)):
                    with np.errstate(invalid="ignore"):
                        mean = counted @ values[has_events] / counted.sum(axis=1)
                    by_direction[f"{number}/{source}-{target}/{unit}"] = mean
        estimates = {
            f"event_error/1/{views}": by_direction[f"1/{views}/mean"]
            for views in DIRECTIONS
            if f"1/{views}/mean" in by_direction
        }
        for score in (*(f"{number}/mean" for number in LABELED), "1/percent"):
            number, unit = score.split("/")
            names = [f"{number}/{views}/{unit}" for views in DIRECTIONS]
            if by_direction.keys() >= {*names}:
                means = [by_direction[name] for name in names]
                estimates[f"event_error/{score}"] = np.mean(means, axis=0)
        return estimates


def _check(name: str, task: Task) -> None:
    if (
        not isinstance(task, Task)
        or task.name != name
        or task.prefix in {built_in.prefix for built_in in _BUILT_IN}
    ):
        raise ValueError(f"not an instance of Task with the name {name!r} and a unique prefix")


# Tasks in the order of the paper's tables, followed by tasks that are not in the paper.
_BUILT_IN = (
    Classification(),
    Retrieval(),
    Progression(),
    FewShot(),
    ActionRecognition(),
    KendallsTau(),
    ProgressError(),
    EventError(),
)
TASKS = Registry[Task]("byov.tasks", {task.name: task for task in _BUILT_IN}, _check)


def find_tasks(names: Sequence[str]) -> list[Task]:
    """Return the tasks with these names, in the order of TASKS."""
    if unknown := [str(name) for name in names if name not in [*TASKS]]:
        raise EvaluationError(f"unknown task {', '.join(unknown)}; choose from {', '.join(TASKS)}")
    return [task for task in TASKS.values() if task.name in names]


def task_of(score: str) -> Task:
    """Return the task that a score belongs to."""
    prefix = score.partition("/")[0]
    return next(task for task in TASKS.values() if task.prefix == prefix)


def main_columns(options: EvaluationOptions, protocol: Protocol = "standard") -> tuple[Column, ...]:
    """Return the columns of a protocol's main table: as in the paper's Table 1 for whole videos,
    otherwise with the progress error instead of progression and Kendall's tau.
    """
    k = MAIN_K if MAIN_K in options.ks else options.ks[0]
    shared = (
        *TASKS["classification"].columns(options),
        *TASKS["retrieval"].columns(replace(options, ks=(k,))),
    )
    if protocol == "standard":
        return (*shared, *TASKS["progression"].columns(options), *TASKS["tau"].columns(options)[:1])
    return (*shared, *TASKS["progress-error"].columns(options)[:1])


def table_columns(
    tasks: Sequence[str], options: EvaluationOptions, protocol: Protocol = "standard"
) -> dict[str, tuple[Column, ...]]:
    """Map table titles to columns: the main table if all its tasks were scored, then one table per
    task.
    """
    scored = [task for task in TASKS.values() if task.name in tasks and protocol in task.protocols]
    tables = {task.title: task.columns(options) for task in scored}
    main = main_columns(options, protocol)
    if not {task_of(column.score) for column in main} <= set(scored):
        return tables
    others = {title: columns for title, columns in tables.items() if not set(columns) <= set(main)}
    return {"Phase tasks": main} | others


def score_frames(
    train: Frames | None,
    test: Frames,
    tasks: list[Task],
    options: EvaluationOptions,
    progress: Progress = NO_PROGRESS,
) -> dict[str, Score]:
    """Score test frames on tasks, with 95% confidence intervals if `options.bootstrap` is set.

    Args:
        train: Frames to fit on; None if no task needs training.
        test: Frames to score.
        tasks: Tasks to score.
        options: Evaluation options.
        progress: Progress reporter, updated after each task.

    Returns:
        Dict mapping score names to scores.
    """
    scores: dict[str, Score] = {}
    for task in track(tasks, progress, "scoring", unit="task", brief=True):
        fitted = task.select(train or test)
        scored = task.select(test)
        scores |= task.score(fitted, scored, options)
        if not options.bootstrap or (
            task.needs_labels and (fitted.labels is None or scored.labels is None)
        ):
            continue
        weights = draw_weights(scored, options.bootstrap, options.seed)
        for name, estimates in task.resample(fitted, scored, weights, options).items():
            if scores[name].value is not None and np.isfinite(estimates).any():
                low, high = np.nanpercentile(estimates, (2.5, 97.5)).tolist()
                scores[name] = replace(scores[name], interval=(low, high))
    return scores


def draw_weights(test: Frames, count: int, seed: int) -> Weights:
    """Draw bootstrap samples of recordings per view, with all their sub-clips, and return (count,
    V) weights.
    """
    recordings = test.recording_of_video
    is_ego = test.is_ego[np.unique(recordings, return_index=True)[1]]
    random = np.random.default_rng(seed)
    drawn = np.zeros((count, len(is_ego)))
    for view in (True, False):
        chosen = np.flatnonzero(is_ego == view)
        if len(chosen):
            drawn[:, chosen] = random.multinomial(
                len(chosen), np.full(len(chosen), 1 / len(chosen)), count
            )
    return drawn[:, recordings]


def _columns_by_setting(scores: str, group: str, short: str) -> tuple[Column, ...]:
    return tuple(
        Column(f"{scores}/{setting}", group, name, short) for setting, name in SETTING_NAMES.items()
    )
