"""Grids of runs, read from a TOML file (docs/sweeps.md).

Each combination of the listed values is one run.
"""

import hashlib
import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import product
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_origin

from pydantic import Field, ValidationError

from byov.cache.layout import check_name, encoder_slug, extract_command, ratio_key, run_name
from byov.errors import ByovError, SweepError
from byov.evaluate.protocols import PROTOCOLS, ProtocolChoice, ScoredSplit, segments
from byov.evaluate.readers import first_header, read_manifest, row_title
from byov.evaluate.scope import ALL, Scope, choose_scope
from byov.evaluate.tasks import TASKS, EvaluationOptions
from byov.files import read_toml
from byov.records import Record, problem
from byov.train.config import DEFAULT_METHOD, DEFAULT_RATIO, RunConfig
from byov.train.feature_store import choose_folder
from byov.train.registry import SHORT_OPTIONS, all_settings, option_name, resolve

SWEEP_FOLDER = ".sweep"  # inside the runs folder
MAX_NAME_LENGTH = 120
_first_header = cache(first_header)


@dataclass(frozen=True)
class Folders:
    """Absolute paths of the feature cache and of the runs."""

    features: Path
    runs: Path


class EvaluationChoice(Record):
    """The [evaluation] table of a grid file, which defines how its runs are scored."""

    tasks: tuple[str, ...] = Field(default=(ALL,), min_length=1)
    split: ScoredSplit = "test"
    protocol: ProtocolChoice = "all"
    untrained: bool = True  # whether to also score the model at initialization


class GridFile(Record, extra="allow"):
    """Contents of a grid file. Extra keys are settings shared by all of its runs."""

    name: str = ""
    runs: list[dict[str, Any]] = Field(default=[{}], min_length=1)
    evaluation: EvaluationChoice = EvaluationChoice()


@dataclass(frozen=True)
class GridBlock:
    """List of values for each setting; every combination is a run."""

    values: Mapping[str, list[Any]]
    unnamed: Mapping[str, Any] = field(default_factory=dict)  # settings omitted from run names


@dataclass(frozen=True)
class RunGrid:
    """A parsed grid file."""

    source: str  # file name, for error messages
    name: str
    blocks: tuple[GridBlock, ...]
    evaluation: EvaluationChoice


@dataclass(frozen=True)
class PlannedRun:
    """A run of a grid: its data, its settings, and how to score it."""

    name: str
    dataset: str
    encoder_folder: str
    ratio: float
    config: RunConfig
    encoder: str
    scope: Scope
    untrained: bool  # whether to also score the model at initialization
    title: str = ""  # row name in tables
    missing: str = ""  # command that extracts missing features; "" if none are missing


def read_grid(path: Path) -> RunGrid:
    """Read a grid file; raise SweepError if it cannot be read or has unknown keys."""
    try:
        contents = read_toml(path)
    except FileNotFoundError:
        raise SweepError(
            f"{path}: no such file. Pass paper, benchmark or a TOML file (docs/sweeps.md)."
        ) from None
    except (OSError, ValueError) as error:
        advice = (
            ' Text needs quotes: dataset = "demo".'
            if isinstance(error, tomllib.TOMLDecodeError)
            else ""
        )
        raise SweepError(f"{path}: not a readable TOML file ({error}).{advice}") from None
    if not contents:
        raise SweepError(
            f"{path} is empty. Give at least one setting, for example seed = [0, 1, 2]."
        )
    return parse_grid(contents, str(path))


def parse_grid(raw: Mapping[str, Any], source: str) -> RunGrid:
    """Parse the contents of a grid file; `source` is the file name for error messages."""
    try:
        # Strict mode accepts JSON arrays as tuples.
        file = GridFile.model_validate_json(json.dumps(raw, default=str))
        common = _alternatives(file.model_extra or {})
        single = {
            key: values[0] for key, values in common.items() if file.name and len(values) == 1
        }
        blocks = tuple(GridBlock(common | _alternatives(block), single) for block in file.runs)
        return RunGrid(
            source, check_name(file.name, "name") if file.name else "", blocks, file.evaluation
        )
    except (ByovError, ValidationError) as error:
        reason = problem(error) if isinstance(error, ValidationError) else error
        raise SweepError(f"{source}: {reason}") from None


def _alternatives(settings: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Return the list of values for each setting.

    For settings that are pairs, a list of two numbers is one value.
    """
    types = {name: field.annotation for name, field in all_settings().items()}
    long_names = {short: name for name, short in SHORT_OPTIONS.items()}
    alternatives = {}
    for key, value in settings.items():
        name = long_names.get(key, key.replace("-", "_"))
        is_pair = (
            get_origin(types.get(name)) is tuple
            and isinstance(value, list)
            and not any(isinstance(item, list) for item in value)
        )
        values = value if isinstance(value, list) and not is_pair else [value]
        if not values:
            raise SweepError(f"{name} is an empty list; give at least one value")
        if NoneType in get_args(types.get(name)):
            values = [None if item == "none" else item for item in values]
        alternatives[name] = [tuple(item) if isinstance(item, list) else item for item in values]
    return alternatives


def plan_runs(
    grids: Sequence[RunGrid], features_dir: Path, *, allow_missing: bool = False
) -> list[PlannedRun]:
    """Return the distinct runs of all grids. A run that occurs in several grids gets the scores
    that any of them needs.

    Raises SweepError if settings are invalid or, unless `allow_missing` is set, if features are
    missing.
    """
    _first_header.cache_clear()
    _scope.cache_clear()
    runs: dict[str, PlannedRun] = {}
    for grid in grids:
        try:
            planned = [
                _planned(
                    grid,
                    block,
                    dict(zip(block.values, combination, strict=True)),
                    features_dir,
                    allow_missing,
                )
                for block in grid.blocks
                for combination in product(*block.values.values())
            ]
        except ByovError as error:
            raise SweepError(f"{grid.source}: {error}") from None
        for run in _titled(planned):
            other = runs.setdefault(run.name, run)
            if (other.config, other.ratio) != (run.config, run.ratio):
                raise SweepError(
                    f"{grid.source}: two runs are called {run.name}. Rename the grid, or omit its "
                    "name."
                )
            runs[run.name] = replace(
                other,
                scope=joint_scope([other.scope, run.scope]),
                untrained=other.untrained or run.untrained,
            )
    return list(runs.values())


def joint_scope(scopes: Sequence[Scope]) -> Scope:
    """Merge scopes into one with the union of their tasks and protocols."""
    if len({scope.split for scope in scopes}) > 1:
        raise SweepError("all grids of a sweep must score the same split of a dataset")
    return replace(
        scopes[0],
        tasks=tuple(task for task in TASKS if any(task in scope.tasks for scope in scopes)),
        protocols=tuple(
            name for name in PROTOCOLS if any(name in scope.protocols for scope in scopes)
        ),
    )


def _planned(
    grid: RunGrid,
    block: GridBlock,
    values: Mapping[str, Any],
    features_dir: Path,
    allow_missing: bool,
) -> PlannedRun:
    for key in ("dataset", "encoder", "method", "title"):
        if not isinstance(values.get(key, ""), str):
            raise SweepError(f"{key} is {values[key]!r}; it must be a string")
    ratio = values.get("ratio", DEFAULT_RATIO)
    missing = ""
    header = None
    if type(ratio) not in (int, float) or not 0 < ratio <= 1:
        raise SweepError(
            f"ratio is {ratio!r}; it must be a fraction of the tokens, above 0 and at most 1"
        )
    try:
        folder = choose_folder(features_dir, values.get("dataset"), values.get("encoder"))
        header = _first_header(
            folder, f"extract them with byov-extract --dataset {folder.parent.name}"
        )
    except ByovError:
        if not allow_missing:
            raise
        folder = features_dir / values["dataset"] / encoder_slug(values["encoder"])
    dataset = folder.parent.name
    encoder = header.provenance.encoder if header else values["encoder"]
    scope = Scope(grid.evaluation.split, PROTOCOLS, tuple(TASKS), EvaluationOptions())
    if header and ratio_key(ratio) in header.ratios:
        scope = _scope(grid.evaluation, features_dir, dataset)
    elif header and not allow_missing:
        ratios = ", ".join(sorted(header.ratios, key=float))
        raise SweepError(
            f"{folder}: no STM ratio {ratio_key(ratio)}, only {ratios}. Add it with "
            f"{extract_command(dataset, encoder, ratio_key(ratio))}."
        )
    else:
        missing = extract_command(dataset, encoder, ratio_key(ratio) if header else None)
    other_keys = ("dataset", "encoder", "ratio", "method", "title")
    given = {key: value for key, value in values.items() if key not in other_keys}
    config = resolve(values.get("method", DEFAULT_METHOD), dataset, given)
    title = values.get("title", "")
    for name, value in {"ratio": ratio_key(ratio), **config.flat()}.items():
        title = title.replace(f"{{{name}}}", _value_text(value))
    return PlannedRun(
        name=_run_name(grid, block, config, folder, ratio, has_encoder="encoder" in values),
        dataset=dataset,
        encoder_folder=folder.name,
        ratio=float(ratio),
        config=config,
        encoder=encoder,
        scope=scope,
        untrained=grid.evaluation.untrained,
        title=title,
        missing=missing,
    )


@cache
def _scope(choice: EvaluationChoice, features_dir: Path, dataset: str) -> Scope:
    manifest = read_manifest(features_dir, dataset)
    segments(manifest, choice.split)  # raises if the split has no videos
    return choose_scope(manifest, choice.tasks, split=choice.split, protocol=choice.protocol)


def _run_name(
    grid: RunGrid,
    block: GridBlock,
    config: RunConfig,
    folder: Path,
    ratio: float,
    *,
    has_encoder: bool,
) -> str:
    """Return the run name, DATASET-LABEL[-ENCODER]-rRATIO[-NAME][-SETTINGS]-sSEED.

    SETTINGS lists the settings that differ from the defaults of the method, recipe and dataset. If
    the name is too long, a digest replaces the last settings.
    """
    dataset = folder.parent.name
    settings = config.flat()
    # Settings that are part of the label.
    label: dict[str, Any] = {
        name: settings[name] for name in ("recipe", "size", "tcn") if name in settings
    }
    usual = config.method.defaults(dataset, label) | label | dict(block.unnamed)
    different = [
        _setting_text(name, value, "-")
        for name, value in settings.items()
        if name not in ("seed", "method") and value != usual[name]
    ]
    head = [
        dataset,
        config.method.label,
        *([folder.name] if has_encoder else []),
        f"r{ratio_key(ratio)}",
    ]
    words = [grid.name, *different] if grid.name else different
    tail = [f"s{config.seed}"]
    if len("-".join((*head, *words, *tail))) > MAX_NAME_LENGTH:
        encoded = json.dumps(settings, sort_keys=True).encode()
        tail.insert(0, hashlib.sha256(encoded).hexdigest()[:8])
        while words and len("-".join((*head, *words, *tail))) > MAX_NAME_LENGTH:
            words.pop()
    return run_name("-".join((*head, *words, *tail)))


def _titled(runs: Sequence[PlannedRun]) -> list[PlannedRun]:
    """Fill in missing titles with the settings that vary between runs of the same method."""
    several_ratios = len({run.ratio for run in runs}) > 1
    values: dict[tuple[str, str, str], set[Any]] = {}
    for run in runs:
        for name, value in run.config.flat().items():
            values.setdefault((run.dataset, run.config.title, name), set()).add(value)
    titled = []
    for run in runs:
        words = [row_title(run.config.title, run.encoder)]
        words += [f"STM {ratio_key(run.ratio)}"] if several_ratios else []
        for name, value in run.config.flat().items():
            if name != "seed" and len(values[run.dataset, run.config.title, name]) > 1:
                words.append(_setting_text(name, value, " "))
        titled.append(replace(run, title=run.title or ", ".join(words)))
    return titled


def _setting_text(name: str, value: Any, separator: str) -> str:
    """Format a setting as in "decoder-depth2" and "no-causal", or "decoder depth 2" and "no
    causal".
    """
    shown = option_name(name).replace("-", separator)
    if isinstance(value, bool):
        return shown if value else f"no{separator}{shown}"
    return shown + separator.strip("-") + _value_text(value)


def _value_text(value: Any) -> str:
    if value is None:
        return "none"
    return ",".join(map(_value_text, value)) if isinstance(value, tuple) else str(value)
