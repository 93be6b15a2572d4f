"""One reader under one protocol → one row of scores."""

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from byov.cache.hdf5 import read_columns
from byov.cache.layout import cached_files, encoder_folders
from byov.cache.manifest import Manifest
from byov.cache.runs import RunRecord
from byov.errors import CacheError, EvaluationError
from byov.evaluate.embeddings import CachedFeatures, EmbeddingReader, RunEmbeddings, TimeOnly
from byov.evaluate.frames import Frames
from byov.evaluate.progression import TIME_COLUMN_DATASETS
from byov.evaluate.protocols import PROTOCOLS, Protocol, ScoredSplit, Segment, segments, unread_videos
from byov.evaluate.published import published_rows
from byov.evaluate.scores import Kind, Row, Score, mean_row
from byov.evaluate.task import EvaluationOptions, TaskData
from byov.evaluate.tasks import ALL_TASKS, NEED_ACTIONS, NEED_LABELS, NEED_TRAINING, TASKS
from byov.progress import NO_PROGRESS, Progress, track
from byov.text import pluralize


def evaluate(
    reader: EmbeddingReader,
    *,
    split: ScoredSplit = "test",
    protocol: Protocol = "standard",
    tasks: Sequence[str] | None = None,
    options: EvaluationOptions | None = None,
    progress: Progress = NO_PROGRESS,
) -> Row:
    """One row: the scores of the reader's embeddings under one protocol."""
    manifest = reader.manifest
    wanted = _without_means(reader, tasks_of(manifest) if tasks is None else tuple(tasks))
    chosen = options_for(manifest.dataset, options or EvaluationOptions())
    data = read_task_data(reader, split, protocol, wanted, progress)
    row = row_of(
        reader.name, reader.kind, data, wanted, chosen, reader.origin(), phases=manifest.phases, progress=progress
    )
    return replace(row, notes=(*reader.notes(), *row.notes))


def row_of(
    name: str,
    kind: Kind,
    data: TaskData,
    tasks: Sequence[str],
    options: EvaluationOptions,
    origin: dict[str, Any],
    *,
    phases: Sequence[str] = (),
    progress: Progress = NO_PROGRESS,
) -> Row:
    """Score it; with `options.bootstrap`, with intervals."""
    scores = score(data, tasks, options, name, progress)
    notes = (*_unlearned_phases(data, phases), *_unlabeled(data, tasks))
    row = Row(name, kind, scores, origin, notes, options.time_column)
    if not options.bootstrap:
        return row
    from byov.evaluate.bootstrap import intervals

    return row.with_intervals(intervals(data, tasks, options, progress))


def score(
    data: TaskData, tasks: Sequence[str], options: EvaluationOptions, name: str = "", progress: Progress = NO_PROGRESS
) -> dict[str, Score]:
    """The scores of all these tasks; what cannot be scored is there with its reason."""
    if unknown := set(tasks) - TASKS.keys():
        raise EvaluationError(f"no task {', '.join(sorted(unknown))}; there are {', '.join(TASKS)}")
    wanted = [task for task in TASKS.values() if task.name in tasks]
    scores: dict[str, Score] = {}
    with progress.bar(f"scoring {name}", unit="task", total=len(wanted), brief=True) as bar:
        for task in wanted:
            bar.advance(0, latest=task.name)
            scores |= task.score(task.scored(data), options)
            bar.advance()
    return scores


def tasks_of(manifest: Manifest) -> tuple[str, ...]:
    """The tasks of `all`: those that a dataset has labels for. Tau needs none, but compares videos of one action."""
    if manifest.actions and not manifest.phases:
        return tuple(task for task in ALL_TASKS if task in NEED_ACTIONS)
    return tuple(
        task
        for task in ALL_TASKS
        if (manifest.phases or task not in NEED_LABELS) and (manifest.actions or task not in NEED_ACTIONS)
    )


def options_for(dataset: str, options: EvaluationOptions) -> EvaluationOptions:
    return replace(options, time_column=options.time_column or dataset in TIME_COLUMN_DATASETS)


def _without_means(reader: EmbeddingReader, tasks: tuple[str, ...]) -> tuple[str, ...]:
    """The tasks that see more of a video than its mean, where standardizing has left nothing of that."""
    left = tuple(task for task in tasks if not (reader.standardized and task in NEED_ACTIONS))
    if tasks and not left:
        raise EvaluationError(f"the mean of every standardized video is zero, and {', '.join(tasks)} see nothing else")
    return left


def read_task_data(
    reader: EmbeddingReader,
    split: ScoredSplit,
    protocol: Protocol,
    tasks: Sequence[str],
    progress: Progress = NO_PROGRESS,
) -> TaskData:
    """What the tasks need of the embeddings, and no more."""
    test_segments = segments(reader.manifest, split, protocol)
    means = set(tasks) == NEED_ACTIONS and protocol == "standard"
    test = reader.video_means(split, progress) if means else reader.frames(split, protocol, progress)
    train, train_actions = None, None
    if NEED_TRAINING & set(tasks):
        train = reader.video_means("train", progress) if means else reader.training_frames(progress)
        train_actions = _actions(reader.manifest, segments(reader.manifest, "train"))
    return TaskData(
        test=test,
        train=train,
        recordings=None if protocol == "standard" else _recordings(test_segments),
        train_actions=train_actions,
        test_actions=_actions(reader.manifest, test_segments),
    )


def refuse_missing_labels(manifest: Manifest, split: str, tasks: Sequence[str]) -> None:
    """Raise if the dataset lacks the labels of a task that was requested by name."""
    for task in tasks:
        if task in NEED_ACTIONS:
            if not manifest.actions:
                raise EvaluationError(f"{manifest.dataset} has no actions of whole videos; {task} needs them")
            continue
        splits = (split, "train") if task in NEED_TRAINING else (split,)
        bare = [each for each in splits if not _some_labels(manifest, each)]
        if task in NEED_LABELS and (bare or not manifest.phases):
            which = f" of any {bare[0]} video" if bare else ""
            needy = ", ".join(task for task in TASKS if task in NEED_LABELS)
            others = " and ".join(sorted(TASKS.keys() - NEED_LABELS, key=NEED_ACTIONS.__contains__))
            raise EvaluationError(f"{manifest.dataset}: no phase labels{which}; {needy} need them, {others} do not")


def _some_labels(manifest: Manifest, split: str) -> bool:
    """Has a video of the split phase labels? Of a split without videos, others say that it has none."""
    videos = [video for video in manifest.videos if video.split == split and video.frames]
    return not videos or any(video.labels for video in videos)


def _unlabeled(data: TaskData, tasks: Sequence[str]) -> tuple[str, ...]:
    """What has no part in the phase tasks, as it has no labels."""
    if not NEED_LABELS & set(tasks):
        return ()
    clips = "videos" if data.recordings is None else "sub-clips"
    sets = ((f"scored {clips}", data.test), ("training videos", data.train))
    return tuple(note for what, frames in sets if frames is not None for note in _left_out(what, frames))


def _left_out(what: str, frames: Frames) -> Iterator[str]:
    """Videos without labels, and frames without of other videos."""
    bare, is_labeled = frames.without_labels, frames.labeled.is_labeled
    if bare:
        more = ", ..." if len(bare) > 1 else ""
        which = f"{len(bare)} of {len(frames.names)} {what} have no phase labels ({bare[0]}{more})"
        yield f"{which} and are left out of phase tasks"
    if frames.labels is not None and not is_labeled.all():
        count = f"{(~is_labeled).sum():,} of {len(is_labeled):,} frames of labeled"
        yield (
            f"{count} {what} have no phase label and are left out of phase tasks; progression leaves out the phases "
            "that such frames follow"
        )


def _recordings(wanted: Sequence[Segment]) -> NDArray[np.int64]:
    """(V,) which segments are of one video; they follow each other."""
    numbers: dict[tuple[str, str], int] = {}
    for segment in wanted:
        numbers.setdefault((segment.video.view, segment.video.id), len(numbers))
    return np.array([numbers[segment.video.view, segment.video.id] for segment in wanted])


def _actions(manifest: Manifest, wanted: Sequence[Segment]) -> NDArray[np.bool_] | None:
    """(V, C) which actions each video shows, or None if the dataset does not say."""
    if not manifest.actions:
        return None
    shown = np.zeros((len(wanted), len(manifest.actions)), np.bool_)
    for row, segment in enumerate(wanted):
        for action in segment.video.actions or ():
            if not 0 <= action < len(manifest.actions):
                raise EvaluationError(f"{segment.name}: action {action} of {len(manifest.actions)}; run byov-extract")
            shown[row, action] = True
    return shown


def _unlearned_phases(data: TaskData, names: Sequence[str]) -> tuple[str, ...]:
    """Phases of the test videos that no training video has: they are always missed."""
    train, test = data.labeled_frames.train, data.labeled_frames.test
    if train is None or train.labels is None or test.labels is None:
        return ()
    unlearned = np.setdiff1d(test.labels, train.labels).tolist()
    shown = [f"{phase} ({names[phase]})" if phase < len(names) else str(phase) for phase in unlearned]
    return (f"no training video has phase {', '.join(shown)}: its test frames count as missed",) if shown else ()


LOGGER = logging.getLogger(__name__)

ALL_TOKENS = "merged/1.0"
KIND_ORDER = ("random", "frozen", "time", "untrained", "run")
SAME_BUT_FOR_SEED = ("recipe", "settings", "encoder", "encoder_sha256", "preprocessing", "column")


@dataclass(frozen=True)
class Scope:
    """What is scored of every row."""

    split: ScoredSplit
    protocols: tuple[Protocol, ...]
    tasks: tuple[str, ...]
    options: EvaluationOptions


@dataclass(frozen=True)
class Comparison:
    """The rows of one dataset, or of somebody's file, and what was scored of it."""

    title: str  # the dataset's or the file's name
    scope: Scope
    rows: dict[Protocol, list[Row]]
    counts: dict[Protocol, dict[str, int]]  # videos, ego, exo, frames
    left_out: tuple[str, ...] = ()  # videos that no encoder could read

    def published(self, protocol: Protocol) -> list[Row]:
        """The paper's scores are of the test split and of whole videos: they stand beside no others."""
        return published_rows(self.title) if self.scope.split == "test" and protocol == "standard" else []


@dataclass(frozen=True)
class Entry:
    """A row to be scored: where it comes from, and whether the table can do without it."""

    name: str
    make: Callable[[], EmbeddingReader]
    optional: bool = False


def entries(
    runs_dir: Path,
    features_dir: Path,
    dataset: str,
    runs: Sequence[RunRecord],
    *,
    requested: Sequence[tuple[str, str]] = (),
    frozen: Sequence[tuple[str, str]] = (),
) -> list[Entry]:
    """Time only, the runs and their untrained models, and columns of encoders' folders: those that were
    requested, and those that stand there for comparison, what a run was trained on also standardized."""
    trained_on = {(run.encoder_folder, run.column) for run in runs}

    def features(column: tuple[str, str], *, optional: bool, standardized: bool = False) -> Entry:
        name = ", ".join((*column, "standardized") if standardized else column)
        make = partial(CachedFeatures, features_dir, dataset, *column, standardized=standardized)
        return Entry(name, make, optional)

    def embeddings(run: str, *, untrained: bool) -> Entry:
        make = partial(RunEmbeddings, runs_dir, features_dir, run, untrained=untrained)
        return Entry(f"Untrained ({run})" if untrained else run, make, optional=untrained)

    return [
        *(features(column, optional=False) for column in requested),
        *(
            features(column, optional=True, standardized=standardized)
            for column in frozen
            for standardized in (False, True)
            if (column in trained_on if standardized else column not in requested)
        ),
        Entry("Time only", partial(TimeOnly, features_dir, dataset)),
        *(embeddings(run.name, untrained=True) for run in runs),
        *(embeddings(run.name, untrained=False) for run in runs),
    ]


def frozen_columns(features_dir: Path, dataset: str, run_columns: Sequence[str]) -> list[tuple[str, str]]:
    """(encoder folder, column) of the frozen features to compare with: the class token or the mean of all tokens, and
    what the runs were trained on; untrained encoders first."""
    found = []
    for folder in encoder_folders(features_dir, dataset):
        there = _columns(folder)
        plain = "cls" if "cls" in there else ALL_TOKENS
        found += [(folder.name, column) for column in dict.fromkeys((plain, *run_columns)) if column in there]
    return sorted(found, key=lambda one: not one[0].startswith("random--"))


def _columns(folder: Path) -> tuple[str, ...]:
    """The columns of an encoder's first file."""
    try:
        first = next(cached_files(folder), None)
        return tuple(read_columns(first)) if first else ()
    except CacheError as error:
        LOGGER.info(f"{folder.name}: left out of the table ({error})")
        return ()


def compare(manifest: Manifest, wanted: Sequence[Entry], scope: Scope, progress: Progress = NO_PROGRESS) -> Comparison:
    """Every row under every protocol, in the table's order. What is optional and unreadable is left out."""
    rows: dict[Protocol, list[Row]] = {protocol: [] for protocol in scope.protocols}
    for entry in track(wanted, progress, "rows", unit="row", brief=True):
        try:
            reader = entry.make()
            scored = [(protocol, _evaluate(reader, protocol, scope, progress)) for protocol in scope.protocols]
        except (CacheError, EvaluationError) as error:
            if not entry.optional:
                raise
            LOGGER.info(f"{entry.name}: left out of the table ({error})")
            continue
        for protocol, row in scored:
            rows[protocol].append(row)
    left_out = tuple(unread_videos(manifest, ("train", scope.split)))
    if left_out:
        LOGGER.info(f"left out, since never extracted: {pluralize(len(left_out), 'video')} ({', '.join(left_out[:3])})")
    return Comparison(
        manifest.dataset,
        scope,
        {protocol: list(_with_means(of_protocol)) for protocol, of_protocol in rows.items()},
        {protocol: counts_in(manifest, scope.split, protocol) for protocol in scope.protocols},
        left_out,
    )


def counts_of(videos: int, ego: int, frames: int) -> dict[str, int]:
    return {"videos": videos, "ego": ego, "exo": videos - ego, "frames": frames}


def counts_in(manifest: Manifest, split: ScoredSplit, protocol: Protocol) -> dict[str, int]:
    scored = segments(manifest, split, protocol)
    return counts_of(len(scored), sum(segment.video.view == "ego" for segment in scored), sum(map(len, scored)))


def refuse_absent(reader: EmbeddingReader, scope: Scope) -> None:
    """Raise before anything is scored if embeddings are absent that the tasks need."""
    for protocol in scope.protocols:
        reader.refuse_absent(segments(reader.manifest, scope.split, protocol), scope.split)
    if NEED_TRAINING & set(scope.tasks):
        reader.refuse_absent(segments(reader.manifest, "train"), "train")


def scope_of_all(manifest: Manifest, split: ScoredSplit, options: EvaluationOptions) -> Scope:
    """What --task all scores: all that the dataset has labels for, whole videos and sub-clips."""
    tasks = tasks_of(manifest)
    protocols = PROTOCOLS[:1] if set(tasks) == NEED_ACTIONS else PROTOCOLS
    return Scope(split, protocols, tasks, options_for(manifest.dataset, options))


def scope_of_runs(
    scope: Scope, runs_dir: Path, features_dir: Path, runs: Sequence[RunRecord], *, explicit: bool
) -> Scope:
    """Without the trimmed protocol if a run has no sub-clips for it, unless it was asked for."""
    for record in runs:
        reader = RunEmbeddings(runs_dir, features_dir, record.name)
        refuse_absent(reader, replace(scope, protocols=scope.protocols[:1]))
        try:
            refuse_absent(reader, scope)
        except EvaluationError as error:
            if explicit:
                raise
            LOGGER.info(f"without the trimmed protocol: {error}")
            scope = replace(scope, protocols=("standard",))
    return scope


def _evaluate(reader: EmbeddingReader, protocol: Protocol, scope: Scope, progress: Progress) -> Row:
    return evaluate(
        reader, split=scope.split, protocol=protocol, tasks=scope.tasks, options=scope.options, progress=progress
    )


def _with_means(rows: Sequence[Row]) -> Iterator[Row]:
    """Rows by kind; of runs that differ in their seed alone the mean beside them, of their untrained models the mean in
    their place."""
    for kind in KIND_ORDER:
        of_kind = [row for row in rows if row.kind == kind]
        if kind == "untrained":
            of_kind = _distinct(of_kind)
        groups = _alike(of_kind) if kind in ("untrained", "run") else [[row] for row in of_kind]
        for group in groups:
            if len(group) == 1 or kind == "run":
                yield from group
            if len(group) > 1:
                alone = sum(_title(other) == _title(group) for other in groups) == 1
                yield mean_row(group, _mean_name(group, kind, alone=alone))


def _mean_name(group: Sequence[Row], kind: str, *, alone: bool) -> str:
    """alone: no other rows of the kind have this title, so that there is no need to say of which runs it is."""
    what = "Untrained, mean" if kind == "untrained" else "Mean"
    runs = f"{len(group)} runs" if alone else ", ".join(row.origin["run"] for row in group)
    return f"{what} of {runs}" + (f": {_title(group)}" if _title(group) else "")


def _title(group: Sequence[Row]) -> str:
    """What all of them are; nothing, if they are not one thing, or of byov 0.2, which did not say."""
    titles = {row.origin.get("title", "") for row in group}
    return titles.pop() if len(titles) == 1 else ""


def _distinct(untrained: Sequence[Row]) -> list[Row]:
    """One row for untrained models that are one and the same: runs of one seed and size begin alike."""
    found: dict[str, list[Row]] = {}
    for row in untrained:
        found.setdefault(repr((row.origin["model_sha256"], row.scores)), []).append(row)
    return [_joined(same) if len(same) > 1 else same[0] for same in found.values()]


def _joined(same: Sequence[Row]) -> Row:
    return replace(
        same[0],
        name=f"Untrained ({', '.join(row.origin['run'] for row in same)})",
        origin=same[0].origin | {"title": _title(same)},
    )


def _alike(rows: Sequence[Row]) -> list[list[Row]]:
    """Rows of runs that differ in nothing but their seed, together."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(repr([row.origin.get(key) for key in SAME_BUT_FOR_SEED]), []).append(row)
    return list(groups.values())
