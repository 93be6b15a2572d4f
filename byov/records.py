"""Records: what comes from files and from the command line, checked where it comes in."""

import re
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from byov.text import pluralize

_SHOULD = re.compile(r"^\w+ should ")  # "Input should be ...", "Tuple should have ..."
_LIMITS = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below", "multiple_of": "a multiple of"}


class Record(BaseModel):
    """Fields of just these names and types; nothing is converted, and no number is infinite or NaN."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False)


def problem(error: ValidationError) -> str:
    """The first thing that is wrong with a record, in one line.

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
    where, said = ".".join((*parents, name)), first["msg"]
    within = f" in {'.'.join(parents)}" if parents else ""
    if first["type"] == "missing" and isinstance(first["loc"][-1], int):  # a tuple that ends too early
        least = pluralize(int(name) + 1, "item")
        return f"{'.'.join(parents)} is {_short(first['input'])}; it must have at least {least}"
    if first["type"] == "missing":
        return f"no {name!r}{within}"
    if first["type"] == "extra_forbidden":
        return f"{name!r}{within} is not known"
    if first["type"] == "value_error":  # of a check of ours
        return said.removeprefix("Value error, ")
    limits = [f"{_LIMITS[name]} {_plain(limit):,}" for name, limit in first.get("ctx", {}).items() if name in _LIMITS]
    expected = f"be {limits[0]}" if limits else _SHOULD.sub("", said).replace(" after validation", "")
    return f"{where} is {_short(first['input'])}; it must {expected}"


def _plain(limit: float) -> float:
    """0.0 → 0"""
    return int(limit) if limit == int(limit) else limit


def _short(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= 80 else shown[:77] + "..."


UNLABELED = -1  # in the place of a phase's index
