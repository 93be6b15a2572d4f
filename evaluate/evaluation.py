"""Score embeddings and collect the rows into results and tables."""

import logging
import platform
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from byov import __version__
from byov.cache.digests import SCHEMA_VERSION
from byov.cache.hdf5 import read_columns
from byov.cache.layout import PREFIXES_PER_VIDEO, cached_files, encoder_folders
from byov.cache.manifest import Manifest
from byov.cache.runs import RunRecord
from byov.errors import CacheError, EvaluationError
from byov.evaluate.classification import svm_solver
from byov.evaluate.embeddings import (
    CachedFeatures,
    EmbeddingReader,
    RunEmbeddings,
    TimeOnly,
    read_manifest,
)
from byov.evaluate.frames import Frames
from byov.evaluate.progression import TIME_COLUMN_DATASETS
from byov.evaluate.protocols import TRIMMED_CLIPS, Protocol, ScoredSplit, segments
from byov.evaluate.published import published_rows
from byov.evaluate.table import Row, Table, mean_row
from byov.evaluate.tasks import (
    TASKS,
    EvaluationOptions,
    find_tasks,
    score_frames,
    scored_protocols,
    table_columns,
)
from byov.progress import NO_PROGRESS, Progress, track
from byov.text import pluralize

LOGGER = logging.getLogger(__name__)

RowsOrError = dict[Protocol, Row] | Exception
KIND_ORDER = ("random", "frozen", "time", "untrained", "run")
SAME_BUT_FOR_SEED = ("recipe", "settings", "encoder", "column", "features_sha256", "trained_on")
MEANS = "mean ± sample standard deviation over runs"
PROTOCOL_NOTES = {
    "trimmed": (
        "trimmed: each video is replaced by two sub-clips of 30 to 60% of its length, embedded "
        "separately; "
        "progression and Time only are relative to the sub-clip; sub-clips of one video are not "
        "matched with each other"
    ),
    "online": (
        f"online: {PREFIXES_PER_VIDEO} frames of each video, each embedded from the frames up to "
        "it; classifiers "
        "and progress predictors use whole training videos, and Time only is the elapsed time / "
        "their mean duration; "
        "features with merged tokens (STM) compare neighboring frames and are available one frame "
        "late"
    ),
}
STANDARDIZED = (
    "standardized: zero mean and unit deviation per dimension, over the video, sub-clip or "
    "frames so far"
)


@dataclass(frozen=True)
class Scope:
    """Split, protocols, tasks and options of an evaluation."""

    split: ScoredSplit
    protocols: tuple[Protocol, ...]
    tasks: tuple[str, ...]
    options: EvaluationOptions


@dataclass(frozen=True)
class Results:
    """Scored rows for one dataset or embedding file."""

    title: str  # name of the dataset or file
    scope: Scope
    rows: dict[Protocol, list[Row]]  # in table order
    counts: dict[Protocol, dict[str, int]]  # numbers of videos, ego videos, exo videos and frames
    left_out: tuple[str, ...] = ()  # videos that were never extracted

    def published(self, protocol: Protocol) -> list[Row]:
        """Return the paper's rows, which exist only for whole videos of the test split."""
        return (
            published_rows(self.title)
            if self.scope.split == "test" and protocol == "standard"
            else []
        )

    def tables(self) -> list[Table]:
        """Return the tables for all protocols and scored tasks, main tables first."""
        tables = []
        for protocol, rows in self.rows.items():
            shown = table_columns(self.scope.tasks, self.scope.options, protocol)
            counts = self.counts[protocol]
            noun = "sub-clip" if protocol == "trimmed" else "video"
            size = (
                f"{pluralize(counts['videos'], noun)}, {counts['ego']} ego and {counts['exo']} exo"
            )
            size += f", {pluralize(counts['frames'], 'frame')}"
            for subject, columns in shown.items():
                title = (
                    f"{self.title}, {self.scope.split} split, {protocol} protocol: "
                    f"{subject} ({size})"
                )
                all_rows = (*rows, *self.published(protocol))
                is_main = subject == next(iter(shown))
                tables.append(
                    Table(title, columns, all_rows, self._notes(protocol), is_main=is_main)
                )
        return sorted(tables, key=lambda table: not table.is_main)

    def to_dict(self) -> dict[str, Any]:
        """Return the contents of results.json."""
        return {
            "schema_version": SCHEMA_VERSION,
            "dataset": self.title,
            "split": self.scope.split,
            "tasks": list(self.scope.tasks),
            **self._conditions(),
            "left_out": self.left_out,
            "protocols": {
                protocol: {**self.counts[protocol], "rows": [row.to_dict() for row in rows]}
                for protocol, rows in self.rows.items()
            },
            "published": [row.to_dict() for row in self.published("standard")],
        }

    def file_to_dict(self) -> dict[str, Any]:
        """Return the contents of results.json for an embedding file, with its scores at the top
        level.
        """
        row, time = self.rows["standard"]
        return {
            **row.nested_scores(),
            "time_only": time.nested_scores(),
            "details": row.details(),
            "notes": list(row.notes),
            "origin": row.origin,
            "split": self.scope.split,
            **self.counts["standard"],
            **self._conditions(),
        }

    def _conditions(self) -> dict[str, Any]:
        return {
            "settings": asdict(self.scope.options),
            "trimmed_clips": TRIMMED_CLIPS,
            "online_prefixes": PREFIXES_PER_VIDEO,
            "versions": versions(),
        }

    def _notes(self, protocol: Protocol) -> tuple[str, ...]:
        rows = self.rows[protocol]
        bootstrap = self.scope.options.bootstrap
        notes = [note for row in rows for note in row.notes]
        if any(row.origin.get("standardized") for row in rows):
            notes.append(STANDARDIZED)
        if any(row.kind == "mean" for row in rows):
            notes.append(MEANS)
        if bootstrap:
            notes.append(
                f"[ , ]: 95% confidence interval from {bootstrap} bootstrap samples of the scored "
                "videos"
            )
        if self.scope.split == "val":
            notes.append("the val split is for model selection; report scores on the test split")
        if protocol in PROTOCOL_NOTES:
            notes.append(PROTOCOL_NOTES[protocol])
        return tuple(notes)


def versions() -> dict[str, str]:
    """Return the versions of all packages that can affect the last digits of a score, including the
    SVM solver.
    """
    packages = {name: version(name) for name in ("numpy", "scipy", "scikit-learn")}
    solver = {"svm": f"{svm_solver()} {version(svm_solver())}"}
    return {"python": platform.python_version(), "byov": __version__} | packages | solver


def evaluate(
    reader: EmbeddingReader, scope: Scope, progress: Progress = NO_PROGRESS
) -> dict[Protocol, Row]:
    """Score a reader's embeddings and return one row per protocol.

    Tasks that use the mean of each video are skipped for standardized features, whose means are all
    zero.
    """
    manifest = reader.manifest
    tasks = [
        task for task in find_tasks(scope.tasks) if not (reader.standardized and task.needs_actions)
    ]
    if not tasks:
        raise EvaluationError(
            f"{', '.join(scope.tasks)}: not defined for standardized features, whose mean is zero"
        )
    options = options_for(manifest.dataset, scope.options)
    # If so, read only means: all frames may not fit into memory.
    means = all(task.needs_actions for task in tasks)
    needs_training = any(task.needs_training for task in tasks)
    train = reader.frames("train", progress=progress, means=means) if needs_training else None
    rows = {}
    for protocol in scope.protocols:
        scored = [task for task in tasks if protocol in task.protocols]
        if not scored:
            raise EvaluationError(
                f"{', '.join(scope.tasks)}: not available in the {protocol} protocol"
            )
        test = reader.frames(scope.split, protocol, progress, means=means)
        scores = score_frames(train, test, scored, options, progress)
        notes = reader.notes()
        if any(task.needs_labels for task in scored):
            notes += tuple(_label_notes(train, test, manifest.phases))
        rows[protocol] = Row(
            reader.name, reader.kind, scores, reader.origin(), notes, options.time_column
        )
    return rows


def evaluate_file(
    reader: EmbeddingReader,
    tasks: Sequence[str] | None,
    options: EvaluationOptions,
    progress: Progress = NO_PROGRESS,
) -> Results:
    """Score embeddings from files and Time only, by default on all tasks that the files have labels
    and videos for.
    """
    manifest = reader.manifest
    name = reader.name
    splits = {video.split for video in manifest.videos}
    if "test" not in splits:
        raise EvaluationError(
            f"{name}: none of the files belongs to a test video of {manifest.dataset}"
        )
    usual = [
        task
        for task in TASKS.values()
        if task.in_all and "standard" in task.protocols and not task.needs_actions
    ]
    scored = []
    for task in usual if tasks is None else find_tasks(tasks):
        lacking = task.missing_labels(manifest, "test")
        if task.needs_training and "train" not in splits:
            lacking = "training videos"
        if not lacking:
            scored.append(task.name)
            continue
        message = (
            f"{name}: no {lacking}, needed by {task.name} (for files written by "
            "byov-embed, pass --dataset NAME)"
        )
        if tasks is not None:
            raise EvaluationError(message)
        LOGGER.info(f"{message}; skipped")
    scope = Scope("test", ("standard",), tuple(scored), options)
    rows = [evaluate(one, scope, progress)["standard"] for one in (reader, TimeOnly(manifest))]
    return Results(name, scope, {"standard": rows}, count_videos(manifest, scope))


def _label_notes(train: Frames | None, test: Frames, names: Sequence[str]) -> Iterator[str]:
    """Yield notes about phases that are absent from training, and about videos and frames without
    labels.
    """
    if train is not None and train.labels is not None and test.labels is not None:
        unlearned = np.setdiff1d(test.labeled_frames.phases, train.labels).tolist()
        if unlearned:
            shown = [names[phase] if phase < len(names) else str(phase) for phase in unlearned]
            yield (
                f"no training video has phase {', '.join(shown)}: its test frames count as "
                "misclassified"
            )
    for what, frames in (("scored", test), ("training", train)):
        if frames is not None and not frames.is_labeled.all():
            videos = len(frames.lengths)
            labeled = frames.is_labeled
            yield (
                f"phase tasks ignore {(~frames.has_labels).sum()} of {videos} {what} videos and "
                f"{(~labeled).sum():,} "
                f"of {len(labeled):,} frames, which have no labels; progression also ignores the "
                "phase before them"
            )


def evaluate_or_skip(reader: EmbeddingReader, scope: Scope, progress: Progress) -> RowsOrError:
    """Return one row per protocol, or the error if an optional reader cannot be scored."""
    try:
        return evaluate(reader, scope, progress)
    except (CacheError, EvaluationError) as error:
        if not reader.optional:
            raise
        return error


def compare(
    manifest: Manifest,
    readers: Sequence[EmbeddingReader],
    scope: Scope,
    progress: Progress = NO_PROGRESS,
    scored: Sequence[RowsOrError] | None = None,
) -> Results:
    """Score several readers and add means over seeds. Optional readers that cannot be scored are
    skipped.

    Args:
        manifest: Manifest of the dataset.
        readers: Embeddings to score.
        scope: Split, protocols, tasks and options.
        progress: Progress reporter, updated after each reader.
        scored: Results of `evaluate_or_skip` for each reader, if already known.
    """
    if scored is None:
        tracked = track(readers, progress, "rows", unit="row", brief=True)
        scored = [evaluate_or_skip(reader, scope, progress) for reader in tracked]
    rows: dict[Protocol, list[Row]] = {protocol: [] for protocol in scope.protocols}
    for reader, row_of in zip(readers, scored, strict=True):
        if isinstance(row_of, Exception):
            LOGGER.info(f"{reader.name}: skipped ({row_of})")
            continue
        for protocol, row in row_of.items():
            rows[protocol].append(row)
    used = [video for video in manifest.videos if video.split in ("train", scope.split)]
    left_out = tuple(f"{video.view}/{video.id}" for video in used if not video.frames)
    if left_out:
        LOGGER.info(
            f"{pluralize(len(left_out), 'video')} skipped (not extracted): "
            f"{', '.join(left_out[:3])}"
        )
    with_means = {
        protocol: list(_with_means(of_protocol)) for protocol, of_protocol in rows.items()
    }
    return Results(manifest.dataset, scope, with_means, count_videos(manifest, scope), left_out)


def readers_to_compare(
    runs_dir: Path,
    features_dir: Path,
    dataset: str,
    runs: Sequence[RunRecord],
    *,
    requested: Sequence[tuple[str, str]] = (),
    baselines: Sequence[tuple[str, str]] = (),
) -> list[EmbeddingReader]:
    """Return readers for (encoder folder, column) pairs, Time only, and the untrained and trained
    models of runs.
    """
    trained_on = {(run.encoder_folder, run.column) for run in runs}
    readers: list[EmbeddingReader] = [
        CachedFeatures(features_dir, dataset, *column) for column in requested
    ]
    for column in baselines:
        if column not in requested:
            readers += _optional(CachedFeatures, features_dir, dataset, *column)
        if column in trained_on:
            readers += _optional(CachedFeatures, features_dir, dataset, *column, standardized=True)
    readers.append(TimeOnly(read_manifest(features_dir, dataset)))
    for run in runs:
        readers += _optional(RunEmbeddings, runs_dir, features_dir, run.name, untrained=True)
    return [*readers, *(RunEmbeddings(runs_dir, features_dir, run.name) for run in runs)]


def _optional(
    make_reader: Callable[..., EmbeddingReader], *arguments: Any, **options: Any
) -> list[EmbeddingReader]:
    """Return a list with the reader, marked as optional, or an empty list if it cannot be
    opened.
    """
    try:
        reader = make_reader(*arguments, **options)
    except (CacheError, EvaluationError) as error:
        LOGGER.info(f"skipped: {error}")
        return []
    reader.optional = True
    return [reader]


def frozen_columns(
    features_dir: Path, dataset: str, run_columns: Sequence[str]
) -> list[tuple[str, str]]:
    """Return (encoder folder, column) pairs for baselines: class tokens or mean tokens, and the
    inputs of the runs.
    """
    found = []
    for folder in encoder_folders(features_dir, dataset):
        try:
            first = next(cached_files(folder), None)
            columns = tuple(read_columns(first)) if first else ()
        except CacheError as error:
            LOGGER.info(f"{folder.name}: skipped ({error})")
            continue
        plain = "cls" if "cls" in columns else "merged/1.0"  # merged/1.0 is the mean of all tokens
        found += [
            (folder.name, column)
            for column in dict.fromkeys((plain, *run_columns))
            if column in columns
        ]
    return sorted(found, key=lambda one: not one[0].startswith("random--"))


def tasks_of(manifest: Manifest) -> tuple[str, ...]:
    """Return the tasks in --task all that a dataset has labels for; only `actions` if it has no
    other labels.
    """
    usable = [
        task
        for task in TASKS.values()
        if task.in_all
        and (manifest.phases or not task.needs_labels)
        and (manifest.actions or not task.needs_actions)
    ]
    only_actions = bool(manifest.actions) and not manifest.phases
    return tuple(task.name for task in usable if task.needs_actions or not only_actions)


def options_for(dataset: str, options: EvaluationOptions) -> EvaluationOptions:
    """Return the options, with the time column enabled for datasets on which AE2 uses it."""
    return replace(options, time_column=options.time_column or dataset in TIME_COLUMN_DATASETS)


def scope_of_all(manifest: Manifest, split: ScoredSplit, options: EvaluationOptions) -> Scope:
    """Return the scope of --task all: every task that the dataset has labels for, in all
    protocols.
    """
    tasks = tasks_of(manifest)
    return Scope(split, scored_protocols(tasks), tasks, options_for(manifest.dataset, options))


def scope_of_runs(scope: Scope, readers: Sequence[EmbeddingReader], *, explicit: bool) -> Scope:
    """Drop protocols for which a run lacks current embeddings; raise for "standard" or if
    `explicit` is True.
    """
    for reader in readers:
        if not isinstance(reader, RunEmbeddings) or reader.untrained:
            continue
        if any(TASKS[task].needs_training for task in scope.tasks):
            reader.check_files("train")
        for protocol in scope.protocols:
            try:
                reader.check_files(scope.split, protocol)
            except EvaluationError as error:
                if explicit or protocol == "standard":
                    raise
                LOGGER.info(f"{protocol} protocol skipped: {error}")
                scope = replace(
                    scope, protocols=tuple(one for one in scope.protocols if one != protocol)
                )
    return scope


def require_labels(manifest: Manifest, split: str, tasks: Sequence[str]) -> None:
    """Raise EvaluationError if the dataset lacks labels that one of the tasks needs."""
    for task in find_tasks(tasks):
        if lacking := task.missing_labels(manifest, split):
            raise EvaluationError(
                f"{manifest.dataset} has no {lacking}; {task.name} needs them, but tau does not"
            )


def count_videos(manifest: Manifest, scope: Scope) -> dict[Protocol, dict[str, int]]:
    """Count the scored videos or sub-clips (in total and per view) and their frames, for each
    protocol.
    """
    counts: dict[Protocol, dict[str, int]] = {}
    for protocol in scope.protocols:
        scored = segments(manifest, scope.split, protocol)
        ego = sum(segment.video.view == "ego" for segment in scored)
        frames = sum(map(len, scored))
        counts[protocol] = {
            "videos": len(scored),
            "ego": ego,
            "exo": len(scored) - ego,
            "frames": frames,
        }
    return counts


def _with_means(rows: Sequence[Row]) -> Iterator[Row]:
    """Sort rows by kind, drop duplicate untrained models, and add means over runs that differ only
    in the seed.
    """
    groups: dict[str, list[Row]] = {}
    untrained = set()
    for row in sorted(rows, key=lambda row: KIND_ORDER.index(row.kind)):
        if row.kind == "untrained":
            model = repr((row.origin["model_sha256"], row.scores))
            if model in untrained:
                continue
            untrained.add(model)
        settings = (
            [row.origin.get(key) for key in SAME_BUT_FOR_SEED]
            if row.kind in ("untrained", "run")
            else row.name
        )
        groups.setdefault(repr((row.kind, settings)), []).append(row)
    for group in groups.values():
        is_untrained = group[0].kind == "untrained"
        if len(group) == 1 or not is_untrained:
            yield from group
        if len(group) > 1:
            title = group[0].origin["title"]
            name = (
                f"{'Untrained, mean' if is_untrained else 'Mean'} of "
                f"{', '.join(row.origin['run'] for row in group)}"
            )
            yield mean_row(group, f"{name}: {title}" if title else name)
