"""--config FILE, of every command: options from a TOML file, each by its name; the command line goes before it."""

import json
import tomllib
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from byov.errors import ByovError

OPTION = "--config"


class OptionFileMistake(ByovError):
    """A file of options that cannot be used."""


def expand(arguments: Sequence[str], options: Iterable[Any]) -> list[str]:
    """The arguments with those of the file in front, in the place of --config FILE."""
    rest, files = _without_option(arguments)
    if not files:
        return rest
    by_name = {_plain(name): option for option in options for name in option.opts if name.startswith("--")}
    given = {word.partition("=")[0] for word in rest if word.startswith("-")}
    front = []
    for path in files:
        for key, value in _read(path).items():
            option = by_name.get(_plain(key))
            if option is None:
                near = get_close_matches(_plain(key), by_name, 1)
                advice = f"did you mean {near[0]}?" if near else "see --help for the options there are"
                raise OptionFileMistake(f"{path}: no option {key!r} of this command; {advice}")
            if not given & {*option.opts, *option.secondary_opts}:
                front += _words(option, key, value, path)
    return front + rest


def _without_option(arguments: Sequence[str]) -> tuple[list[str], list[Path]]:
    rest: list[str] = []
    files: list[Path] = []
    words = iter(arguments)
    for word in words:
        name, equals, value = word.partition("=")
        if word == "--":
            return [*rest, word, *words], files
        if name != OPTION:
            rest.append(word)
            continue
        found = value if equals else next(words, None)
        if not found:
            raise OptionFileMistake(f"{OPTION} needs a file: {OPTION} FILE.toml")
        files.append(Path(found))
    return rest, files


def _read(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            return tomllib.load(file)
    except FileNotFoundError:
        raise OptionFileMistake(f"{OPTION} {path}: no such file") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise OptionFileMistake(f"{OPTION} {path}: not a readable TOML file ({error})") from None


def _words(option: Any, key: str, value: Any, path: Path) -> list[str]:
    name = next(name for name in option.opts if name.startswith("--"))
    if isinstance(value, bool) and getattr(option, "is_flag", False):
        return [name] if value else list(option.secondary_opts[:1])
    if isinstance(value, list) and getattr(option, "multiple", False):
        return [word for one in value for word in (name, _text(one, key, path))]
    if isinstance(value, list):
        return [name, ",".join(_text(one, key, path) for one in value)]
    return [name, _text(value, key, path)]


def _text(value: Any, key: str, path: Path) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise OptionFileMistake(f"{path}: {key} is {value!r}; expected a number, a text, or a list of them")
    return str(value)


def _plain(name: str) -> str:
    """batch_size, --batch-size → batch-size"""
    return name.lstrip("-").replace("_", "-")


def to_toml(values: dict[str, Any]) -> str:
    """Plain values as TOML; what is None is left out, since an option that is left out says the same."""
    return "".join(f"{key} = {_literal(value)}\n" for key, value in values.items() if value is not None)


def _literal(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)  # which TOML reads alike
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_literal, value)) + "]"
    return repr(value)
