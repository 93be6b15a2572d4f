"""Experiment trackers that log metrics to TensorBoard or Weights & Biases, in addition to
metrics.jsonl.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from byov.cache.atomic import write_text
from byov.errors import TrainError

Tracker = Callable[[Mapping[str, float], int], None]  # logs the metrics of a step


def check_installed(packages: Sequence[str]) -> None:
    """Raise TrainError if a tracker's package is not installed."""
    for package in packages:
        if find_spec(package) is None:
            raise TrainError(f"--{package} needs a package: pip install {package}")


@contextmanager
def open_trackers(
    names: Sequence[str], run: Path, config: Mapping[str, Any], first_step: int
) -> Iterator[list[Tracker]]:
    """Open trackers ("tensorboard", "wandb") for a run that starts at `first_step`; close them on
    exit.
    """
    with ExitStack() as stack:
        trackers = [_tensorboard(run, first_step, stack)] if "tensorboard" in names else []
        yield trackers + ([_wandb(run, config, stack)] if "wandb" in names else [])


def _tensorboard(run: Path, first_step: int, stack: ExitStack) -> Tracker:
    """Return a tracker that writes event files to the `tensorboard` folder of the run."""
    from torch.utils.tensorboard import SummaryWriter

    # Purge metrics that an interrupted run logged after its last checkpoint.
    writer: Any = stack.enter_context(
        SummaryWriter(str(run / "tensorboard"), purge_step=first_step)
    )

    def log(metrics: Mapping[str, float], step: int) -> None:
        for name, value in metrics.items():
            writer.add_scalar(name, value, step)
        writer.flush()

    return log


def _wandb(run: Path, config: Mapping[str, Any], stack: ExitStack) -> Tracker:
    """Return a tracker that logs to W&B; the W&B run id is saved, so that a resumed run continues
    the same W&B run.
    """
    import wandb

    id_file = run / "wandb" / "id"
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
        raise TrainError(
            f"--wandb: {reason}. Set WANDB_MODE=offline to log to files only."
        ) from None
    stack.callback(wandb_run.finish)
    write_text(id_file, wandb_run.id + "\n")
    # W&B ignores steps already logged.
    return lambda metrics, step: wandb_run.log(dict(metrics), step=step)
