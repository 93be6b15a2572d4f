"""Files of runs and caches, read and changed."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from byov.cache.digests import unsealed


def records(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def checkpoints(run: Path) -> list[Path]:
    return sorted((run / "checkpoint").glob("*.safetensors"))


def truncate(path: Path, share: float = 0.5) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])


@contextmanager
def edited(path: Path) -> Iterator[dict[str, Any]]:
    """What a JSON file says, to be changed; it is left without its digest, as by somebody who edits it."""
    said = unsealed(json.loads(path.read_text()))
    yield said
    path.write_text(json.dumps(said))
