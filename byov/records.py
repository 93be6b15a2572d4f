"""Validated records, used for everything that is read from files or the command line."""

import re
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from byov.text import pluralize

UNLABELED = -1  # phase index of unlabeled frames
# Dataclasses read from files: exact types, finite numbers; fields added by a later version are ignored.
READ_FROM_FILE = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False)

_SHOULD = re.compile(r"^\w+ should ")  # "Input should be ...", "Tuple should have ..."
_LIMITS = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below", "multiple_of": "a multiple of"}


class Record(BaseModel):
    """Immutable record with exactly the declared fields and types; numbers must be finite."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False)


def problem(error: ValidationError) -> str:
    """Describe the first problem of a validation error in one line.

    >>> class Video(Record):
    ...     fps: float
    >>> try:
    ...     Video.model_validate({"fps": "many"})
    ... except ValidationError as error:
    ...     problem(error)
    "fps is 'many'; it must be a valid number"
    """
    first = error.errors(include_url=False)[0]
    *parents, name = map(str, first["loc"] or ("it",))
    where, message = ".".join((*parents, name)), first["msg"]
    parent = f" in {'.'.join(parents)}" if parents else ""
    if first["type"] == "missing" and isinstance(first["loc"][-1], int):  # a tuple that is too short
        least = pluralize(int(name) + 1, "item")
        return f"{'.'.join(parents)} is {_short(first['input'])}; it must have at least {least}"
    if first["type"] == "missing":
        return f"no {name!r}{parent}"
    if first["type"] == "extra_forbidden":
        return f"{name!r}{parent} is not known"
    if first["type"] == "value_error":  # raised by our own validators
        return message.removeprefix("Value error, ")
    limits = [f"{_LIMITS[name]} {_plain(limit):,}" for name, limit in first.get("ctx", {}).items() if name in _LIMITS]
    expected = f"be {limits[0]}" if limits else _SHOULD.sub("", message).replace(" after validation", "")
    return f"{where} is {_short(first['input'])}; it must {expected}"


def _plain(limit: float) -> float:
    """Convert integral limits to int: 0.0 → 0."""
    return int(limit) if limit == int(limit) else limit


def _short(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= 80 else shown[:77] + "..."
