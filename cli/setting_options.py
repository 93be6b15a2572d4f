"""Every setting of a training as an option: its name, type, help and default are those of train/settings.py."""

import inspect
from collections.abc import Callable
from functools import wraps
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin

import typer
from pydantic.fields import FieldInfo

from byov.cli.command import UsageMistake
from byov.train.settings import DATASETS, GROUPS, RECIPES, TrainSettings

SHORTER = {"self_view": "self", "cross_view": "cross"}  # the options' names where they are not the settings'


def with_settings(command: Callable[..., None]) -> Callable[..., None]:
    """The command with an option for each setting in the place of its parameter `given`.

    given: name → value of the settings that were given on the command line.
    """
    panels = {name: panel for panel, group in GROUPS.items() for name in group.model_fields}
    options = {
        name: _option(name, field, panels.get(name))
        for name, field in TrainSettings.model_fields.items()
        if field.description
    }

    @wraps(command)
    def run(**arguments: Any) -> None:
        given = {name: value for name in options if (value := arguments.pop(name)) is not None}
        command(**arguments, given=given)

    parameters: list[inspect.Parameter] = []
    for parameter in inspect.signature(command, eval_str=True).parameters.values():
        parameters += options.values() if parameter.name == "given" else [parameter]
    keywords = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in parameters]
    run.__signature__ = inspect.Signature(keywords)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in keywords}
    return run


def _option(name: str, field: FieldInfo, panel: str | None) -> inspect.Parameter:
    shown = SHORTER.get(name, name).replace("_", "-")
    kind, names = _plain_type(field.annotation), f"--{shown}"
    is_pair = get_origin(kind) is tuple
    if is_pair:
        kind = str  # which the parser reads
    if kind is bool:
        names = f"--{shown}/--no-{shown}"
    option = typer.Option(
        names,
        help=f"{field.description} {_defaults(name, field)}",
        rich_help_panel=panel,
        parser=_parse_pair if is_pair else None,
        metavar="LOW,HIGH" if is_pair else None,
    )
    annotation = Annotated[kind | None, option]  # type: ignore[valid-type]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _plain_type(annotation: Any) -> Any:
    """Without limits and None, which the settings check themselves."""
    if get_origin(annotation) is Annotated:
        return _plain_type(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        (kind,) = (kind for kind in get_args(annotation) if kind is not NoneType)
        return _plain_type(kind)
    return annotation


def _defaults(name: str, field: FieldInfo) -> str:
    """ "Default 0; cycle: 5." """
    others = {where: values[name] for where, values in (*RECIPES.items(), *DATASETS.items()) if name in values}
    texts = [f"Default {_text(field.default)}", *(f"{where}: {_text(value)}" for where, value in others.items())]
    return "; ".join(texts) + "."


def _text(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def _parse_pair(text: str) -> tuple[float, float]:
    try:
        low, high = (float(part) for part in text.split(","))
    except ValueError:
        raise UsageMistake(f"--crop {text}: expected LOW,HIGH, like 0.5,1.0") from None
    return low, high
