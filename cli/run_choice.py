"""Which runs are meant: the newest where none is named, and that is said."""

from collections.abc import Sequence
from pathlib import Path

from byov.cache.runs import RunRecord, list_runs, read_run
from byov.cli.command import UsageMistake
from byov.cli.messages import note
from byov.errors import ApplyError, CacheError


def choose_run(runs_dir: Path, wanted: str | None) -> RunRecord:
    """The run by name, else the newest."""
    runs = choose_runs(runs_dir, [] if wanted is None else [wanted], None)
    if not runs:
        raise ApplyError(f"{runs_dir}: no run here; make one with byov-train, or say where with --runs-dir")
    return runs[0]


def choose_runs(runs_dir: Path, wanted: Sequence[str], dataset: str | None) -> list[RunRecord]:
    """The runs by name; if none is named, the newest of the dataset, or none if there is no run at all."""
    if wanted:
        runs = [read_run(runs_dir, run) for run in dict.fromkeys(wanted)]
        _refuse_other_datasets(runs, dataset)
        return runs
    others = 0
    for name in list_runs(runs_dir):
        try:
            run = read_run(runs_dir, name)
        except CacheError as error:
            note(f"{name}: not looked at ({error})")
            continue
        if dataset in (None, run.dataset):
            note(f"run: {name}, the {'newest' if len(list_runs(runs_dir)) > 1 else 'only'} one (choose with --run)")
            return [run]
        others += 1
    if others:
        note(f"no run of {dataset} among the {others} in {runs_dir}")
    return []


def say_differences(runs: Sequence[RunRecord]) -> None:
    """Who expects one mean over all runs is told why there is none."""
    for what in ("recipe", "encoder", "column"):
        values = {getattr(run, what) for run in runs}
        if len(values) > 1:
            told = ", ".join(sorted(values))
            note(f"the runs differ in {what} ({told}): there is no mean over all of them")


def _refuse_other_datasets(runs: Sequence[RunRecord], dataset: str | None) -> None:
    datasets = {run.dataset for run in runs} | ({dataset} if dataset else set())
    if len(datasets) > 1:
        told = ", ".join(f"{run.name} of {run.dataset}" for run in runs)
        raise UsageMistake(f"one table is of one dataset: {told}" + (f"; --dataset {dataset}" if dataset else ""))
