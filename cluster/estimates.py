"""Estimated times of runs: from finished runs of the same kind, or from a few training steps."""

import json
import time
from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from byov.cache.atomic import write_text
from byov.cluster.grids import SWEEP_FOLDER, Folders, PlannedRun
from byov.device import Device
from byov.errors import Interrupted
from byov.evaluate.embeddings import read_manifest
from byov.progress import Bar, Progress, track
from byov.text import format_duration, pluralize

TIMES_NAME = "times.json"  # in runs/.sweep/: seconds per epoch and training video, by kind
STEPS = 3  # measured after a first one
# Settings that do not change the time of a step.
_NO_EFFECT = {"seed", "epochs", "steps", "lr", "weight_decay", "warmup", "mask_self", "mask_cross"}


@dataclass(frozen=True)
class Estimate:
    """Estimated time of a run."""

    seconds: float = 0.0
    measured: bool = False  # over a few training steps, rather than taken from finished runs
    problem: str = ""  # why the run cannot be trained


def record_time(run: PlannedRun, folders: Folders, seconds: float) -> None:
    """Save how long a run took."""
    rates = _read_rates(folders) | {_kind(run): seconds / _size(run, folders)}
    write_text(_path(folders), json.dumps(rates, indent=1) + "\n")


def estimate_runs(
    runs: Sequence[PlannedRun], folders: Folders, device: Device, progress: Progress, *, measure: bool
) -> dict[str, Estimate]:
    """Estimate the time of each run, by name.

    Runs of a new kind are measured on this machine if `measure` is set; those that differ in seed or dataset only once.
    """
    rates, measured = _read_rates(folders), set[str]()
    problems: dict[tuple[str, str], str] = {}
    estimates = {}
    for run in track(runs, progress, "estimating times", unit="run", brief=True):
        kind = _kind(run)
        if measure and kind not in rates and (run.dataset, kind) not in problems:
            measured.add(kind)
            try:
                rates[kind] = _measure(run, folders, device) / _size(run, folders)
            except Exception as error:  # The sweep reports it, too.
                problems[run.dataset, kind] = str(error)
        seconds = rates.get(kind, 0.0) * _size(run, folders)
        estimates[run.name] = Estimate(seconds, kind in measured, problems.get((run.dataset, kind), ""))
    return estimates


def total_time(estimates: Collection[Estimate], workers: int) -> str:
    """Return "; about 3 min with 2 workers (...)", with how it was estimated; "" if nothing is known."""
    known = [estimate for estimate in estimates if estimate.seconds]
    if not known:
        return ""
    workers, measured = min(workers, len(known)), sum(estimate.measured for estimate in known)
    duration = format_duration(sum(estimate.seconds for estimate in known) / workers)
    sources = {"from a few training steps, without scoring": measured, "from finished runs": len(known) - measured}
    source = ", ".join(f"{count} {how}" for how, count in sources.items() if count)
    return f"; about {duration} with {pluralize(workers, 'worker')} (estimated: {source})"


def _kind(run: PlannedRun) -> str:
    settings = run.settings.model_dump(mode="json", exclude=_NO_EFFECT)
    return json.dumps([run.encoder_folder, settings], sort_keys=True)


def _size(run: PlannedRun, folders: Folders) -> int:
    """Return the number of training videos seen over all epochs."""
    if run.settings.steps is not None:
        return run.settings.steps * run.settings.batch_size
    videos = read_manifest(folders.features, run.dataset).videos
    return max(1, run.settings.epochs * sum(video.split == "train" for video in videos))


def _path(folders: Folders) -> Path:
    return folders.runs / SWEEP_FOLDER / TIMES_NAME


def _read_rates(folders: Folders) -> dict[str, float]:
    with suppress(OSError, ValueError):
        return dict[str, float](json.loads(_path(folders).read_text(encoding="utf-8")))
    return {}


class _StepTimer:
    """Progress that counts the steps of a run; `stop` records when they end."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.total = 0

    def bar(self, name: str, *, total: int | None = None, **_: Any) -> AbstractContextManager[Bar]:
        if name == "training":
            self.total = total or 0
        return nullcontext(self)

    def advance(self, count: int = 1, *, latest: str = "") -> None:
        pass

    def stop(self) -> bool:
        self.times.append(time.monotonic())
        return len(self.times) > STEPS


def _measure(run: PlannedRun, folders: Folders, device: Device) -> float:
    """Return the training time extrapolated from a few steps on one thread, as in a worker process."""
    import torch

    from byov.train.run import train_run

    timer, threads, started = _StepTimer(), torch.get_num_threads(), time.monotonic()
    torch.set_num_threads(1)
    try:
        with TemporaryDirectory() as scratch, suppress(Interrupted):
            train_run(
                run.name,
                device=device,
                features_dir=folders.features,
                runs_dir=scratch,
                progress=timer,
                stop=timer.stop,
                **run.training_options(),
            )
    finally:
        torch.set_num_threads(threads)
    first, *later = timer.times
    step = (later[-1] - first) / len(later) if later else 0.0
    return first - started + step * (timer.total - 1)
