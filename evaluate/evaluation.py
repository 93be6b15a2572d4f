"""One reader under one protocol → one row of scores."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from byov.cache.manifest import Manifest
from byov.errors import EvaluationError
from byov.evaluate.embedding_readers import EmbeddingReader
from byov.evaluate.frames import Frames
from byov.evaluate.progression import TIME_COLUMN_DATASETS
from byov.evaluate.protocols import Protocol, ScoredSplit, Segment, segments
from byov.evaluate.scores import Kind, Row, Score
from byov.evaluate.task import EvaluationOptions, TaskData
from byov.evaluate.tasks import ALL_TASKS, NEED_ACTIONS, NEED_LABELS, NEED_TRAINING, TASKS
from byov.progress import SILENT, Progress


def evaluate(
    reader: EmbeddingReader,
    *,
    split: ScoredSplit = "test",
    protocol: Protocol = "standard",
    tasks: Sequence[str] | None = None,
    options: EvaluationOptions | None = None,
    progress: Progress = SILENT,
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
    progress: Progress = SILENT,
) -> Row:
    """Score it; with `options.bootstrap`, with intervals."""
    scores = score(data, tasks, options, name, progress)
    notes = (*_unlearned_phases(data, phases), *_unlabelled(data, tasks))
    row = Row(name, kind, scores, origin, notes, options.time_column)
    if not options.bootstrap:
        return row
    from byov.evaluate.bootstrap import intervals

    return row.with_intervals(intervals(data, tasks, options, progress))


def score(
    data: TaskData, tasks: Sequence[str], options: EvaluationOptions, name: str = "", progress: Progress = SILENT
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
    """The tasks that see more of a video than its mean, where standardising has left nothing of that."""
    left = tuple(task for task in tasks if not (reader.standardized and task in NEED_ACTIONS))
    if tasks and not left:
        raise EvaluationError(f"the mean of every standardised video is zero, and {', '.join(tasks)} see nothing else")
    return left


def read_task_data(
    reader: EmbeddingReader,
    split: ScoredSplit,
    protocol: Protocol,
    tasks: Sequence[str],
    progress: Progress = SILENT,
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


def _unlabelled(data: TaskData, tasks: Sequence[str]) -> tuple[str, ...]:
    """What has no part in the phase tasks, as it has no labels."""
    if not NEED_LABELS & set(tasks):
        return ()
    clips = "videos" if data.recordings is None else "sub-clips"
    sets = ((f"scored {clips}", data.test), ("training videos", data.train))
    return tuple(note for what, frames in sets if frames is not None for note in _left_out(what, frames))


def _left_out(what: str, frames: Frames) -> Iterator[str]:
    """Videos without labels, and frames without of other videos."""
    bare, is_labelled = frames.without_labels, frames.labelled.is_labelled
    if bare:
        more = ", ..." if len(bare) > 1 else ""
        which = f"{len(bare)} of {len(frames.names)} {what} have no phase labels ({bare[0]}{more})"
        yield f"{which} and are left out of phase tasks"
    if frames.labels is not None and not is_labelled.all():
        count = f"{(~is_labelled).sum():,} of {len(is_labelled):,} frames of labelled"
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
    train, test = data.labelled_frames.train, data.labelled_frames.test
    if train is None or train.labels is None or test.labels is None:
        return ()
    unlearned = np.setdiff1d(test.labels, train.labels).tolist()
    shown = [f"{phase} ({names[phase]})" if phase < len(names) else str(phase) for phase in unlearned]
    return (f"no training video has phase {', '.join(shown)}: its test frames count as missed",) if shown else ()
