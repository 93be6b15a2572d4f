"""What a training is to be, from what was given and what is there: the only dataset in the cache, a name for the run,
and, where it goes on, what it was begun with."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from byov.cache.run_progress import read_progress
from byov.cache.runs import RunRecord, list_runs, read_run, run_folder
from byov.errors import CacheError, TrainError
from byov.text import counted
from byov.train.feature_store import TrainingData, open_training_data
from byov.train.method_settings import choose, refuse_of_others, settings_of
from byov.train.parallel import ALONE
from byov.train.settings import DEFAULT_RATIO, TrainSettings, checked, differences

LOGGER = logging.getLogger(__name__)

Agree = Callable[[Callable[[], str]], str]  # Processes.agree: what one of them chooses counts for all


@dataclass(frozen=True)
class GivenRun:
    """What was said of a run; None where nothing was."""

    name: str | None
    method: str | None
    dataset: str | None
    encoder: str | None
    ratio: float | None
    settings: Mapping[str, Any]


class ChosenRun(NamedTuple):
    """Where it lies, or will lie, what it is trained on, and how."""

    folder: Path
    data: TrainingData
    settings: TrainSettings


def new_run(features_dir: Path, runs_dir: Path, given: GivenRun, agree: Agree = ALONE.agree) -> ChosenRun:
    """A run that there is not yet; what is left out is the paper's, or the only one in the cache."""
    wanted = {**given.settings, "method": "byov" if given.method is None else given.method}
    choose(given.dataset or "", **wanted)  # mistakes first, before anything is read
    named = None if given.name is None else _agreed(runs_dir, given.name, agree)  # before more is asked for
    ratio = DEFAULT_RATIO if given.ratio is None else given.ratio
    data = open_features(features_dir, given.dataset, given.encoder, ratio)
    settings = choose(data.dataset, **wanted)
    return ChosenRun(named or _agreed(runs_dir, _usual_name(data, settings), agree), data, settings)


def earlier_run(features_dir: Path, runs_dir: Path, given: GivenRun, agree: Agree = ALONE.agree) -> ChosenRun:
    """A run to go on with; what is given must be as it was begun."""
    record = read_run(runs_dir, agree(lambda: _newest_run(runs_dir) if given.name is None else given.name))
    settings = _same_settings(record, given.method, given.settings)
    return ChosenRun(record.folder, _same_data(features_dir, record, given), settings)


def open_features(features_dir: Path, dataset: str | None, encoder: str | None, ratio: float) -> TrainingData:
    """The features by name, or the only ones there; what was chosen is said."""
    data = open_training_data(features_dir, dataset, encoder, ratio)
    if dataset is None or encoder is None:
        LOGGER.info(f"features: {data.folder} at ratio {data.column.removeprefix('merged/')}")
    if data.absent:
        LOGGER.info(f"{counted(data.absent, 'video')} of {data.dataset} not in the cache; see byov-cache ls")
    return data


def _usual_name(data: TrainingData, settings: TrainSettings) -> str:
    """A run's name by what it is."""
    ratio = data.column.removeprefix("merged/")
    return f"{data.dataset}-{settings.label}-r{ratio}-s{settings.seed}"


def _agreed(runs_dir: Path, name: str, agree: Agree) -> Path:
    """The folder of a new run, for all processes that train it."""
    return run_folder(runs_dir, agree(lambda: _new_folder(runs_dir, name).name))


def _new_folder(runs_dir: Path, name: str) -> Path:
    """The folder of a run that there is not yet."""
    folder = run_folder(runs_dir, name)
    if folder.exists() and any(not path.name.startswith(".") for path in folder.iterdir()):
        if _is_finished(runs_dir, folder.name):
            raise TrainError(
                f"{folder} exists and is finished; choose another name with --run, "
                f"or score it with byov-eval --run {folder.name}"
            )
        raise TrainError(
            f"{folder} exists; resume it with --run {folder.name} --resume, or choose another name with --run"
        )
    return folder


def _is_finished(runs_dir: Path, name: str) -> bool:
    """Of what cannot be read as a run, --resume says more."""
    try:
        return read_progress(read_run(runs_dir, name)).state == "finished"
    except CacheError:
        return False


def _newest_run(runs_dir: Path) -> str:
    """The run to go on with where none is named; said."""
    runs = list_runs(runs_dir)
    if not runs:
        raise TrainError(f"{runs_dir}: no run here; start one with byov-train --ratio {DEFAULT_RATIO}")
    LOGGER.info(f"run: {runs[0]}, the newest (choose with --run)")
    return runs[0]


def _same_settings(record: RunRecord, method: str | None, given: Mapping[str, Any]) -> TrainSettings:
    """The run's own settings; what is given beside must not contradict them."""
    theirs = settings_of(record)
    if method not in (None, theirs.method):
        raise TrainError(f"{record.name} is a run of the method {theirs.method}, not of {method}")
    refuse_of_others(theirs.method, given)
    other = differences(checked(type(theirs), **(theirs.model_dump() | dict(given))), theirs)
    if other:
        raise TrainError(
            f"{record.name} was started with {'; '.join(other)}. Leave the option out, or start another run"
        )
    return theirs


def _same_data(features_dir: Path, record: RunRecord, given: GivenRun) -> TrainingData:
    """The features that the run was begun with; what is given must be the same."""
    encoder = record.encoder if given.encoder == record.encoder_folder else given.encoder
    for name, ours, their in (
        ("dataset", given.dataset, record.dataset),
        ("encoder", encoder, record.encoder),
        ("ratio", given.ratio, record.ratio),
    ):
        if ours is not None and ours != their:
            raise TrainError(f"{record.name} was started with {name} {their!r}, not {ours!r}")
    return open_features(features_dir, record.dataset, record.encoder_folder, record.ratio)
