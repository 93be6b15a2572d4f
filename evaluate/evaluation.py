"""One source under one protocol → one row of figures. The Python interface of this stage:

>>> from byov.evaluate.evaluation import evaluate_run
>>> evaluate_run(Path("runs"), Path("features"), "first", split="val")["scores"]["kendalls_tau"]  # doctest: +SKIP
0.93
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from byov.cache.manifest import Manifest
from byov.errors import EvaluationError
from byov.evaluate.baselines import CachedFeatures, TimeOnly
from byov.evaluate.embedding_readers import RunEmbeddings, Source
from byov.evaluate.protocols import Protocol, ScoredSplit, Stretch, stretches
from byov.evaluate.scores import Kind, Row
from byov.evaluate.tasks import (
    ALL_TASKS,
    NEED_LABELS,
    NEED_TRAINING,
    TASKS,
    TIME_COLUMN_DATASETS,
    Material,
    Settings,
    Task,
    score,
)


def evaluate_run(
    runs_dir: Path,
    features_dir: Path,
    run: str,
    *,
    untrained: bool = False,
    split: ScoredSplit = "test",
    protocol: Protocol = "standard",
    tasks: Sequence[Task] | None = None,
    settings: Settings | None = None,
) -> dict[str, Any]:
    """The figures of a run, or of its model at initialisation; all tasks that the dataset has labels for if None."""
    source = RunEmbeddings(runs_dir, features_dir, run, untrained=untrained)
    return evaluate(source, split=split, protocol=protocol, tasks=tasks, settings=settings).as_dict()


def evaluate_features(
    features_dir: Path,
    dataset: str,
    encoder_folder: str,
    column: str,
    *,
    split: ScoredSplit = "test",
    protocol: Protocol = "standard",
    tasks: Sequence[Task] | None = None,
    settings: Settings | None = None,
) -> dict[str, Any]:
    """The figures of a column of the cache: "cls", "merged/0.3"."""
    source = CachedFeatures(features_dir, dataset, encoder_folder, column)
    return evaluate(source, split=split, protocol=protocol, tasks=tasks, settings=settings).as_dict()


def evaluate_time_only(
    features_dir: Path,
    dataset: str,
    *,
    split: ScoredSplit = "test",
    protocol: Protocol = "standard",
    tasks: Sequence[Task] | None = None,
    settings: Settings | None = None,
) -> dict[str, Any]:
    source = TimeOnly(features_dir, dataset)
    return evaluate(source, split=split, protocol=protocol, tasks=tasks, settings=settings).as_dict()


def evaluate(
    source: Source,
    *,
    split: ScoredSplit = "test",
    protocol: Protocol = "standard",
    tasks: Sequence[Task] | None = None,
    settings: Settings | None = None,
) -> Row:
    """One row: the source's figures under one protocol."""
    manifest = source.manifest
    wanted = tasks_of(manifest) if tasks is None else tuple(tasks)
    chosen = settings_for(manifest.dataset, settings or Settings())
    material = read_material(source, split, protocol, wanted)
    row = row_of(source.name, source.kind, material, wanted, chosen, source.origin(), phases=manifest.phases)
    return replace(row, notes=(*row.notes, *_unlabelled(manifest, split, wanted)))


def row_of(
    name: str,
    kind: Kind,
    material: Material,
    tasks: Sequence[Task],
    settings: Settings,
    origin: dict[str, Any],
    *,
    phases: Sequence[str] = (),
) -> Row:
    """Score it; with `settings.bootstrap`, with intervals."""
    figures = score(material, tasks, settings, name)
    row = Row(name, kind, figures, origin, _unlearned_phases(material, phases), settings.time_column)
    if not settings.bootstrap:
        return row
    from byov.evaluate.bootstrap import intervals

    return row.with_intervals(intervals(material, tasks, settings))


def tasks_of(manifest: Manifest) -> tuple[Task, ...]:
    """The tasks of `all`: those that a dataset has labels for. Tau needs none, but compares videos of one action."""
    if manifest.phases:
        return tuple(task for task in ALL_TASKS if task != "actions" or manifest.actions)
    return ("actions",) if manifest.actions else ("tau",)


def settings_for(dataset: str, settings: Settings) -> Settings:
    return replace(settings, time_column=settings.time_column or dataset in TIME_COLUMN_DATASETS)


def read_material(source: Source, split: ScoredSplit, protocol: Protocol, tasks: Sequence[Task]) -> Material:
    """What the tasks need of a source, and no more."""
    test_stretches = stretches(source.manifest, split, protocol)
    means = set(tasks) == {"actions"} and protocol == "standard"
    test = source.video_means(split) if means else source.frames(split, protocol)
    train, train_actions = None, None
    if NEED_TRAINING & set(tasks):
        train = source.video_means("train") if means else source.training_frames()
        train_actions = _actions(source.manifest, stretches(source.manifest, "train"))
    return Material(
        test=test,
        train=train,
        recordings=None if protocol == "standard" else _recordings(test_stretches),
        train_actions=train_actions,
        test_actions=_actions(source.manifest, test_stretches),
    )


def refuse_missing_labels(manifest: Manifest, split: str, tasks: Sequence[Task]) -> None:
    """Raise if a task was asked for by name whose labels the dataset lacks."""
    for task in tasks:
        if task == "actions":
            if not manifest.actions:
                raise EvaluationError(f"{manifest.dataset} has no actions of whole videos; actions needs them")
            continue
        splits = {"train", split} if task in NEED_TRAINING else {split}
        bare = [video for video in manifest.videos if video.split in splits and video.frames and not video.labels]
        if task in NEED_LABELS and (bare or not manifest.phases):
            which = f" of {len(bare)} videos ({bare[0].view}/{bare[0].id}, ...)" if bare else ""
            needy = ", ".join(task for task in TASKS if task in NEED_LABELS)
            raise EvaluationError(
                f"{manifest.dataset}: no phase labels{which}; {needy} need them, tau and actions do not"
            )


def _unlabelled(manifest: Manifest, split: str, tasks: Sequence[Task]) -> tuple[str, ...]:
    """Which splits lack labels of some videos, so that phase tasks cannot be scored."""
    if not manifest.phases or not NEED_LABELS & set(tasks):
        return ()
    notes = []
    for each in dict.fromkeys((split, "train")):
        videos = [video for video in manifest.videos if video.split == each and video.frames]
        bare = [video for video in videos if not video.labels]
        if bare:
            which = f"{len(bare)} of {len(videos)} {each} videos ({bare[0].view}/{bare[0].id}, ...)"
            notes.append(f"{which} have no phase labels; phase tasks need them of all")
    return tuple(notes)


def _recordings(wanted: Sequence[Stretch]) -> NDArray[np.int64]:
    """(V,) which stretches are of one video; they follow each other."""
    numbers: dict[tuple[str, str], int] = {}
    for stretch in wanted:
        numbers.setdefault((stretch.video.view, stretch.video.id), len(numbers))
    return np.array([numbers[stretch.video.view, stretch.video.id] for stretch in wanted])


def _actions(manifest: Manifest, wanted: Sequence[Stretch]) -> NDArray[np.bool_] | None:
    """(V, C) which actions each video shows, or None if the dataset does not say."""
    if not manifest.actions:
        return None
    shown = np.zeros((len(wanted), len(manifest.actions)), np.bool_)
    for row, stretch in enumerate(wanted):
        for action in stretch.video.actions or ():
            if not 0 <= action < len(manifest.actions):
                raise EvaluationError(f"{stretch.name}: action {action} of {len(manifest.actions)}; run byov-extract")
            shown[row, action] = True
    return shown


def _unlearned_phases(material: Material, names: Sequence[str]) -> tuple[str, ...]:
    """Phases of the test videos that no training video has: they are always missed."""
    train, test = material.train, material.test
    if train is None or train.labels is None or test.labels is None:
        return ()
    unlearned = np.setdiff1d(test.labels, train.labels).tolist()
    named = [f"{phase} ({names[phase]})" if phase < len(names) else str(phase) for phase in unlearned]
    return (f"no training video has phase {', '.join(named)}: its test frames count as missed",) if named else ()
