"""Tasks of a sweep: train and score a run, score a baseline. Scores are cached in files.

runs/<run>/scores.json, scores-untrained.json     scores of a run, and of its model at initialization
runs/.sweep/<dataset>[,<encoder>,<column>].json   scores of Time only, and of frozen features
"""

import json
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter

from byov.cache.atomic import write_bytes, write_text
from byov.cache.digests import file_sha256, json_sha256, read_sealed_json, seal_json
from byov.cache.hdf5 import read_digest
from byov.cache.layout import manifest_path
from byov.cache.runs import CHECKPOINTS_NAME, CONFIG_NAME, LAST_MODEL_NAME, is_training
from byov.cluster.grids import PlannedRun
from byov.device import Device
from byov.errors import ByovError, Diverged, Interrupted, StaleError
from byov.evaluate.embeddings import EmbeddingReader, RunEmbeddings
from byov.evaluate.evaluation import Scope, evaluate, versions
from byov.evaluate.protocols import PROTOCOLS, Protocol, segments
from byov.evaluate.table import Row
from byov.evaluate.tasks import task_of
from byov.progress import NO_PROGRESS, Progress, Stop, Stoppable

SCORES_NAME, UNTRAINED_NAME, SWEEP_FOLDER = "scores.json", "scores-untrained.json", ".sweep"
FAILURE_NAME = ".failure.json"  # hidden, so that a folder with only this file is treated as empty
SCHEMA_VERSION = 1
LOCK_SECONDS = 10.0  # how long to wait for another process to release a run
RunState = Literal["to train", "to resume", "finished", "failed", "stopped"]
Rows = dict[Protocol, Row]


@dataclass(frozen=True)
class Folders:
    """Absolute paths of the feature cache and of the runs."""

    features: Path
    runs: Path


@dataclass(frozen=True)
class RunStatus:
    """State of a run before or after a sweep."""

    name: str
    state: RunState
    detail: str = ""  # reason of a failure, or training progress
    seconds: float = 0.0  # spent in this sweep


@dataclass(frozen=True)
class RunTask:
    """Task that trains a run, resuming it if it exists, and scores it."""

    run: PlannedRun
    folders: Folders
    device: Device = "auto"

    @property
    def name(self) -> str:
        return self.run.name

    def __call__(self, stop: Stop) -> RunStatus:
        started, folder = time.monotonic(), self.folders.runs / self.name
        if not _wait_until_free(folder, stop):
            return RunStatus(self.name, "failed", "another process is training this run; sweep again when it is done")
        try:
            self._train(folder, stop)
            self._score(stop)
        except Interrupted:
            return RunStatus(self.name, "stopped")
        except StaleError as error:  # Not recorded: the next sweep scores the run once it is up to date.
            return RunStatus(self.name, "failed", str(error))
        except OSError as error:  # A problem of this machine, so the next sweep retries the run without --retry.
            return RunStatus(self.name, "failed", f"{error.filename or folder}: {error.strerror or error}")
        except Exception as error:  # Recorded, so that later sweeps skip the run unless --retry is given.
            is_bug = not isinstance(error, ByovError | Diverged)
            reason = f"{type(error).__name__}: {error}" if is_bug else str(error)
            failure = {"reason": reason, "traceback": traceback.format_exc() if is_bug else ""}
            write_text(folder / FAILURE_NAME, json.dumps(failure, indent=1) + "\n")
            return RunStatus(self.name, "failed", reason)
        return RunStatus(self.name, "finished", seconds=round(time.monotonic() - started, 1))

    def _train(self, folder: Path, stop: Stop) -> None:
        is_pruned = (folder / LAST_MODEL_NAME).exists() and not any((folder / CHECKPOINTS_NAME).glob("*.safetensors"))
        if is_pruned or (folder / SCORES_NAME).exists():
            return
        from byov.train.run import train_run

        is_started, settings = (folder / CONFIG_NAME).exists(), self.run.settings
        given = {} if is_started else settings.model_dump(exclude=set() if settings.steps is None else {"epochs"})
        train_run(
            self.name,
            dataset=self.run.dataset,
            encoder=self.run.encoder_folder,
            ratio=self.run.ratio,
            resume=is_started,
            device=self.device,
            features_dir=self.folders.features,
            runs_dir=self.folders.runs,
            stop=stop,
            **given,
        )

    def _score(self, stop: Stop) -> None:
        # The scores of the trained model come last: they mark the run as finished.
        for untrained in (True, False) if self.run.untrained else (False,):
            path, reader = run_scores(self.run, self.folders, untrained=untrained)
            score(path, reader, self.folders.features, self.run.scope, Stoppable(NO_PROGRESS, stop))


@dataclass(frozen=True)
class BaselineTask:
    """Task that scores a baseline: frozen features or Time only."""

    name: str
    dataset: str
    folders: Folders
    scope: Scope
    make_reader: Callable[[], EmbeddingReader]

    def __call__(self, stop: Stop) -> Rows:
        path = self.folders.runs / SWEEP_FOLDER / f"{self.name}.json"
        return score(path, self.make_reader(), self.folders.features, self.scope, Stoppable(NO_PROGRESS, stop))


def read_failure(run: Path) -> str | None:
    """Return why a run failed, or None if it did not."""
    try:
        return str(json.loads((run / FAILURE_NAME).read_text(encoding="utf-8"))["reason"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError):
        return f"unknown reason; cannot read {run / FAILURE_NAME}"


def _wait_until_free(folder: Path, stop: Stop) -> bool:
    """Wait until no other process trains the run. Processes of a killed sweep end by themselves."""
    deadline = time.monotonic() + LOCK_SECONDS
    while is_training(folder):
        if stop() or time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


@dataclass(frozen=True)
class ScoreFile:
    """Contents of a score file."""

    schema_version: int
    inputs: dict[str, Any]  # digests and options that the scores depend on
    tasks: tuple[str, ...]
    rows: Rows


_SCORE_FILE = TypeAdapter(ScoreFile)


def run_scores(run: PlannedRun, folders: Folders, *, untrained: bool = False) -> tuple[Path, RunEmbeddings]:
    """Return the score file of a run, and the reader of the embeddings to score."""
    path = folders.runs / run.name / (UNTRAINED_NAME if untrained else SCORES_NAME)
    return path, RunEmbeddings(folders.runs, folders.features, run.name, untrained=untrained)


def finished_rows(run: PlannedRun, folders: Folders, *, untrained: bool = False) -> Rows | None:
    """Return the scores of a run; None if they are missing or outdated."""
    return cached_scores(*run_scores(run, folders, untrained=untrained), folders.features, run.scope)


def cached_scores(path: Path, reader: EmbeddingReader, features_dir: Path, scope: Scope) -> Rows | None:
    """Return the rows of a score file; None if they are missing, damaged, or computed from other inputs."""
    try:
        file = _SCORE_FILE.validate_python(read_sealed_json(path.read_bytes()))
    except (OSError, ValueError):
        return None
    if file.schema_version != SCHEMA_VERSION or file.inputs != _inputs(reader, features_dir, scope):
        return None
    if not set(scope.tasks) <= set(file.tasks) or not set(scope.protocols) <= file.rows.keys():
        return None
    rows = {}
    for protocol in scope.protocols:
        row = file.rows[protocol]
        scores = {name: score for name, score in row.scores.items() if task_of(name).name in scope.tasks}
        rows[protocol] = replace(row, scores=scores)
    return rows


def score(path: Path, reader: EmbeddingReader, features_dir: Path, scope: Scope, progress: Progress) -> Rows:
    """Return the rows of a score file, computing and writing them if needed."""
    cached = cached_scores(path, reader, features_dir, scope)
    if cached is not None:
        return cached
    rows = evaluate(reader, scope, progress)
    record = asdict(ScoreFile(SCHEMA_VERSION, _inputs(reader, features_dir, scope), scope.tasks, rows))
    write_bytes(path, seal_json(record))
    return rows


def _inputs(reader: EmbeddingReader, features_dir: Path, scope: Scope) -> dict[str, Any]:
    inputs = {
        "embeddings_sha256": _embeddings_digest(reader, scope),
        "manifest_sha256": file_sha256(manifest_path(features_dir, reader.manifest.dataset)),
        "split": scope.split,
        "options": asdict(scope.options),
        "versions": versions(),
    }
    as_json: dict[str, Any] = json.loads(json.dumps(inputs))  # tuples become lists, as in the file
    return as_json


def _embeddings_digest(reader: EmbeddingReader, scope: Scope) -> str:
    """Return a joint digest of all files that may be scored; raise StaleError if one of them is out of date."""
    column: str = getattr(reader, "column", "embedding")
    files = {
        reader.path(segment): segment
        for split, protocol in product(("train", scope.split), PROTOCOLS)
        for segment in segments(reader.manifest, split, protocol)
    }
    digests = []
    for path, segment in files.items():
        if path is not None and path.is_file():
            if isinstance(reader, RunEmbeddings):
                reader.check(segment)
            digests.append((segment.name, read_digest(path, column)))
    return json_sha256([reader.name, digests])
