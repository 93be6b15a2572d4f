"""The training loop. It knows a method and batches by step, and nothing of what they mean."""

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from byov.cache.atomic import write_bytes, write_text
from byov.cache.digests import check_weights
from byov.cache.runs import CHECKPOINTS_NAME, LAST_MODEL_NAME, METRICS_NAME, MODEL_NAME
from byov.errors import Diverged, Interrupted, TrainError
from byov.progress import NO_PROGRESS, Bar, Progress, Stop, never
from byov.train.checkpoint import (
    NOBODY,
    TrainingState,
    checkpoints,
    load_checkpoint,
    model_bytes,
    read_state,
    save_checkpoint,
)
from byov.train.distributed import ALONE, Processes
from byov.train.methods.base import Method
from byov.train.sampling import Batch
from byov.train.settings import OptimizerSettings
from byov.train.trackers import Board

OPTIMISERS: dict[str, type[torch.optim.Adam]] = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
STEP_STREAM = 0x6D61736B  # keeps the seeds of the steps apart from the other users of the seed


class Batches(Protocol):
    steps_per_epoch: int

    def ahead(self, first_step: int, end_step: int) -> Iterator[Batch]: ...


class Log(Protocol):
    def __call__(self, records: list[dict[str, Any]]) -> None:
        """Everything that is known so far, one record per epoch; the last is the newest."""


def learning_rate(settings: OptimizerSettings, step: int, steps_per_epoch: int) -> float:
    """Linear warm-up, then constant or down to zero along a cosine."""
    warmup, total = settings.warmup * steps_per_epoch, settings.epochs * steps_per_epoch
    if step < warmup:
        return settings.lr * (step + 1) / (warmup + 1)
    if settings.schedule == "constant":
        return settings.lr
    return settings.lr * 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1.0, total - warmup)))


class MetricsLog:
    """One JSON object per epoch. No times in it: a run that is repeated, or resumed, writes the same file."""

    def __init__(self, folder: Path, boards: Sequence[Board] = ()) -> None:
        self._path, self._boards = folder / METRICS_NAME, boards

    def __call__(self, records: list[dict[str, Any]]) -> None:
        write_text(self._path, "".join(json.dumps(record) + "\n" for record in records))
        newest = records[-1]
        figures = {name: value for name, value in newest.items() if name not in ("epoch", "step")}
        for board in self._boards:
            board(figures, newest["step"])


class Trainer:
    """Trains, validates, keeps the best model and enough to resume after any interruption."""

    def __init__(
        self,
        method: Method,
        batches: Batches,
        *,
        folder: Path,
        device: torch.device,
        validate: Callable[[Method], dict[str, float]] | None,
        select: str,
        checkpoint_every: int,
        log: Log,
        processes: Processes = ALONE,
        identity: Mapping[str, Any] = NOBODY,
    ) -> None:
        """processes: those that train together; batches then gives this one its own items of each step.

        identity: of the run, which its models and checkpoints carry.
        """
        self.method = method.to(device)
        self._processes, self._spread = processes, processes.spread(self.method)
        self._batches, self._settings = batches, method.settings
        self._checkpoints, self._device, self._log = folder / CHECKPOINTS_NAME, device, log
        self._best_path, self._last_path = folder / MODEL_NAME, folder / LAST_MODEL_NAME
        self._validate, self._select, self._checkpoint_every = validate, select, checkpoint_every
        self._optimizer = OPTIMISERS[self._settings.optimizer](
            self.method.parameters(),
            lr=self._settings.lr,
            weight_decay=self._settings.weight_decay,
            fused=device.type in ("cpu", "cuda"),
        )
        self.state = TrainingState(method=self._settings.method)
        self._identity = identity

    @property
    def total_steps(self) -> int:
        return self._settings.epochs * self._batches.steps_per_epoch

    def resume(self) -> None:
        """Continue from the newest checkpoint that can be read; from the beginning if there is none."""
        state = load_checkpoint(
            self._checkpoints,
            self.method,
            self._optimizer,
            lambda raw: read_state(raw, self._settings.method, self.total_steps),
            self.method.training_state(),
            self._identity,
        )
        if state is not None:
            self.state = state
        if self.state.best is not None:
            self._refuse_lost_best()

    def _refuse_lost_best(self) -> None:
        if not self._best_path.exists():
            raise TrainError(f"{self._best_path}: the best model so far is gone; start again under another name")
        found = check_weights(self._best_path)
        if found.identity != self._identity.get("identity"):
            raise TrainError(f"{self._best_path}: a model of another run ({found.origin}); restore the run's own")

    def train(self, stop: Stop = never, progress: Progress = NO_PROGRESS) -> None:
        """Train to the end, or until `stop` says so; then leave a checkpoint and raise Interrupted."""
        self._processes.refuse_differences(self.method, self.state.step)
        if self.state.step == 0 and self._processes.leads:
            self._start()
        first, per_epoch = self.state.step, self._batches.steps_per_epoch
        with progress.bar("training", unit="step", total=self.total_steps, done=first) as bar:
            for batch in self._batches.ahead(first, self.total_steps):
                losses = self._step(batch)
                bar.advance(latest=f"epoch={self.state.step // per_epoch}, loss={losses['loss']:.4f}")
                if self.state.step % per_epoch == 0:
                    self._end_epoch(self.state.step // per_epoch)
                    self._say_validation(bar)
                if self._processes.any(stop()):
                    self._checkpoint()
                    self._processes.wait()  # torchrun ends all as soon as one has ended
                    raise Interrupted(f"stopped after step {self.state.step} of {self.total_steps}")
        if self._processes.leads:
            self._write_model(self._last_path)
            if self.state.best is None:
                self._write_model(self._best_path)

    def _write_model(self, path: Path) -> None:
        write_bytes(path, model_bytes(self.method, {**self._identity, "step": self.state.step}))

    def _start(self) -> None:
        """What the untrained model scores is the first record."""
        self.state.records.append({"epoch": 0, "step": 0} | self._validation())
        self._log(self.state.records)

    def _step(self, batch: Batch) -> dict[str, float]:
        step = self.state.step
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate(self._settings, step, self._batches.steps_per_epoch)
        random = torch.Generator().manual_seed(_seed(self._settings.seed, step))
        with self._autocast():
            losses = self._spread(tuple(clips.to(self._device) for clips in batch), random)
        values = self._processes.whole(losses, batch[0].items)
        if not math.isfinite(values["loss"]):
            raise Diverged(self._not_finite(f"loss became {values['loss']}"))
        self._processes.backward(losses["loss"], batch[0].items)
        if self._settings.clip_grad is not None:
            torch.nn.utils.clip_grad_norm_(self.method.parameters(), self._settings.clip_grad)
        self._optimizer.step()
        self._optimizer.zero_grad()
        self.state.step += 1
        for name, value in values.items():
            self.state.loss_sums[name] = self.state.loss_sums.get(name, 0.0) + value
        return values

    def _end_epoch(self, epoch: int) -> None:
        self._processes.refuse_differences(self.method, self.state.step)
        self._refuse_weights_that_are_not_finite()
        sums, self.state.loss_sums = self.state.loss_sums, {}
        if self._processes.leads:
            self._record(epoch, {name: total / self._batches.steps_per_epoch for name, total in sums.items()})

    def _record(self, epoch: int, losses: dict[str, float]) -> None:
        """What an epoch has come to, in the log, and on disk if it is the time for it."""
        state, last = self.state, epoch == self._settings.epochs
        record: dict[str, Any] = {"epoch": epoch, "step": state.step, "lr": self._optimizer.param_groups[0]["lr"]}
        record |= losses
        if last or epoch % self._settings.validate_every == 0:
            metrics = self._validation()
            record |= metrics
            self._keep_if_best(metrics)
        state.records.append(record)
        self._log(state.records)
        if last or epoch % self._checkpoint_every == 0:
            self._checkpoint()

    def _say_validation(self, bar: Bar) -> None:
        """A word without steps, which a log has a line for."""
        newest = self.state.records[-1] if self.state.records else {}
        if self._select in newest and newest["step"] == self.state.step:
            bar.advance(0, latest=f"epoch={newest['epoch']}, val {self._select}={newest[self._select]:.4f}")

    def _validation(self) -> dict[str, float]:
        if self._validate is None:
            return {}
        self.method.eval()
        metrics = self._validate(self.method)
        self.method.train()
        return metrics

    def _keep_if_best(self, metrics: dict[str, float]) -> None:
        """The best by the chosen metric, of equals the first; while there is no score, the newest."""
        score, best = metrics.get(self._select), self.state.best
        if score is None and best is None:
            self.state.best_metrics = metrics
        elif score is not None and (best is None or score > best):
            self.state.best, self.state.best_metrics = score, metrics
            self._write_model(self._best_path)

    def _checkpoint(self) -> None:
        self._refuse_weights_that_are_not_finite()
        if self._processes.leads:
            save_checkpoint(
                self._checkpoints,
                self.method,
                self._optimizer,
                self.state.model_dump(),
                self.state.step,
                self.method.training_state(),
                self._identity,
            )

    def _autocast(self) -> AbstractContextManager[Any]:
        if self._device.type == "cuda":
            return torch.autocast("cuda", dtype=torch.bfloat16)
        return nullcontext()

    def _refuse_weights_that_are_not_finite(self) -> None:
        """The loss is that of the weights before the step: it may be finite when they no longer are."""
        if not all(torch.isfinite(parameter).all() for parameter in self.method.parameters()):
            raise Diverged(self._not_finite("weights are no longer finite"))

    def _not_finite(self, what: str) -> str:
        kept = "the last checkpoint is kept" if checkpoints(self._checkpoints) else "there is no checkpoint yet"
        epoch = self.state.step // self._batches.steps_per_epoch
        return (
            f"the {what} at step {self.state.step} (epoch {epoch}); {kept}. "
            "Start another run with a lower --lr, or with --clip-grad 1"
        )


def _seed(seed: int, step: int) -> int:
    """The seed of what is random in one step."""
    return int(np.random.SeedSequence([STEP_STREAM, seed, step]).generate_state(1, np.uint64)[0])
