"""Registry of training methods, and functions that resolve the settings of a run.

Other packages add methods through the "byov.methods" entry-point group. Methods import PyTorch, so
the built-in ones are loaded on first use, too.
"""

import json
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic.fields import FieldInfo

from byov.cache.runs import CONFIG_NAME, RunRecord
from byov.errors import SettingsError, TrainError
from byov.plugins import PROBLEMS, Registry
from byov.records import problem
from byov.train.config import PARTS, MethodConfig, RunConfig, checked

# Settings whose command-line option has a different name.
SHORT_OPTIONS = {"self_view": "self", "cross_view": "cross", "progress_labels": "progress"}


def _check(name: str, method: Any) -> None:
    config_class = getattr(method, "config_class", None)
    if (
        not isinstance(config_class, type)
        or not issubclass(config_class, MethodConfig)
        or config_class.model_fields["name"].default != name
    ):
        raise ValueError(f"not a method whose config_class declares the name {name!r}")


# Values are subclasses of `byov.train.methods.base.Method`.
METHODS = Registry[Any](
    "byov.methods",
    {
        "byov": "byov.train.methods.byov:Byov",
        "timeline": "byov.train.methods.timeline:Timeline",
        "tcn": "byov.train.methods.tcn:Tcn",
        "actor-observer": "byov.train.methods.actor_observer:ActorObserver",
        "carl": "byov.train.methods.carl:Carl",
        "tcc": "byov.train.methods.tcc:Tcc",
        "gta": "byov.train.methods.gta:Gta",
        "ae2-alignment": "byov.train.methods.ae2_alignment:Ae2Alignment",
    },
    _check,
)


def config_class(method: str) -> type[MethodConfig]:
    """Return the class of a method's config; raise SettingsError if there is no such method."""
    if method not in METHODS:
        skipped = "".join(f"; {line}" for line in PROBLEMS)
        raise SettingsError(
            f"unknown method {method!r}; choose one of {', '.join(METHODS)}{skipped}"
        )
    cls: type[MethodConfig] = METHODS[method].config_class
    return cls


def resolve(method: str, dataset: str, given: Mapping[str, Any]) -> RunConfig:
    """Combine the given settings with the defaults of the method, the dataset and the recipe.

    Raises SettingsError if a setting is unknown or invalid.
    """
    check_names(method, given)
    settings = config_class(method).defaults(dataset, given) | dict(given)
    parts = {
        part: checked(cls, **{name: settings[name] for name in cls.model_fields.keys() - {"name"}})
        for part, cls in (PARTS | {"method": config_class(method)}).items()
    }
    return checked(RunConfig, **parts, seed=settings["seed"])


def parse_config(path: Path, stored: Any) -> RunConfig:
    """Parse the settings in a config.json file; raise TrainError with its path if they are
    invalid.
    """
    if not isinstance(stored, dict) or not isinstance(stored.get("method"), dict):
        raise TrainError(f"{path} has no method settings")
    try:
        classes = PARTS | {"method": config_class(str(stored["method"].get("name")))}
        parts = {
            part: cls.model_validate_json(json.dumps(stored[part]))  # JSON arrays become tuples
            for part, cls in classes.items()
            if part in stored
        }
        return RunConfig(**(stored | parts))
    except SettingsError as error:
        raise TrainError(f"{path}: {error}") from None
    except ValidationError as error:
        raise TrainError(f"{path}: {problem(error)}") from None


def run_config(run: RunRecord) -> RunConfig:
    """Return the settings that a run was started with."""
    return parse_config(run.folder / CONFIG_NAME, run.training["settings"])


def check_names(method: str, given: Mapping[str, Any]) -> None:
    """Raise SettingsError if the method does not have one of the given settings, or if two of them
    conflict.
    """
    if given.get("steps") is not None and "epochs" in given:
        raise SettingsError(
            "--steps and --epochs both set the length of training; pass only one of them"
        )
    own = config_class(method).settings()
    for name in [name for name in given if name not in own]:
        owners = methods_with(name)
        if owners:
            raise SettingsError(
                f"--{option_name(name)} is an option of {', '.join(owners)}; the method is {method}"
            )
        names = get_close_matches(name, all_settings(), 1)
        similar = "".join(f" Did you mean {match!r}?" for match in names)
        raise SettingsError(
            f"unknown setting {name!r}.{similar} byov-train --help lists the settings."
        )


def all_settings() -> dict[str, FieldInfo]:
    """Return a dict mapping the names of the settings of all methods to their fields."""
    fields = dict[str, FieldInfo]()
    for method in METHODS:
        fields |= config_class(method).settings()
    return fields


def methods_with(setting: str) -> list[str]:
    """Return the names of the methods that have the given setting."""
    return [method for method in METHODS if setting in config_class(method).settings()]


def option_name(setting: str) -> str:
    """Return a setting's option name without leading dashes: "batch_size" -> "batch-size",
    "self_view" -> "self".
    """
    return SHORT_OPTIONS.get(setting, setting).replace("_", "-")


def differences(ours: RunConfig, theirs: RunConfig) -> list[str]:
    """List differing settings, except those derived from `steps`, as "NAME THEIRS, not OURS"."""
    expected = ours.flat()
    actual = theirs.flat()
    same_steps = actual["steps"] is not None and actual["steps"] == expected["steps"]
    derived = {"epochs", "warmup"} if same_steps else set()
    return [
        f"{name} {value!r}, not {expected[name]!r}"
        for name, value in actual.items()
        if name not in derived and value != expected[name]
    ]
