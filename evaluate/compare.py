"""Score embeddings and collect the rows into results and tables."""

import hashlib
import json
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from pydantic import TypeAdapter

from byov.cache.atomic import write_bytes
from byov.cache.digests import json_sha256, read_sealed_json, seal_json
from byov.cache.hdf5 import read_columns, read_digest
from byov.cache.layout import cached_files, encoder_folders
from byov.cache.manifest import Manifest
from byov.cache.runs import RunRecord
from byov.device import computing_threads
from byov.errors import CacheError, EvaluationError, ProcessLost
from byov.evaluate.frames import Frames
from byov.evaluate.protocols import PROTOCOLS, Protocol, segments
from byov.evaluate.readers import (
    CachedFeatures,
    EmbeddingReader,
    RunEmbeddings,
    TimeOnly,
    read_manifest,
)
from byov.evaluate.results import Results, count_videos, versions, with_means
from byov.evaluate.scope import ALL, Scope, file_scope
from byov.evaluate.table import Row, Rows
from byov.evaluate.tasks import EvaluationOptions, find_tasks, score_frames
from byov.files import read_bytes
from byov.progress import NO_PROGRESS, Progress, Stop, Stoppable, never
from byov.text import pluralize
from byov.workers import LocalWorkers

LOGGER = logging.getLogger(__name__)

MIN_FRAMES = 10_000  # with fewer frames, starting processes takes longer than scoring
# Memory for double-precision copies of 1,024 dimensions, and classifier caches.
BYTES_PER_FRAME = 32 << 10
ReaderT = TypeVar("ReaderT", bound=EmbeddingReader)


@dataclass(frozen=True)
class CachedScores:
    """Contents of a score file."""

    inputs: dict[str, Any]  # digests, options and versions that the scores depend on
    tasks: tuple[str, ...]
    rows: Rows


_SCORE_FILE = TypeAdapter(CachedScores)


def score(
    reader: EmbeddingReader,
    scope: Scope,
    cache: Path | None = None,
    progress: Progress = NO_PROGRESS,
) -> Rows:
    """Score a reader's embeddings and return one row per protocol.

    Tasks that use the mean of each video are skipped for standardized features, whose means are all
    zero.

    Args:
        reader: Embeddings to score.
        scope: Split, protocols, tasks and options.
        cache: Score file. Its rows are returned if they were computed from the same embeddings,
            labels, options and package versions; otherwise it is written.
        progress: Progress reporter, updated after each task.
    """
    if cache is None:
        return _compute_rows(reader, scope, progress)
    rows = cached_rows(cache, reader, scope)
    if rows is None:
        rows = _compute_rows(reader, scope, progress)
        contents = CachedScores(_score_inputs(reader, scope), scope.tasks, rows)
        write_bytes(cache, seal_json(asdict(contents)))
    return rows


def cached_rows(cache: Path, reader: EmbeddingReader, scope: Scope) -> Rows | None:
    """Return the rows of a score file; None if it is missing, damaged, incomplete or computed from
    other inputs.
    """
    try:
        cached = _SCORE_FILE.validate_python(read_sealed_json(read_bytes(cache)))
    except (OSError, ValueError):
        return None
    is_complete = set(scope.tasks) <= set(cached.tasks) and set(scope.protocols) <= set(cached.rows)
    if cached.inputs != _score_inputs(reader, scope) or not is_complete:
        return None
    prefixes = {task.prefix for task in find_tasks(scope.tasks)}
    rows = {}
    for protocol in scope.protocols:
        scores = cached.rows[protocol].scores.items()
        wanted = {name: value for name, value in scores if name.partition("/")[0] in prefixes}
        rows[protocol] = replace(cached.rows[protocol], scores=wanted)
    return rows


def _score_inputs(reader: EmbeddingReader, scope: Scope) -> dict[str, Any]:
    """Return what scores depend on, as in the file; raise StaleError if embeddings are out of
    date.
    """
    files = {
        reader.path(segment): segment
        for split, protocol in product(("train", scope.split), PROTOCOLS)
        for segment in segments(reader.manifest, split, protocol)
    }
    digests = []
    for path, segment in files.items():
        if path is not None and path.is_file():
            reader.check(segment)
            digests.append((segment.name, read_digest(path, reader.column)))
    inputs = {
        "embeddings_sha256": json_sha256([reader.name, digests]),
        "manifest_sha256": hashlib.sha256(reader.manifest.to_json().encode()).hexdigest(),
        "split": scope.split,
        "options": asdict(scope.options),
        "versions": versions(),
    }
    return dict(json.loads(json.dumps(inputs)))  # tuples become lists


def _compute_rows(reader: EmbeddingReader, scope: Scope, progress: Progress) -> Rows:
    tasks = [
        task for task in find_tasks(scope.tasks) if not (reader.standardized and task.needs_actions)
    ]
    if not tasks:
        raise EvaluationError(
            f"{', '.join(scope.tasks)}: not defined for standardized features, whose mean is zero"
        )
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
        scores = score_frames(train, test, scored, scope.options, progress)
        notes = reader.notes()
        if any(task.needs_labels for task in scored):
            notes += tuple(_label_notes(train, test, reader.manifest.phases))
        rows[protocol] = Row(
            reader.name, reader.kind, scores, reader.origin(), notes, scope.options.time_column
        )
    return rows


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
            yield (
                f"phase tasks ignore {(~frames.has_labels).sum()} of {len(frames.lengths)} {what} "
                f"videos and {(~frames.is_labeled).sum():,} of {len(frames.is_labeled):,} frames, "
                "which have no labels; progression also ignores the phase before them"
            )


@dataclass(frozen=True)
class ScoreTask:
    """Task that scores a reader's embeddings on a worker."""

    name: str
    reader: EmbeddingReader
    scope: Scope
    cache: Path | None = None

    def __call__(self, stop: Stop) -> Rows:
        return score(self.reader, self.scope, self.cache, Stoppable(NO_PROGRESS, stop))


def compare(
    readers: Sequence[EmbeddingReader],
    scope: Scope,
    *,
    skip_missing: bool = False,
    workers: int = 1,
    progress: Progress = NO_PROGRESS,
    stop: Stop = never,
) -> Results:
    """Score several readers of a dataset and add means over seeds. Optional readers that cannot be
    scored are skipped.

    Args:
        readers: Embeddings to score.
        scope: Split, protocols, tasks and options.
        skip_missing: Skip protocols, other than standard, for which a reader lacks current
            embeddings, instead of raising an error.
        workers: Number of readers to score in parallel, in processes of their own if above 1; see
            `rows_at_once`.
        progress: Progress reporter, updated after each reader.
        stop: Called between tasks; if it returns True, Interrupted is raised.
    """
    manifest = readers[0].manifest
    scope = replace(scope, protocols=_available_protocols(scope, readers, skip_missing))
    left_out = tuple(
        f"{video.view}/{video.id}"
        for video in manifest.videos
        if video.split in ("train", scope.split) and not video.frames
    )
    if left_out:
        LOGGER.info(
            f"{pluralize(len(left_out), 'video')} skipped (not extracted): "
            f"{', '.join(left_out[:3])}"
        )
    tasks = [
        ScoreTask(f"row {index} ({reader.name})", reader, scope)
        for index, reader in enumerate(readers)
    ]
    scored: dict[str, Rows] = {}
    with (
        progress.bar("rows", unit="row", total=len(tasks), brief=True) as bar,
        LocalWorkers(workers) as processes,
    ):
        finished = (
            processes.run(tasks, stop=stop) if workers > 1 else _run_in_turn(tasks, progress, stop)
        )
        for task, rows, error in finished:
            if error is None:
                scored[task.name] = rows
            elif task.reader.optional and isinstance(error, CacheError | EvaluationError):
                LOGGER.info(f"{task.reader.name}: skipped ({error})")
            elif isinstance(error, ProcessLost):
                raise EvaluationError(f"{task.reader.name}: {error}")
            else:
                raise error
            bar.advance(latest=task.reader.name)
    all_rows = with_means([scored[task.name] for task in tasks if task.name in scored])
    return Results(
        manifest.dataset,
        scope,
        {protocol: [rows[protocol] for rows in all_rows] for protocol in scope.protocols},
        count_videos(manifest, scope),
        left_out,
    )


def rows_at_once(manifest: Manifest, split: str, rows: int) -> int:
    """Return the number of rows to score in parallel: one per core, if they fit into half of the
    memory.
    """
    frames = sum(video.frames or 0 for video in manifest.videos if video.split in ("train", split))
    if frames < MIN_FRAMES:
        return 1
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    return max(1, min(rows, computing_threads(), memory // (frames * BYTES_PER_FRAME)))


def compared_readers(
    runs_dir: Path,
    features_dir: Path,
    dataset: str,
    runs: Sequence[RunRecord],
    features: Sequence[tuple[str, str]] | None = None,
) -> list[EmbeddingReader]:
    """Return one reader per table row: frozen features, Time only, and each run untrained and
    trained.

    `features` lists (encoder folder, column) pairs. Default: those of `baseline_readers`.
    """
    if features is None:
        frozen = baseline_readers(
            features_dir, dataset, [(run.encoder_folder, run.column) for run in runs]
        )
    else:
        frozen = [CachedFeatures(features_dir, dataset, *column) for column in features]
    readers: list[EmbeddingReader] = [*frozen, TimeOnly(read_manifest(features_dir, dataset))]
    for run in runs:
        readers += _optional(RunEmbeddings, runs_dir, features_dir, run.name, untrained=True)
    return [*readers, *(RunEmbeddings(runs_dir, features_dir, run.name) for run in runs)]


def baseline_readers(
    features_dir: Path, dataset: str, inputs: Sequence[tuple[str, str]]
) -> list[CachedFeatures]:
    """Return readers for each encoder's class tokens or mean tokens, and for the columns that runs
    were trained on, also standardized.

    `inputs` lists the (encoder folder, column) pairs of the runs.
    """
    readers: list[CachedFeatures] = []
    for folder in sorted(
        encoder_folders(features_dir, dataset),
        key=lambda folder: not folder.name.startswith("random--"),
    ):
        try:
            first = next(cached_files(folder), None)
            columns = tuple(read_columns(first)) if first else ()
        except CacheError as error:
            LOGGER.info(f"{folder.name}: skipped ({error})")
            continue
        plain = "cls" if "cls" in columns else "merged/1.0"  # merged/1.0 is the mean of all tokens
        for column in dict.fromkeys((plain, *(column for _, column in inputs))):
            if column not in columns:
                continue
            source = (features_dir, dataset, folder.name, column)
            readers += _optional(CachedFeatures, *source)
            if (folder.name, column) in inputs:
                readers += _optional(CachedFeatures, *source, standardized=True)
    return readers


def _optional(
    make_reader: Callable[..., ReaderT], *arguments: Any, **options: Any
) -> list[ReaderT]:
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


def compare_file(
    reader: EmbeddingReader,
    tasks: Sequence[str] = (ALL,),
    options: EvaluationOptions | None = None,
    progress: Progress = NO_PROGRESS,
) -> Results:
    """Compare embeddings from files with Time only, on all tasks that the files have labels and
    videos for, or on the named tasks.
    """
    scope = file_scope(reader.manifest, reader.name, tasks, options)
    readers = [reader, TimeOnly(reader.manifest)]
    return replace(compare(readers, scope, progress=progress), title=reader.name)


def _available_protocols(
    scope: Scope, readers: Sequence[EmbeddingReader], skip_missing: bool
) -> tuple[Protocol, ...]:
    """Return the protocols that all required readers have current embeddings for; raise if one is
    missing and may not be skipped.
    """
    protocols = list(scope.protocols)
    for reader in (reader for reader in readers if not reader.optional):
        if any(task.needs_training for task in find_tasks(scope.tasks)):
            reader.check_files("train")
        for protocol in tuple(protocols):
            try:
                reader.check_files(scope.split, protocol)
            except EvaluationError as error:
                if not skip_missing or protocol == "standard" or len(protocols) == 1:
                    raise
                LOGGER.info(f"{protocol} protocol skipped: {error}")
                protocols.remove(protocol)
    return tuple(protocols)


def _run_in_turn(
    tasks: Sequence[ScoreTask], progress: Progress, stop: Stop
) -> Iterator[tuple[ScoreTask, Rows, Exception | None]]:
    for task in tasks:
        try:
            rows = score(task.reader, task.scope, task.cache, Stoppable(progress, stop))
        except (CacheError, EvaluationError) as error:
            yield task, {}, error
        else:
            yield task, rows, None
