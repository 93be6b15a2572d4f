"""Options for byov-train, and functions that read and change the files of runs and caches."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

from byov.train.runs import Execution, embed_run, resume_run, start_run

START = ("--ratio", 0.3, "--run", "toy")
RESUME = ("--run", "toy", "--resume")
EMBED = ("--run", "toy", "--embed-only")


def train_run(
    run: str | None = None, *, resume: bool = False, embed_only: bool = False, **options: Any
) -> dict[str, Any]:
    """Start, resume or embed a run, given the fields of `Execution` and settings."""
    names = {field.name for field in fields(Execution)} & options.keys()
    execution = Execution(**{name: options.pop(name) for name in names})
    execute = embed_run if embed_only else resume_run if resume else start_run
    return execute(run, execution, **options)


def records(run: Path) -> list[dict[str, Any]]:
    """Read the lines of metrics.jsonl."""
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def contents(run: Path) -> dict[str, bytes]:
    """Return a dict mapping the names of a run's files to their contents, without the lock and the
    checkpoints.
    """
    return {
        str(path.relative_to(run)): path.read_bytes()
        for path in sorted(run.rglob("*"))
        if path.is_file() and path.name != ".lock" and path.parent.name != "checkpoint"
    }


def checkpoints(run: Path) -> list[Path]:
    return sorted((run / "checkpoint").glob("*.safetensors"))


def truncate(path: Path, fraction: float = 0.5) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * fraction)])


def flip_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) * 3 // 4] ^= 1
    path.write_bytes(content)


@contextmanager
def edited(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the content of a JSON file without its digest and save the changes, like a user who
    edits the file.
    """
    content = json.loads(path.read_text())
    content.pop("file_sha256", None)
    yield content
    path.write_text(json.dumps(content))
