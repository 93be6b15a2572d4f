"""How far a run has come, by what lies in its folder: no PyTorch needed to tell."""

import fcntl
import json
import os
import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from sys import float_info
from typing import Any, Literal

from byov.cache.runs import LAST_MODEL_NAME, METRICS_NAME, MODEL_NAME, RunRecord
from byov.errors import CacheError

CHECKPOINTS_NAME, LOCK_NAME = "checkpoint", ".lock"
RunState = Literal["finished", "in training", "stopped"]


@dataclass(frozen=True)
class RunProgress:
    """epoch, epochs: the last that is done, and how many there are to be; None where the run does not say."""

    state: RunState
    epoch: int | None
    epochs: int | None
    metric: str | None  # what the model is chosen by
    best: float | None  # the best of it on the val split, so far

    @property
    def said(self) -> str:
        """ "stopped at epoch 76 of 300" """
        if self.state == "finished" or self.epoch is None:
            return self.state
        where = f"epoch {self.epoch}" + (f" of {self.epochs}" if self.epochs is not None else "")
        return f"{self.state}, at {where}" if self.state == "in training" else f"{self.state} at {where}"


def read_progress(run: RunRecord) -> RunProgress:
    records, epochs = _records(run.folder / METRICS_NAME), run.settings.get("epochs")
    epoch = max((record["epoch"] for record in records), default=None)
    total = epochs if type(epochs) is int else None
    # Without its last model it may have been given away; with a checkpoint it has that model still to write.
    given_away = epoch is not None and epoch == total and not checkpoint_files(run)
    state: RunState = "in training" if at_work(run.folder) else "stopped"
    if (run.folder / LAST_MODEL_NAME).exists() or given_away:
        state = "finished"
    wanted = str(run.settings.get("select"))
    metric = next((name for name in (wanted, "tau") if any(name in record for record in records)), None)
    scores = [record[metric] for record in records if record["epoch"] > 0 and metric in record]
    return RunProgress(state, epoch, total, metric, max(scores, default=None))


def unfinished(run: RunRecord) -> str | None:
    """One line on a run that has epochs before it, with what to do; None for one that is finished or does not say."""
    said = unfinished_text(run)
    if said is None:
        return None
    advice = "" if at_work(run.folder) else f"; go on with byov-train --run {run.name} --resume"
    return f"{run.name}: {said}{advice}"


def unfinished_text(run: RunRecord) -> str | None:
    """As `unfinished`, for what is written and read elsewhere: "unfinished, stopped at epoch 76 of 300: ..." """
    progress = read_progress(run)
    if progress.state == "finished" or progress.epoch is None:
        return None
    model = ": its model is the best so far" if (run.folder / MODEL_NAME).exists() else ""
    return f"unfinished, {progress.said}{model}"


def at_work(folder: Path) -> bool:
    """Is a process training this run now?"""
    try:
        descriptor = os.open(folder / LOCK_NAME, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    except BlockingIOError:
        return True
    except OSError:  # a disk without locks
        return False
    finally:
        os.close(descriptor)


def size_bytes(folder: Path) -> int:
    """Of all files below a folder; in that of a run in training they come and go."""
    size = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError):
                size += Path(place, name).lstat().st_size
    return size


def checkpoint_files(run: RunRecord) -> list[Path]:
    return sorted((run.folder / CHECKPOINTS_NAME).glob("step-*.safetensors"))


def delete_run(run: RunRecord) -> None:
    if at_work(run.folder):
        raise CacheError(f"{run.folder}: a process is training this run; stop it first")
    if run.folder.is_symlink():
        raise CacheError(f"{run.folder}: a link; delete what it leads to by hand")
    shutil.rmtree(run.folder)


def prune_checkpoints(run: RunRecord) -> int:
    """Delete the checkpoints of a finished run, which nothing needs any more; returns their bytes."""
    files = checkpoint_files(run)
    freed = sum(path.stat().st_size for path in files)
    for path in files:
        path.unlink(missing_ok=True)
    return freed


def _records(path: Path) -> list[dict[str, Any]]:
    """The epochs' records; of a file that is damaged, those that can be read."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        return []
    records = []
    for line in lines:
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            continue
        figures = {name: value for name, value in record.items() if _is_number(value)} if type(record) is dict else {}
        if type(figures.get("epoch")) is int:
            records.append(figures)
    return records


def _is_number(value: Any) -> bool:
    """Such that it can be printed."""
    return type(value) in (int, float) and abs(value) <= float_info.max
