"""Validated records for data that is read from files or the command line."""

import re
from typing import Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, ValidationError

from byov.errors import ByovError

View = Literal["ego", "exo"]
Split = Literal["train", "val", "test"]
VIEWS: tuple[View, ...] = get_args(View)
SPLITS: tuple[Split, ...] = get_args(Split)
UNLABELED = -1  # phase index of unlabeled frames
# Dataclasses read from files require exact types and finite numbers, and ignore fields added by
# later versions.
READ_FROM_FILE = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False)

# Boilerplate in pydantic messages.
_WRAPPING = re.compile(r"^\w+ should | after validation|, unable to parse .*")
_LIMITS = {
    "ge": "at least",
    "gt": "above",
    "le": "at most",
    "lt": "below",
    "multiple_of": "a multiple of",
}


class Record(BaseModel):
    """Immutable record with exactly the declared fields and types; numbers must be finite."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False)


def check_choice(name: str, value: Any, choices: Any) -> None:
    """Raise ByovError unless `value` is one of the values of the Literal type `choices`."""
    if value not in get_args(choices):
        raise ByovError(f"{name} is {value!r}. Choose from {', '.join(get_args(choices))}.")


def problem(error: ValidationError) -> str:
    """Describe the first problem in a validation error on one line.

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
    parent = ".".join(parents)
    value = repr(first["input"])
    shown = value if len(value) <= 80 else value[:77] + "..."
    if first["type"] == "missing" and isinstance(first["loc"][-1], int):  # the tuple is too short
        return f"{parent} is {shown}; it must have at least {int(name) + 1} items"
    if first["type"] in ("missing", "extra_forbidden"):
        place = f"{name!r} in {parent}" if parent else repr(name)
        return f"no {place}" if first["type"] == "missing" else f"{place} is unknown"
    if first["type"] in ("value_error", "json_invalid"):  # the former comes from our own validators
        return first["msg"].removeprefix("Value error, ")
    limits = [
        f"be {_LIMITS[key]} {limit:,.12g}"
        for key, limit in first.get("ctx", {}).items()
        if key in _LIMITS
    ]
    expected = limits[0] if limits else _WRAPPING.sub("", first["msg"])
    return f"{'.'.join((*parents, name))} is {shown}; it must {expected}"
