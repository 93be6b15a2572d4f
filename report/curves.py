"""How the training went, from a run's metrics.jsonl."""

import json
from collections.abc import Sequence
from pathlib import Path
from sys import float_info
from typing import Any

from byov.cache.runs import METRICS_NAME, RunRecord, check_file
from byov.errors import CacheError
from byov.report.content import Curve, Curves, Unavailable

VALIDATION = ("retrieval", "trimmed", "both", "tau")
NEED_LABELS = ("retrieval", "trimmed", "both")
NO_CURVE = ("epoch", "step", "lr")


def read_curves(run: RunRecord) -> Curves | Unavailable:
    try:
        records = _read_records(run.folder / METRICS_NAME)
        check_file(run.folder / METRICS_NAME, run.training)
    except FileNotFoundError:
        return Unavailable(f"the run has no {METRICS_NAME}")
    except (CacheError, OSError, ValueError, RecursionError) as error:
        return Unavailable(f"{METRICS_NAME} is damaged ({_reason(error)})")
    names = dict.fromkeys(name for record in records for name in record)
    losses = [name for name in names if name not in (*NO_CURVE, *VALIDATION) and not name.startswith("map@")]
    return Curves(
        losses=tuple(_curve(records, name) for name in losses),
        validation=tuple(_curve(records, name) for name in VALIDATION if name in names),
        kept_epoch=_kept_epoch(records, run),
    )


def _read_records(path: Path) -> list[dict[str, Any]]:
    records = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        record = json.loads(line)
        if not isinstance(record, dict) or type(record.get("epoch")) is not int:
            raise ValueError(f"line {number} is not of an epoch")
        if not all(type(value) in (int, float) and abs(value) <= float_info.max for value in record.values()):
            raise ValueError(f"line {number} holds what is no number")
        records.append(record)
    if not records:
        raise ValueError("it is empty")
    return records


def _curve(records: Sequence[dict[str, Any]], name: str) -> Curve:
    there = [record for record in records if name in record]
    return Curve(name, tuple(record["epoch"] for record in there), tuple(float(record[name]) for record in there))


def _kept_epoch(records: Sequence[dict[str, Any]], run: RunRecord) -> int | None:
    """The first epoch with the best of the metric that chose the model; the untrained model is no candidate."""
    metric = str(run.settings.get("select"))
    trained = [record for record in records if record["epoch"] > 0]
    if metric in NEED_LABELS and not any(metric in record for record in trained):
        metric = "tau"  # as byov-train does without labels
    candidates = [record for record in trained if metric in VALIDATION and metric in record]
    best = max(candidates, key=lambda record: record[metric], default=None)  # of equals the first
    return None if best is None else int(best["epoch"])


def _reason(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError | UnicodeDecodeError | RecursionError | OSError):
        return "not JSON lines" if not isinstance(error, OSError) else error.strerror or "not readable"
    return str(error)
