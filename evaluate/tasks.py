"""All tasks over the same frames, each figure under its name (byov.evaluate.scores)."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from byov.evaluate.frames import SETTINGS, VIEWS, Frames, Missing, Score
from byov.evaluate.scores import Figure, figure_of

# The tasks' own modules are imported when they are needed: scikit-learn and SciPy take a second.

Task = Literal["classification", "retrieval", "progression", "tau", "few-shot", "actions"]
TASKS: tuple[Task, ...] = get_args(Task)
ALL_TASKS: tuple[Task, ...] = tuple(task for task in TASKS if task != "few-shot")  # it takes as long as the others
NEED_LABELS: frozenset[Task] = frozenset({"classification", "retrieval", "progression", "few-shot"})
NEED_TRAINING: frozenset[Task] = frozenset({"classification", "progression", "few-shot", "actions"})
PAIRS = ("all", "ego-ego", "ego-exo", "exo-ego", "exo-exo")
TIME_COLUMN_DATASETS = ("pour_liquid",)  # published code
ONLY_WHOLE = "actions are known of whole videos only"


@dataclass(frozen=True)
class Settings:
    """What the figures depend on beside the embeddings."""

    ks: tuple[int, ...] = (5, 10, 15)  # paper
    tau_stride: int = 5  # published code
    shares: tuple[float, ...] = (0.1, 0.5, 1.0)  # paper, appendix
    time_column: bool = False  # published code: for Pour Liquid only
    training_progression: bool = False  # score the progression of the training videos too
    seed: int = 0  # of few-shot draws and of resampling
    bootstrap: int = 0  # resamplings of the videos; 0: no intervals


@dataclass(frozen=True)
class Material:
    """What the tasks work on. Stretches of one recording never search each other."""

    test: Frames
    train: Frames | None = None  # for the tasks that learn
    recordings: NDArray[np.int64] | None = None  # (V,) recording of each test stretch, rising; None: each its own
    train_actions: NDArray[np.bool_] | None = None  # (V, C)
    test_actions: NDArray[np.bool_] | None = None  # (V, C)

    @property
    def training(self) -> Frames:
        """The training frames, for a task that learns."""
        if self.train is None:
            raise ValueError("a task that learns needs training frames")
        return self.train

    @property
    def joined_test(self) -> Frames:
        """The stretches of one recording as one video: retrieval only asks which video a frame is of."""
        if self.recordings is None:
            return self.test
        first = np.flatnonzero(np.diff(self.recordings, prepend=-1))
        test = self.test
        lengths = np.add.reduceat(test.lengths, first)
        names = tuple(test.names[video] for video in first)
        return Frames(test.embeddings, test.labels, lengths, test.is_ego[first], names)


def score(material: Material, tasks: Sequence[Task], settings: Settings, name: str = "") -> dict[str, Figure]:
    """The figures of all these tasks; what cannot be scored is there with its reason."""
    figures: dict[str, Figure] = {}
    bar = tqdm(_in_order(tasks), desc=f"scoring {name}", unit="task", disable=None, delay=1, leave=False)
    for task in bar:
        bar.set_postfix_str(task, refresh=False)  # else it is drawn before its delay, and stays
        figures |= _SCORERS[task](material, settings, figures)
    return figures


def share_text(share: float) -> str:
    """0.1 → "10%"."""
    return f"{100 * share:g}%"


def _in_order(tasks: Iterable[Task]) -> list[Task]:
    return [task for task in TASKS if task in set(tasks)]


def _classification(material: Material, _: Settings, __: dict[str, Figure]) -> dict[str, Figure]:
    from byov.evaluate.classification import phase_f1

    scores = phase_f1(material.training, material.test)
    return {f"classification/{setting}": figure_of(scores[setting]) for setting in SETTINGS}


def _retrieval(material: Material, settings: Settings, _: dict[str, Figure]) -> dict[str, Figure]:
    from byov.evaluate.retrieval import mean_average_precision

    test = material.joined_test
    scores = mean_average_precision(test, settings.ks)
    return {
        f"retrieval/map@{k}/{setting}": replace(figure_of(scores[setting][k]), remark=_few_candidates(test, setting, k))
        for k in settings.ks
        for setting in SETTINGS
    }


def _few_candidates(test: Frames, setting: str, k: int) -> str | None:
    """Said of a figure if some frame has fewer than K others to find."""
    asking, answering = VIEWS[setting]
    searched = np.ones_like(test.is_ego) if answering is None else test.is_ego == answering
    asked = np.ones_like(test.is_ego) if asking is None else test.is_ego == asking
    candidates = test.lengths[searched].sum() - np.where(searched, test.lengths, 0)[asked]
    fewest = int(candidates.min()) if len(candidates) else k
    return f"some frames have only {fewest} candidates: all are ranked" if fewest < k else None


def _progression(material: Material, settings: Settings, _: dict[str, Figure]) -> dict[str, Figure]:
    from byov.evaluate.progression import phase_progression_of_each

    train = material.training
    scored = {"train": train, "val": material.test} if settings.training_progression else {"val": material.test}
    scores = phase_progression_of_each(train, list(scored.values()), time_column=settings.time_column)
    return {f"progression/{split}": figure_of(score) for split, score in zip(scored, scores, strict=True)}


def _tau(material: Material, settings: Settings, _: dict[str, Figure]) -> dict[str, Figure]:
    from byov.evaluate.kendalls_tau import kendalls_tau

    scores = kendalls_tau(material.test, stride=settings.tau_stride, recordings=material.recordings)
    return {f"kendalls_tau/{pairs}": figure_of(scores[pairs]) for pairs in PAIRS}


def _few_shot(material: Material, settings: Settings, known: dict[str, Figure]) -> dict[str, Figure]:
    from byov.evaluate.few_shot import few_shot_f1

    scores = few_shot_f1(
        material.training, material.test, shares=settings.shares, seed=settings.seed, full=_known_f1(known)
    )
    return {
        f"few_shot/{share_text(share)}/{setting}": _few_shot_figure(of.mean, of.std, of.draws)
        for share, by_setting in scores.items()
        for setting, of in by_setting.items()
    }


def _actions(material: Material, _: Settings, __: dict[str, Figure]) -> dict[str, Figure]:
    from byov.evaluate.action_probe import action_map, video_embeddings

    train, test = material.training, material.test
    if material.recordings is not None:
        scores: dict[str, Score] = dict.fromkeys(SETTINGS, Missing(ONLY_WHOLE))
    elif material.train_actions is None or material.test_actions is None:
        scores = dict.fromkeys(SETTINGS, Missing("no actions of the videos are known"))
    else:
        scores = action_map(
            video_embeddings(train),
            material.train_actions,
            train.is_ego,
            video_embeddings(test),
            material.test_actions,
            test.is_ego,
        )
    return {f"actions/{setting}": figure_of(scores[setting]) for setting in SETTINGS}


_SCORERS: dict[Task, Callable[[Material, Settings, dict[str, Figure]], dict[str, Figure]]] = {
    "classification": _classification,
    "retrieval": _retrieval,
    "progression": _progression,
    "tau": _tau,
    "few-shot": _few_shot,
    "actions": _actions,
}


def _known_f1(known: dict[str, Figure]) -> dict[str, Score] | None:
    """F1 by setting, if it was scored before: it is few-shot's with all videos."""
    figures = {setting: known.get(f"classification/{setting}") for setting in SETTINGS}
    return {
        setting: Missing(figure.missing or "") if figure.value is None else figure.value
        for setting, figure in figures.items()
        if figure is not None
    } or None


def _few_shot_figure(mean: Score, deviation: Score, draws: int) -> Figure:
    if isinstance(mean, Missing):
        return figure_of(mean)
    return Figure(mean, deviation=None if isinstance(deviation, Missing) else deviation, draws=draws)
