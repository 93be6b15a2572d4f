"""Experiment trackers: the metrics of a run in TensorBoard or Weights & Biases, in addition to metrics.jsonl."""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from byov.cache.atomic import write_text
from byov.errors import TrainError

Tracker = Callable[[Mapping[str, float], int], None]  # logs the metrics of a step


@contextmanager
def open_trackers(run: Path, config: Mapping[str, Any], *, tensorboard: bool, wandb: bool) -> Iterator[list[Tracker]]:
    """Open the requested trackers of a run and close them at the end; TrainError if a package is not installed.

    They write nothing before the first metrics.
    """
    with ExitStack() as stack:
        trackers = [_tensorboard(run, stack)] if tensorboard else []
        yield trackers + ([_wandb(run, config, stack)] if wandb else [])


def _tensorboard(run: Path, stack: ExitStack) -> Tracker:
    """Log to event files in the folder `tensorboard` of the run."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise TrainError("--tensorboard needs a package: pip install tensorboard") from None
    writers: list[Any] = []

    def log(metrics: Mapping[str, float], step: int) -> None:
        if not writers:  # purge what an interrupted run logged after its last checkpoint
            writers.append(SummaryWriter(str(run / "tensorboard"), purge_step=step))
            stack.callback(writers[0].close)
        for name, value in metrics.items():
            writers[0].add_scalar(name, value, step)
        writers[0].flush()

    return log


def _wandb(run: Path, config: Mapping[str, Any], stack: ExitStack) -> Tracker:
    """Log to a W&B run, whose id is kept in the run's folder so that a resumed run continues it."""
    try:
        import wandb
    except ImportError:
        raise TrainError("--wandb needs a package: pip install wandb") from None
    started: list[Any] = []
    id_file = run / "wandb" / "id"

    def log(metrics: Mapping[str, float], step: int) -> None:
        if not started:
            id_file.parent.mkdir(parents=True, exist_ok=True)
            try:
                wandb_run = wandb.init(
                    project=os.environ.get("WANDB_PROJECT", "byov"),
                    name=run.name,
                    id=id_file.read_text(encoding="utf-8").strip() if id_file.is_file() else None,
                    resume="allow",
                    dir=str(run),
                    config=dict(config),
                    settings=wandb.Settings(silent=True, console="off"),
                )
            except wandb.Error as error:
                reason = str(error).partition("\n")[0].rstrip(".")
                raise TrainError(f"--wandb: {reason}. Set WANDB_MODE=offline to log to files only.") from None
            write_text(id_file, wandb_run.id + "\n")
            started.append(wandb_run)
            stack.callback(wandb_run.finish)
        started[0].log(dict(metrics), step=step)  # W&B ignores steps that it already has

    return log
