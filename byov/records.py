"""Records: what comes from files and from the command line, checked where it comes in."""

from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError


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
    "fps is 'many'; it should be a valid number"
    """
    first = error.errors(include_url=False, include_context=False)[0]
    where = ".".join(map(str, first["loc"]))
    if first["type"] == "missing":
        return f"no {where}"
    if first["type"] == "extra_forbidden":
        return f"{where!r} is not known"
    said = first["msg"].removeprefix("Value error, ")
    if said.startswith("Input should be "):
        return f"{where or 'it'} is {_short(first['input'])}; it {said.removeprefix('Input ')}"
    return f"{where}: {said}" if where and first["type"] != "value_error" else said


def _short(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= 80 else shown[:77] + "..."
