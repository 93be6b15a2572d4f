"""Experiment trackers: the metrics of a run in TensorBoard or Weights & Biases, in addition to metrics.jsonl."""

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

from byov.cache.atomic import write_text
from byov.errors import TrainError


class TensorBoard:
    """Event files in the folder `tensorboard` of the run."""

    def __init__(self, run: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise TrainError("--tensorboard needs a package: pip install tensorboard") from None
        self._folder, self._writer_class = run / "tensorboard", SummaryWriter
        self._writer: Any = None

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        if self._writer is None:  # purge what an interrupted run logged after its last checkpoint
            self._writer = self._writer_class(str(self._folder), purge_step=step)
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


class WeightsAndBiases:
    """A W&B run, whose id is kept in the run's folder so that a resumed run continues it."""

    def __init__(self, run: Path, config: Mapping[str, Any]) -> None:
        try:
            import wandb
        except ImportError:
            raise TrainError("--wandb needs a package: pip install wandb") from None
        self._folder, self._config, self._wandb = run, dict(config), wandb
        self._run: Any = None

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        if self._run is None:
            self._start()
        self._run.log(dict(metrics), step=step)  # W&B ignores steps that it already has

    def close(self) -> None:
        if self._run is not None:
            self._run.finish()

    def _start(self) -> None:
        id_file = self._folder / "wandb" / "id"
        id_file.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._run = self._wandb.init(
                project=os.environ.get("WANDB_PROJECT", "byov"),
                name=self._folder.name,
                id=id_file.read_text(encoding="utf-8").strip() if id_file.is_file() else None,
                resume="allow",
                dir=str(self._folder),
                config=self._config,
                settings=self._wandb.Settings(silent=True, console="off"),
            )
        except self._wandb.Error as error:
            reason = str(error).partition("\n")[0].rstrip(".")
            raise TrainError(f"--wandb: {reason}. Set WANDB_MODE=offline to log to files only.") from None
        write_text(id_file, self._run.id + "\n")


Tracker = TensorBoard | WeightsAndBiases


@contextmanager
def open_trackers(run: Path, config: Mapping[str, Any], *, tensorboard: bool, wandb: bool) -> Iterator[list[Tracker]]:
    """Open the requested trackers of a run and close them at the end; TrainError if a package is not installed."""
    with ExitStack() as stack:
        trackers: list[Tracker] = [TensorBoard(run)] if tensorboard else []
        trackers += [WeightsAndBiases(run, config)] if wandb else []
        yield [stack.enter_context(closing(tracker)) for tracker in trackers]
