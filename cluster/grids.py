"""A grid of runs, from a TOML file: every combination of its lists, each a run with a name of its own.

    dataset = "demo"
    ratio = [0.1, 0.3]
    seed = [0, 1, 2]

    [[runs]]                        # what only some of the runs have; there may be any number of these
    method = "tcc"
    lr = [1e-4, 1e-3]

Keys are the settings of byov-train and its dataset, encoder, ratio and method.
"""

import hashlib
import json
import logging
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import cache
from itertools import product
from math import prod
from pathlib import Path
from types import NoneType
from typing import Any, Literal, get_args, get_origin

from pydantic import ValidationError, field_validator

from byov.cache.features import Header
from byov.cache.layout import check_name, encoder_folders, encoder_slug, ratio_key
from byov.errors import ByovError, CacheError, SettingsError, SweepError
from byov.evaluate.embeddings import first_header, row_title
from byov.evaluate.protocols import ScoredSplit
from byov.evaluate.tasks import TASKS
from byov.records import Record, problem
from byov.train.feature_store import choose_folder
from byov.train.methods import METHODS
from byov.train.settings import (
    DEFAULT_METHOD,
    DEFAULT_RATIO,
    SHORT_OPTIONS,
    TrainSettings,
    option_name,
    resolve_settings,
)

BLOCKS, EVALUATION, NAME, TITLE = "runs", "evaluation", "name", "title"
DATA = ("dataset", "encoder", "ratio", "method")
MOST_RUNS = 10_000  # more is a slip
LONGEST_NAME = 120  # letters; settings beyond it are in a digest
ALL = "all"
_LONGER = {short: name for name, short in SHORT_OPTIONS.items()}
_FIELDS = {
    name: info
    for method in METHODS.values()
    for name, info in method.settings_class.model_fields.items()
    if name != "method"
}
_PAIRS = {name for name, info in _FIELDS.items() if get_origin(info.annotation) is tuple}
_OPTIONAL = {name for name, info in _FIELDS.items() if NoneType in get_args(info.annotation)}
_IN_LABEL = ("recipe", "tcn")  # settings that a run's label says


class EvaluationChoice(Record):
    """What is scored of every run; of the file's table [evaluation]."""

    tasks: tuple[str, ...] = (ALL,)
    split: ScoredSplit = "test"
    protocol: Literal["standard", "trimmed", "both"] = "both"
    untrained: bool = True  # the model at its initialization too

    @field_validator("tasks")
    @classmethod
    def _tasks_are_known(cls, tasks: tuple[str, ...]) -> tuple[str, ...]:
        for task in tasks:
            if task not in (ALL, *TASKS):
                raise ValueError(f"no task {task!r}; there are {', '.join((ALL, *TASKS))}")
        if not tasks:
            raise ValueError("tasks is an empty list")
        return tasks


@dataclass(frozen=True)
class GridBlock:
    """Settings of which every combination is a run; a list is what a setting takes one after the other."""

    values: Mapping[str, Any]
    usual: Mapping[str, Any] = field(
        default_factory=dict
    )  # settings for which the grid's name stands in the runs' names


@dataclass(frozen=True)
class RunGrid:
    """What a file says."""

    source: str  # the file, for messages
    name: str
    blocks: tuple[GridBlock, ...]
    evaluation: EvaluationChoice


@dataclass(frozen=True)
class PlannedRun:
    """One combination: all that decides its numbers, its name, and what its row is called."""

    name: str
    dataset: str
    encoder_folder: str
    ratio: float
    settings: TrainSettings
    encoder: str
    title: str = ""  # of the file; else made of what the runs differ in


def read_grid(path: Path) -> RunGrid:
    try:
        with path.open("rb") as file:
            return parse_grid(tomllib.load(file), str(path))
    except FileNotFoundError:
        raise SweepError(f"{path}: no such file; a grid is a TOML file of settings, see docs/sweeps.md") from None
    except (OSError, ValueError, RecursionError) as error:
        raise SweepError(f"{path}: not a readable TOML file ({error})") from None


def parse_grid(raw: Mapping[str, Any], source: str) -> RunGrid:
    """raw: what a TOML file holds."""
    blocks, name = raw.get(BLOCKS, [{}]), raw.get(NAME, "")
    if not isinstance(blocks, list) or not all(isinstance(block, dict) for block in blocks):
        raise SweepError(f"{source}: {BLOCKS} are tables, each below a line [[{BLOCKS}]]")
    if not blocks:
        raise SweepError(f"{source}: {BLOCKS} is an empty list, so that there is no run")
    try:
        if not isinstance(name, str):
            raise CacheError(f"name is {name!r}; it must be a text")
        common = _settings({key: value for key, value in raw.items() if key not in (BLOCKS, EVALUATION, NAME)})
        return RunGrid(
            source,
            check_name(name, "name") if name else "",
            tuple(_block(common, _settings(block), bool(name)) for block in blocks),
            _evaluation(raw.get(EVALUATION, {})),
        )
    except ByovError as error:
        raise SweepError(f"{source}: {error}") from None


def planned_runs(grid: RunGrid, features_dir: Path) -> list[PlannedRun]:
    """Every run of the grid, once each; mistakes are told before anything is trained."""
    runs: dict[str, PlannedRun] = {}
    try:
        for block, values in _combinations(grid):
            run = _planned(grid.name, block, values, features_dir)
            other = runs.setdefault(run.name, run)
            if (other.settings, other.ratio) != (run.settings, run.ratio):
                raise SweepError(f"two runs are called {run.name}; leave the name out of the grid")
    except ByovError as error:
        raise SweepError(f"{grid.source}: {error}") from None
    return _titled(list(runs.values()))


def _evaluation(raw: Any) -> EvaluationChoice:
    if not isinstance(raw, dict):
        raise SweepError(f"{EVALUATION} is a table, below a line [{EVALUATION}]")
    try:
        return EvaluationChoice.model_validate(
            {key: tuple(value) if isinstance(value, list) else value for key, value in raw.items()}
        )
    except ValidationError as error:
        raise SweepError(f"[{EVALUATION}]: {problem(error)}") from None


def _settings(raw: Mapping[str, Any]) -> dict[str, Any]:
    """By the settings' own names; unknown ones are refused."""
    known = {*_FIELDS, *DATA, TITLE}
    settings = {}
    for key, value in raw.items():
        name = _LONGER.get(key, key.replace("-", "_"))
        if name not in known:
            near = get_close_matches(name, known, 1)
            advice = f"did you mean {near[0]}?" if near else "see byov-train --help for the settings there are"
            raise SweepError(f"no setting {key!r}; {advice}")
        settings[name] = value
    return settings


def _block(common: Mapping[str, Any], own: Mapping[str, Any], named: bool) -> GridBlock:
    """named: the grid has a name, which stands for what has one value for all blocks."""
    same = {key: _values(key, value) for key, value in common.items() if key in _FIELDS} if named else {}
    return GridBlock({**common, **own}, {key: values[0] for key, values in same.items() if len(values) == 1})


def _combinations(grid: RunGrid) -> Iterator[tuple[GridBlock, dict[str, Any]]]:
    """The values of each run, with the block that it is of."""
    blocks = [(block, {key: _values(key, value) for key, value in block.values.items()}) for block in grid.blocks]
    count = sum(prod(map(len, lists.values())) for _, lists in blocks)
    if count > MOST_RUNS:
        raise SweepError(f"{count:,} runs, and {MOST_RUNS:,} at most; leave some values out")
    for block, lists in blocks:
        for values in product(*lists.values()):
            yield block, dict(zip(lists, values, strict=True))


def _values(name: str, value: Any) -> list[Any]:
    """What a setting takes one after the other. A pair of numbers is one value where the setting is a pair."""
    is_pair = name in _PAIRS and isinstance(value, list) and not any(isinstance(one, list) for one in value)
    values = value if isinstance(value, list) and not is_pair else [value]
    if not values:
        raise SweepError(f"{name} is an empty list, so that there is no run")
    return [_value(name, one) for one in values]


def _value(name: str, value: Any) -> Any:
    if name in _PAIRS and isinstance(value, list) and all(type(one) in (int, float) for one in value):
        return tuple(value)
    if not isinstance(value, str | int | float):
        raise SweepError(f"{name} is {value!r:.80}; expected a number, a text, true, false, or a list of them")
    return None if name in _OPTIONAL and value == "none" else value


def _planned(name: str, block: GridBlock, values: Mapping[str, Any], features_dir: Path) -> PlannedRun:
    """name: of the grid."""
    dataset, encoder = (_text(values, key) for key in ("dataset", "encoder"))
    ratio, method = values.get("ratio", DEFAULT_RATIO), values.get("method", DEFAULT_METHOD)
    given = {key: value for key, value in values.items() if key not in (*DATA, TITLE)}
    resolve_settings(method, dataset or "", given)  # mistakes of settings before those of features
    folder = choose_folder(features_dir, dataset, encoder)
    header = _first_header(folder)
    _refuse_ratio(ratio, header)
    settings = resolve_settings(method, folder.parent.name, given)
    in_name = [_in_name(*item) for item in _different(settings, folder.parent.name, block.usual)]
    head = [folder.parent.name, settings.label, *([folder.name] if encoder else []), f"r{ratio_key(ratio)}"]
    return PlannedRun(
        _joined(head, [*([name] if name else []), *in_name], settings),
        folder.parent.name,
        folder.name,
        float(ratio),
        settings,
        header.provenance.encoder,
        _filled(str(values.get(TITLE, "")), {"ratio": ratio_key(ratio)} | settings.model_dump()),
    )


def _different(settings: TrainSettings, dataset: str, usual: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """The settings of a run that are not the defaults of its method, recipe and dataset, nor what is `usual`."""
    kind = type(settings)
    label = {name: getattr(settings, name) for name in _IN_LABEL if name in kind.model_fields}
    base = kind.model_construct(**(kind.presets(dataset, label) | label | dict(usual)))  # which need not go together
    return [(name, value) for name, value in settings if name != "seed" and value != getattr(base, name)]


def _text(values: Mapping[str, Any], key: str) -> str | None:
    value = values.get(key)
    if value is not None and not isinstance(value, str):
        raise SweepError(f"{key} is {value!r}; it must be a text")
    return value


@cache
def _first_header(folder: Path) -> Header:
    return first_header(folder, f"extract them with byov-extract --dataset {folder.parent.name}")


def _refuse_ratio(ratio: Any, header: Header) -> None:
    if isinstance(ratio, bool | str) or not 0 < ratio <= 1:
        raise SettingsError(f"ratio is {ratio!r}; it must be a share of the tokens, above 0 and at most 1, like 0.3")
    if ratio_key(ratio) not in header.ratios:
        there = ", ".join(sorted(header.ratios, key=float))
        raise SettingsError(
            f"{header.path.parents[1]}: no STM ratio {ratio_key(ratio)}; it has {there}. "
            f"Add it by byov-extract as before, with --ratios {ratio_key(ratio)}"
        )


def _joined(head: list[str], words: list[str], settings: TrainSettings) -> str:
    """The parts of a name; what makes it too long is in a digest of all settings."""
    seed = f"s{settings.seed}"
    whole = "-".join((*head, *words, seed))
    if len(whole) <= LONGEST_NAME:
        return check_name(whole, "run")
    digest = hashlib.sha256(json.dumps(settings.model_dump(mode="json"), sort_keys=True).encode()).hexdigest()[:8]
    while words and len("-".join((*head, *words, digest, seed))) > LONGEST_NAME:
        words = words[:-1]
    return check_name("-".join((*head, *words, digest, seed)), "run")


def _titled(runs: list[PlannedRun]) -> list[PlannedRun]:
    """Rows are called by what they are, and by the settings in which they differ from others of their kind."""
    ratios = {run.ratio for run in runs}
    varied: dict[str, dict[str, set[Any]]] = {}
    for run in runs:
        for name, value in run.settings:
            varied.setdefault(run.settings.title, {}).setdefault(name, set()).add(value)
    titled = []
    for run in runs:
        words = [f"STM {ratio_key(run.ratio)}"] if len(ratios) > 1 else []
        of_kind = varied[run.settings.title]
        words += [_in_words(*item) for item in run.settings if item[0] != "seed" and len(of_kind[item[0]]) > 1]
        made = ", ".join((row_title(run.settings.title, run.encoder), *words))
        titled.append(replace(run, title=run.title or made))
    return titled


def _in_name(name: str, value: Any) -> str:
    """("decoder_depth", 2) → "decoder-depth2", ("causal", False) → "no-causal"."""
    shown = option_name(name)
    return ("" if value else "no-") + shown if isinstance(value, bool) else shown + _shown(value)


def _in_words(name: str, value: Any) -> str:
    """("decoder_depth", 2) → "decoder depth 2", ("causal", False) → "no causal"."""
    shown = option_name(name).replace("-", " ")
    return ("" if value else "no ") + shown if isinstance(value, bool) else f"{shown} {_shown(value)}"


def _shown(value: Any) -> str:
    if value is None:
        return "none"
    return ",".join(map(_shown, value)) if isinstance(value, tuple) else str(value)


def _filled(title: str, values: Mapping[str, Any]) -> str:
    """ "latent {latent}" → "latent 64"; what is no setting stays as it is."""
    for name, value in values.items():
        title = title.replace(f"{{{name}}}", _shown(value))
    return title


LOGGER = logging.getLogger(__name__)

EXPERIMENTS = Path(__file__).parent / "experiments"
SMALL = "small"
# For a look at all tables on a few cores: what the paper's model is not.
_SHORT = {"latent": 64, "epochs": 40, "batch_size": 4, "lr": 3e-4}
SMALL_SETTINGS: dict[str, dict[str, Any]] = {
    "byov": _SHORT | {"depth": 2, "decoder_depth": 1, "heads": 4},
    "carl": _SHORT | {"epochs": 20},  # whose clips are more than twice as long
}


@dataclass(frozen=True)
class PaperChoice:
    """What of the experiments is wanted, where it is not all as the paper has it."""

    datasets: tuple[str, ...] = ()  # in the place of the paper's
    encoder: str | None = None
    seeds: int | None = None
    small: bool = False


def paper_grid(name: str, features_dir: Path, choice: PaperChoice, *, of_encoders: bool = False) -> RunGrid | None:
    """The grid of a file of experiments/; None if the cache has nothing for it.

    of_encoders: it compares encoders, so that none stands for another.
    """
    path = EXPERIMENTS / f"{name}.toml"
    grid = parse_grid(tomllib.loads(path.read_text(encoding="utf-8")), path.name)
    blocks = [changed for block in grid.blocks for changed in _blocks(block, features_dir, choice, of_encoders)]
    if not blocks:
        LOGGER.info(f"{name}: left out, since the cache has no features for it")
        return None
    return replace(grid, name=SMALL if choice.small else grid.name, blocks=tuple(blocks))


def _blocks(block: GridBlock, features_dir: Path, choice: PaperChoice, of_encoders: bool) -> Iterator[GridBlock]:
    """A block for each dataset that is there."""
    theirs = block.values["dataset"]
    for dataset in choice.datasets or ([theirs] if isinstance(theirs, str) else theirs):
        there = _encoders(features_dir, dataset)
        encoder = block.values["encoder"]
        if not of_encoders:
            encoder = choice.encoder or (_only(there, dataset, encoder) if choice.datasets and there else encoder)
        if encoder_slug(encoder) not in there:
            continue
        values = dict(block.values) | {"dataset": dataset, "encoder": encoder}
        if choice.seeds is not None:
            values["seed"] = list(range(choice.seeds))
        yield _small(values) if choice.small else GridBlock(values)


def _only(there: Sequence[str], dataset: str, usual: str) -> str:
    """The paper's encoder, or the only one that there is."""
    if encoder_slug(usual) in there:
        return usual
    if len(there) > 1:
        raise SweepError(f"which encoder's features of {dataset}? --encoder {' | '.join(there)}")
    return there[0]


def _encoders(features_dir: Path, dataset: str) -> list[str]:
    there = encoder_folders(features_dir)
    return [folder.name for folder in there if folder.parent.name == dataset]


def _small(values: Mapping[str, Any]) -> GridBlock:
    """What the experiment itself is about stays as it is."""
    settings = SMALL_SETTINGS.get(values.get("method", "byov"), _SHORT)
    return GridBlock(settings | dict(values), settings)
