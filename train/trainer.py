"""Method-agnostic training loop, and experiment trackers that log its metrics in addition to
metrics.jsonl.
"""

import json
import logging
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from byov.cache.atomic import write_bytes, write_text
from byov.cache.runs import (
    CHECKPOINTS_NAME,
    DIAGNOSTICS_PREFIX,
    LAST_MODEL_NAME,
    METRICS_NAME,
    MODEL_NAME,
    check_model,
)
from byov.errors import Diverged, Interrupted, TrainError
from byov.progress import NO_PROGRESS, Progress, Stop, never
from byov.text import format_duration
from byov.train.checkpoint import TrainingState, file_bytes, load_checkpoint, save_checkpoint
from byov.train.config import OptimizerConfig, RunConfig
from byov.train.distributed import SINGLE_PROCESS, Processes
from byov.train.methods.base import Method
from byov.train.networks import at_least_float32
from byov.train.sampling import Batch, BatchSource
from byov.train.validation import diagnose

LOGGER = logging.getLogger(__name__)
READ_LOSSES_EVERY = 10  # in steps; each read waits for the device
# number of steps to time; minimum remaining time to log
TIMED_STEPS = 10
SHORTEST_ESTIMATE_SECONDS = 60.0

Tracker = Callable[[Mapping[str, float], int], None]  # logs the metrics of a step


def learning_rate(config: OptimizerConfig, step: int, steps_per_epoch: int) -> float:
    """Return the learning rate for a step: linear warm-up, then constant or cosine decay to
    zero.
    """
    warmup = config.warmup * steps_per_epoch
    if step < warmup:
        return config.lr * (step + 1) / (warmup + 1)
    if config.schedule == "constant":
        return config.lr
    decay = max(1.0, config.epochs * steps_per_epoch - warmup)
    return config.lr * 0.5 * (1 + math.cos(math.pi * (step - warmup) / decay))


class Trainer:
    """Training loop with validation, model selection, metrics and checkpoints.

    `select` names the metric from `validate` that selects the best model; if it is missing, the
    last model is kept.
    `metadata` is stored in model files and checkpoints; its "identity" distinguishes runs.
    """

    def __init__(
        self,
        method: Method,
        batches: BatchSource,
        config: RunConfig,
        *,
        folder: Path,
        device: torch.device,
        validate: Callable[[Method], dict[str, float]] | None,
        select: str,
        checkpoint_every: int,
        processes: Processes = SINGLE_PROCESS,
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        self.method = method.to(device)
        self.state = TrainingState()
        self.total_steps = config.optimizer.epochs * batches.steps_per_epoch
        self._config = config
        self._model = processes.wrap(self.method)
        optimizers = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
        self._optimizer = optimizers[config.optimizer.optimizer](
            self.method.parameters(),
            lr=config.optimizer.lr,
            weight_decay=config.optimizer.weight_decay,
            fused=device.type in ("cpu", "cuda"),
        )
        self.batches = batches
        self._device = device
        self._processes = processes
        self._validate = validate
        self.select = select
        self._checkpoint_every = checkpoint_every
        self._folder = folder
        self._metadata = dict(metadata or {})
        self.trackers: Sequence[Tracker] = ()
        # (losses, number of items) per step since the last read.
        self._unread: list[tuple[dict[str, Tensor], int]] = []

    def resume(self) -> None:
        """Resume from the newest usable checkpoint, or start from the beginning if there is
        none.
        """
        stored = load_checkpoint(
            self._folder / CHECKPOINTS_NAME,
            self.method,
            self._optimizer,
            self._metadata,
            self.total_steps,
        )
        self.state = stored or self.state
        if self.state.best is not None:
            best = self._folder / MODEL_NAME
            if not best.exists():
                raise TrainError(
                    f"{best}, the best model so far, is missing. Start the run again under another "
                    "name."
                )
            check_model(self._folder, self._metadata)
        if self.state.records and self._processes.is_main:
            self._write_metrics()  # the file may be damaged or contain epochs after the checkpoint

    def train(self, stop: Stop = never, progress: Progress = NO_PROGRESS) -> None:
        """Train until the last step; if `stop` returns true, save a checkpoint and raise
        Interrupted.

        Raise Diverged if the loss or a weight is not finite, or if the processes are out of sync.
        """
        self._processes.check_in_sync(self.method, self.state.step)
        # The first record describes the untrained model.
        if self.state.step == 0 and self._processes.is_main:
            metrics = self._validate(self.method) if self._validate else {}
            self._write_record({"epoch": 0, "step": 0} | metrics | self._diagnostics())
        first = self.state.step
        started = 0.0
        with progress.bar("training", unit="step", total=self.total_steps, done=first) as bar:
            for batch in self.batches.ahead(first, self.total_steps):
                self._train_step(batch)
                epoch, step_of_epoch = divmod(self.state.step, self.batches.steps_per_epoch)
                is_read = step_of_epoch == 0 or self.state.step % READ_LOSSES_EVERY == 0
                bar.advance(
                    latest=f"epoch={epoch}, loss={self._read_losses():.4f}" if is_read else ""
                )
                if step_of_epoch == 0:
                    score = self._end_epoch(epoch)
                    if score is not None:
                        bar.advance(0, latest=f"epoch={epoch}, val {self.select}={score:.4f}")
                if self.state.step == first + 1:  # the first step is slow, so it is not timed
                    started = time.monotonic()
                elif self.state.step == first + 1 + TIMED_STEPS and self._processes.is_main:
                    left = (
                        (time.monotonic() - started)
                        / TIMED_STEPS
                        * (self.total_steps - self.state.step)
                    )
                    if left > SHORTEST_ESTIMATE_SECONDS:
                        LOGGER.info(f"about {format_duration(left)} left")
                if self._processes.any(stop()):
                    self._save_checkpoint()
                    # barrier: torchrun kills all processes as soon as one exits.
                    self._processes.any(True)
                    raise Interrupted(
                        f"stopped after step {self.state.step} of {self.total_steps}; "
                        f"resume with byov-train --run {self._folder.name} --resume"
                    )
        if self._processes.is_main:
            self._write_model(LAST_MODEL_NAME)
            if self.state.best is None:
                self._write_model(MODEL_NAME)

    def _train_step(self, batch: Batch) -> None:
        config = self._config.optimizer
        step = self.state.step
        items = batch[0].items
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate(config, step, self.batches.steps_per_epoch)
        # The first number separates these random numbers from other uses of the seed.
        seed = np.random.SeedSequence([0x6D61736B, self._config.seed, step])
        generator = torch.Generator().manual_seed(int(seed.generate_state(1, np.uint64)[0]))

        batch = tuple(clips.to(self._device) for clips in batch)
        with torch.autocast(self._device.type, torch.bfloat16, enabled=config.precision == "bf16"):
            losses = self._model(batch, generator)
        (losses["loss"] * self._processes.loss_weight(items)).backward()
        if config.clip_grad is not None:
            torch.nn.utils.clip_grad_norm_(self.method.parameters(), config.clip_grad)
        self._optimizer.step()
        self._optimizer.zero_grad()

        self.state.step += 1
        self._unread.append(({name: loss.detach() for name, loss in losses.items()}, items))

    def _read_losses(self) -> float:
        """Add the losses since the last call to the sums for this epoch, and return the latest
        loss.
        """
        steps = self._unread
        self._unread = []
        local = (
            torch.stack([at_least_float32(loss) for losses, _ in steps for loss in losses.values()])
            .cpu()
            .double()
        )
        fractions = [[len(self._processes.local_items(items)) / items] for _, items in steps]
        values = self._processes.all_reduce(
            local.view(len(steps), -1) * torch.tensor(fractions, dtype=torch.float64)
        )
        for step, row in enumerate(values.tolist(), start=self.state.step - len(steps)):
            losses: dict[str, float] = dict(zip(steps[0][0], row, strict=True))
            if not math.isfinite(losses["loss"]):
                raise self._diverged(f"The loss became {losses['loss']}", step)
            for name, value in losses.items():
                self.state.loss_sums[name] = self.state.loss_sums.get(name, 0.0) + value
        return losses["loss"]

    def _end_epoch(self, epoch: int) -> float | None:
        """Record the epoch, validate and save a checkpoint if due, and return the selection metric,
        if computed.
        """
        self._processes.check_in_sync(self.method, self.state.step)
        self._check_weights_finite()
        sums = self.state.loss_sums
        self.state.loss_sums = {}
        if not self._processes.is_main:
            return None
        is_last = epoch == self._config.optimizer.epochs
        metrics = dict[str, float]()
        is_validated = is_last or epoch % self._config.selection.validate_every == 0
        if self._validate and is_validated:
            metrics = self._validate(self.method)
            score = metrics.get(self.select)
            best = self.state.best
            if score is None and best is None:
                self.state.best_metrics = metrics
            elif score is not None and (best is None or score > best):
                self.state.best = score
                self.state.best_metrics = metrics
                self._write_model(MODEL_NAME)
        means = {name: total / self.batches.steps_per_epoch for name, total in sums.items()}
        rate = self._optimizer.param_groups[0]["lr"]
        self._write_record(
            {"epoch": epoch, "step": self.state.step, "lr": rate}
            | means
            | metrics
            | (self._diagnostics() if is_validated else {})
        )
        if is_last or epoch % self._checkpoint_every == 0:
            self._save_checkpoint()
        return metrics.get(self.select)

    def _diagnostics(self) -> dict[str, float]:
        return {
            f"{DIAGNOSTICS_PREFIX}{name}": value
            for name, value in diagnose(self.method, self.batches).items()
        }

    def _write_record(self, record: dict[str, Any]) -> None:
        """Append a line to metrics.jsonl, without timestamps, so that repeated and resumed runs
        write equal files.
        """
        self.state.records.append(record)
        self._write_metrics()
        metrics = {name: value for name, value in record.items() if name not in ("epoch", "step")}
        for tracker in self.trackers:
            tracker(metrics, record["step"])

    def _write_metrics(self) -> None:
        lines = "".join(json.dumps(line) + "\n" for line in self.state.records)
        write_text(self._folder / METRICS_NAME, lines)

    def _write_model(self, name: str) -> None:
        metadata = {**self._metadata, "step": self.state.step}
        write_bytes(self._folder / name, file_bytes(self.method.state_dict(), metadata))

    def _save_checkpoint(self) -> None:
        if self._unread:
            self._read_losses()
        self._check_weights_finite()
        if self._processes.is_main:
            save_checkpoint(
                self._folder / CHECKPOINTS_NAME,
                self.method,
                self._optimizer,
                self.state,
                self._metadata,
            )

    def _check_weights_finite(self) -> None:
        """Raise Diverged if a weight is not finite; the loss, computed before the step, may still
        be finite.
        """
        if not all(torch.isfinite(parameter).all() for parameter in self.method.parameters()):
            raise self._diverged("The weights are no longer finite", self.state.step)

    def _diverged(self, what: str, step: int) -> Diverged:
        return Diverged(
            f"{what} at step {step} (epoch {step // self.batches.steps_per_epoch}). Start another "
            "run with a lower --lr or --clip-grad 1."
        )


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
