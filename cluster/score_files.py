"""Scores that were measured, kept with what they depend on, so that they are measured once.

runs/<run>/scores.json, scores-untrained.json     of a run, and of its model at its initialization
runs/.sweep/<dataset>[,<encoder>,<column>].json   of time alone, and of cached features
"""

import hashlib
import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from byov.cache.atomic import write_bytes
from byov.cache.digests import check_seal, seal_json
from byov.cache.hdf5 import read_digest
from byov.cache.layout import manifest_path
from byov.evaluate.embeddings import EmbeddingReader, RunEmbeddings
from byov.evaluate.evaluation import Scope, evaluate, versions
from byov.evaluate.protocols import Protocol, segments
from byov.evaluate.table import Row
from byov.evaluate.tasks import task_of
from byov.progress import NO_PROGRESS, Progress

SCORES_NAME, UNTRAINED_NAME, SWEEP_FOLDER = "scores.json", "scores-untrained.json", ".sweep"
SCHEMA_VERSION = 1
Rows = dict[Protocol, Row]


@dataclass(frozen=True)
class ScoreFile:
    schema_version: int
    of: dict[str, Any]  # what the scores depend on, beside the tasks
    tasks: tuple[str, ...]
    rows: Rows


_FILE = TypeAdapter(ScoreFile)


def run_scores(run: Path, *, untrained: bool = False) -> Path:
    return run / (UNTRAINED_NAME if untrained else SCORES_NAME)


def kept_rows(path: Path, reader: EmbeddingReader, features_dir: Path, scope: Scope) -> Rows | None:
    """What a file has for the scope. None if it is of something else, or cannot be read: it is measured again."""
    try:
        content = path.read_bytes()
        if not check_seal(content):
            return None
        kept = _FILE.validate_json(content)
    except (OSError, ValueError):
        return None
    if kept.schema_version != SCHEMA_VERSION or kept.of != _facts(reader, features_dir, scope):
        return None
    if not set(scope.tasks) <= set(kept.tasks) or not set(scope.protocols) <= kept.rows.keys():
        return None
    return {protocol: _of_tasks(kept.rows[protocol], scope) for protocol in scope.protocols}


def measured_rows(
    path: Path, reader: EmbeddingReader, features_dir: Path, scope: Scope, progress: Progress = NO_PROGRESS
) -> Rows | None:
    """What the file has, which is written first if need be."""
    kept = kept_rows(path, reader, features_dir, scope)
    if kept is not None:
        return kept
    rows: Rows = evaluate(reader, scope, progress)
    record = asdict(ScoreFile(SCHEMA_VERSION, _facts(reader, features_dir, scope), scope.tasks, rows))
    write_bytes(path, seal_json(record))
    return kept_rows(path, reader, features_dir, scope)


def _facts(reader: EmbeddingReader, features_dir: Path, scope: Scope) -> dict[str, Any]:
    """What scores depend on, as JSON has it."""
    manifest = manifest_path(features_dir, reader.manifest.dataset)
    facts: dict[str, Any] = json.loads(
        json.dumps(
            {
                "embeddings_sha256": _embeddings_digest(reader, scope),
                "manifest_sha256": hashlib.sha256(manifest.read_bytes()).hexdigest(),
                "split": scope.split,
                "options": asdict(scope.options),
                "versions": versions(),
            }
        )
    )
    return facts


def _embeddings_digest(reader: EmbeddingReader, scope: Scope) -> str:
    """Of a run's the model's, which says it all; of features what their files say of themselves."""
    if isinstance(reader, RunEmbeddings):
        return reader.model_sha256
    column: str = getattr(reader, "column", "")
    paths = [reader.path(segment) for split in ("train", scope.split) for segment in segments(reader.manifest, split)]
    digests = [read_digest(path, column) for path in paths if path is not None and path.is_file()]
    return hashlib.sha256(repr((reader.name, digests)).encode()).hexdigest()


def _of_tasks(row: Row, scope: Scope) -> Row:
    """Without the scores of other tasks, which the file may hold too."""
    return replace(row, scores={name: score for name, score in row.scores.items() if task_of(name).name in scope.tasks})
