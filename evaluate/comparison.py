"""The rows of a table: whose embeddings stand beside whose, so that a figure can be judged."""

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from tqdm import tqdm

from byov.cache.layout import cached_files, encoder_folders
from byov.cache.manifest import Manifest
from byov.cache.row_reader import read_columns
from byov.cache.runs import RunRecord
from byov.errors import CacheError, EvaluationError
from byov.evaluate.baselines import CachedFeatures, TimeOnly
from byov.evaluate.embedding_readers import RunEmbeddings, Source
from byov.evaluate.evaluation import evaluate, settings_for, tasks_of
from byov.evaluate.protocols import PROTOCOLS, Protocol, ScoredSplit, stretches
from byov.evaluate.scores import Row, mean_row
from byov.evaluate.tasks import NEED_TRAINING, Settings, Task

LOGGER = logging.getLogger(__name__)

ALL_TOKENS = "merged/1.0"
KIND_ORDER = ("random", "frozen", "time", "untrained", "run")
SAME_BUT_FOR_SEED = ("recipe", "settings", "encoder", "encoder_sha256", "preprocessing", "column")


@dataclass(frozen=True)
class Scope:
    """What is scored of every row."""

    split: ScoredSplit
    protocols: tuple[Protocol, ...]
    tasks: tuple[Task, ...]
    settings: Settings


@dataclass(frozen=True)
class Entry:
    """A row to be: where it comes from, and whether the table can do without it."""

    name: str
    make: Callable[[], Source]
    optional: bool = False


def entries(
    runs_dir: Path,
    features_dir: Path,
    dataset: str,
    runs: Sequence[str],
    *,
    named: Sequence[tuple[str, str]] = (),
    frozen: Sequence[tuple[str, str]] = (),
) -> list[Entry]:
    """Time only, the runs and their untrained models, and columns of encoders' folders: those that the user has named,
    and those that stand there for comparison."""

    def features(column: tuple[str, str], *, optional: bool) -> Entry:
        return Entry(", ".join(column), partial(CachedFeatures, features_dir, dataset, *column), optional)

    def embeddings(run: str, *, untrained: bool) -> Entry:
        make = partial(RunEmbeddings, runs_dir, features_dir, run, untrained=untrained)
        return Entry(f"Untrained ({run})" if untrained else run, make, optional=untrained)

    return [
        *(features(column, optional=False) for column in named),
        *(features(column, optional=True) for column in frozen if column not in named),
        Entry("Time only", partial(TimeOnly, features_dir, dataset)),
        *(embeddings(run, untrained=True) for run in runs),
        *(embeddings(run, untrained=False) for run in runs),
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


def measure(wanted: Sequence[Entry], scope: Scope) -> dict[Protocol, list[Row]]:
    """Every row under every protocol, in the table's order. What is optional and unreadable is left out."""
    rows: dict[Protocol, list[Row]] = {protocol: [] for protocol in scope.protocols}
    for entry in tqdm(wanted, desc="rows", unit="row", disable=None, delay=1, leave=False):
        try:
            source = entry.make()
            measured = [(protocol, _evaluate(source, protocol, scope)) for protocol in scope.protocols]
        except (CacheError, EvaluationError) as error:
            if not entry.optional:
                raise
            LOGGER.info(f"{entry.name}: left out of the table ({error})")
            continue
        for protocol, row in measured:
            rows[protocol].append(row)
    return {protocol: list(_with_means(of_protocol)) for protocol, of_protocol in rows.items()}


def refuse_absent(source: Source, scope: Scope) -> None:
    """Raise before anything is scored if embeddings are absent that the tasks need."""
    for protocol in scope.protocols:
        source.refuse_absent(stretches(source.manifest, scope.split, protocol), scope.split)
    if NEED_TRAINING & set(scope.tasks):
        source.refuse_absent(stretches(source.manifest, "train"), "train")


def scope_of_all(manifest: Manifest, split: ScoredSplit, settings: Settings) -> Scope:
    """What --task all scores: all that the dataset has labels for, whole videos and sub-clips."""
    tasks = tasks_of(manifest)
    protocols = PROTOCOLS[:1] if tasks == ("actions",) else PROTOCOLS
    return Scope(split, protocols, tasks, settings_for(manifest.dataset, settings))


def scope_of_runs(
    scope: Scope, runs_dir: Path, features_dir: Path, runs: Sequence[RunRecord], *, explicit: bool
) -> Scope:
    """Without the trimmed protocol if a run has no sub-clips for it, unless it was asked for."""
    for record in runs:
        source = RunEmbeddings(runs_dir, features_dir, record.name)
        refuse_absent(source, replace(scope, protocols=scope.protocols[:1]))
        try:
            refuse_absent(source, scope)
        except EvaluationError as error:
            if explicit:
                raise
            LOGGER.info(f"without the trimmed protocol: {error}")
            scope = replace(scope, protocols=("standard",))
    return scope


def _evaluate(source: Source, protocol: Protocol, scope: Scope) -> Row:
    return evaluate(source, split=scope.split, protocol=protocol, tasks=scope.tasks, settings=scope.settings)


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
                what = "Untrained, mean" if kind == "untrained" else "Mean"
                whose = f"{len(group)} runs" if len(groups) == 1 else ", ".join(row.origin["run"] for row in group)
                yield mean_row(group, f"{what} of {whose}")


def _distinct(untrained: Sequence[Row]) -> list[Row]:
    """One row for untrained models that are one and the same: runs of one seed and size begin alike."""
    found: dict[str, list[Row]] = {}
    for row in untrained:
        found.setdefault(repr((row.origin["model_sha256"], row.figures)), []).append(row)
    return [_joined(same) if len(same) > 1 else same[0] for same in found.values()]


def _joined(same: Sequence[Row]) -> Row:
    return replace(same[0], name=f"Untrained ({', '.join(row.origin['run'] for row in same)})")


def _alike(rows: Sequence[Row]) -> list[list[Row]]:
    """Rows of runs that differ in nothing but their seed, together."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(repr([row.origin.get(key) for key in SAME_BUT_FOR_SEED]), []).append(row)
    return list(groups.values())
