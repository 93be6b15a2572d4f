"""Commands as their users expect them: -h, --config, completion, and a word too many answered by what was meant."""

import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from byov.cli.option_file import expand
from byov.errors import ByovError

# Of click, or of the click that newer versions of typer bring along.
UsageError: type[Any] = typer.BadParameter.__mro__[1]
HELP_NAMES = {"help_option_names": ["-h", "--help"]}
EPILOG = "--config FILE: options from a TOML file, by name; what is given here goes before it."
SWITCH_WORDS = ("true", "false", "yes", "no", "on", "off", "1", "0")


class UsageMistake(ByovError):
    """Options that do not go together, or values that an option does not take."""


class HelpfulCommand(TyperCommand):
    def __init__(self, *arguments: Any, **settings: Any) -> None:
        settings["context_settings"] = HELP_NAMES | (settings.get("context_settings") or {})
        settings["epilog"] = settings.get("epilog") or EPILOG
        super().__init__(*arguments, **settings)

    def get_params(self, ctx: Any) -> list[Any]:
        return _switches_without_value(super().get_params(ctx))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """With the options of --config, and an error of ours for what is left over."""
        if ctx.resilient_parsing:  # a shell that completes
            return super().parse_args(ctx, args)
        args = expand(args, self.params)
        ctx.allow_extra_args = True
        with _in_one_line(args, _typed(ctx)):
            left = super().parse_args(ctx, list(args))
        if ctx.args:
            raise UsageMistake(_what_was_meant(ctx.args[0], args, self.params, _typed(ctx)))
        return left


class HelpfulGroup(TyperGroup):
    def __init__(self, *arguments: Any, **settings: Any) -> None:
        settings["context_settings"] = HELP_NAMES | (settings.get("context_settings") or {})
        super().__init__(*arguments, **settings)

    def get_params(self, ctx: Any) -> list[Any]:
        return _switches_without_value(super().get_params(ctx))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        with _in_one_line(args, _typed(ctx)):
            return super().parse_args(ctx, list(args))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        with _in_one_line(args, _typed(ctx)):
            return super().resolve_command(ctx, args)


class App(typer.Typer):
    def command(self, name: str | None = None, **settings: Any) -> Callable[..., Any]:
        return super().command(name, **({"cls": HelpfulCommand} | settings))


@contextmanager
def _in_one_line(args: Sequence[str], command: str) -> Iterator[None]:
    """What the command-line library answers by a box of five lines."""
    try:
        yield
    except UsageError as error:
        shown = f"{command} -h shows the options"
        option = getattr(error, "param", None)
        value = _value_of(getattr(option, "opts", ()), args)
        if value is None:
            raise UsageMistake(f"{error.format_message().rstrip('.')}; {shown}") from None
        name, text = value
        said = error.message.removeprefix("Value error, ").rstrip(".")
        raise UsageMistake(f"{name} {text}: {said}; {shown}") from None


def _value_of(names: Collection[str], args: Sequence[str]) -> tuple[str, str] | None:
    """An option as it was typed, and its value."""
    for word, following in zip(args, [*args[1:], ""], strict=False):
        name, equals, value = word.partition("=")
        if name in names:
            return name, value if equals else following
    return None


def _switches_without_value(options: list[Any]) -> list[Any]:
    """A switch takes no value, and its help shows none."""
    for option in options:
        if getattr(option, "is_flag", False) and option.metavar is None:
            option.metavar = " "
    return options


def _what_was_meant(word: str, args: Sequence[str], options: Sequence[Any], command: str) -> str:
    names = {option.name: option.opts[0] for option in options if option.opts and option.opts[0].startswith("--")}
    before = args[args.index(word) - 1] if word in args and args.index(word) else ""
    switches = {name for option in options if getattr(option, "is_flag", False) for name in option.opts}
    if before in switches and word.lower() in SWITCH_WORDS:
        return f"{before} {word}: {before} is a switch and takes no value; leave {word!r} out"
    meant = next((f"{option.opts[0]} {word}" for option in options if word in choices(option)), None)
    meant = meant or _by_place(word, names, args)
    if meant is None and "dataset" in names and not word.startswith("-") and "/" not in word:
        meant = f"--dataset {word}"
    if meant is None:
        return f"{word!r} is a word too many; {command} -h shows the options"
    return f"{word!r} is a word too many; did you mean {command} {meant}?"


def _by_place(word: str, names: Collection[str], args: Sequence[str]) -> str | None:
    """What a word may be by the file or folder that it names: a run, videos, a list of them, embeddings."""
    path = Path(word)
    if "run" in names and any((Path(folder) / word / "config.json").is_file() for folder in _runs(args)):
        return f"--run {word}"
    of_kind = {
        "folder": path.is_dir(),
        "manifest": path.suffix.lower() == ".csv",
        "embeddings": path.suffix.lower() in (".npz", ".h5"),
    }
    return next((f"--{name} {word}" for name, fits in of_kind.items() if fits and name in names), None)


def _typed(ctx: Any) -> str:
    """ "byov-cache ls" """
    return " ".join([Path(sys.argv[0]).name, *([ctx.info_name] if ctx.parent else [])])


def choices(option: Any) -> Sequence[str]:
    """What an option can be, where that is a list."""
    kind = getattr(option, "type_descriptor", None) or getattr(option, "type", None)  # by typer's version
    return [str(getattr(choice, "value", choice)) for choice in getattr(kind, "choices", None) or ()]


def _runs(args: Sequence[str]) -> list[str]:
    """Where runs may lie."""
    return [args[index + 1] for index, word in enumerate(args[:-1]) if word == "--runs-dir"] or ["runs"]
