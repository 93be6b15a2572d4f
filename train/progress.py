"""How far a run has come, as its checkpoints carry it."""

from dataclasses import dataclass, field, fields
from sys import float_info
from typing import Any


@dataclass
class Progress:
    """How far a run has come: all that its future depends on, beside model and optimizer."""

    step: int = 0
    loss_sums: dict[str, float] = field(default_factory=dict)  # over the steps of the running epoch
    records: list[dict[str, Any]] = field(default_factory=list)
    best: float | None = None
    best_metrics: dict[str, float] = field(default_factory=dict)


def read_progress(state: dict[str, Any], total_steps: int) -> Progress:
    """Progress as a checkpoint holds it; raises ValueError for what it cannot be."""
    if state.keys() != {field.name for field in fields(Progress)}:
        raise ValueError(f"it holds {', '.join(state)}")
    progress = Progress(**state)
    right = {
        "step": type(progress.step) is int and 0 < progress.step <= total_steps,
        "loss_sums": _all_numbers(progress.loss_sums),
        "records": isinstance(progress.records, list) and all(_is_record(record) for record in progress.records),
        "best": progress.best is None or _is_number(progress.best),
        "best_metrics": _all_numbers(progress.best_metrics),
    }
    wrong = [name for name, holds in right.items() if not holds]
    if wrong or not progress.records:
        raise ValueError(f"its {', '.join(wrong) or 'records'} cannot be")
    return progress


def _is_record(value: object) -> bool:
    return _all_numbers(value) and isinstance(value, dict) and {"epoch", "step"} <= value.keys()


def _all_numbers(value: object) -> bool:
    return isinstance(value, dict) and all(_is_number(number) for number in value.values())


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) <= float_info.max
