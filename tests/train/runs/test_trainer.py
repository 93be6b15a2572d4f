"""The training loop and its checkpoints, with any method and any batches."""

import math
import threading
from functools import partial

import pytest
import torch
from safetensors.torch import load_file
from tests.train.runs.run_files import contents, records

from byov.errors import Diverged, Interrupted
from byov.train.checkpoint import checkpoints
from byov.train.methods.byov import Byov, ByovSettings
from byov.train.sampling import Clips
from byov.train.trainer import Trainer, learning_rate

EPOCHS, STEPS_PER_EPOCH = 3, 4
TOTAL = EPOCHS * STEPS_PER_EPOCH
WIDTH, FRAMES = 6, 5
PADDING = torch.zeros(1, FRAMES, dtype=torch.bool)


class RandomBatches:
    """Batches by step; requests a stop during a chosen step."""

    def __init__(self, stop: threading.Event, stop_at: int | None, steps_per_epoch: int):
        self._stop, self._stop_at, self.steps_per_epoch = stop, stop_at, steps_per_epoch

    def ahead(self, first_step, end_step):
        for step in range(first_step, end_step):
            if step == self._stop_at:
                self._stop.set()
            features = torch.randn(2, 1, FRAMES, WIDTH, generator=torch.Generator().manual_seed(step))
            yield clips_of(features[0]), clips_of(features[1])


def clips_of(features):
    """One whole video."""
    zero, length = torch.tensor([0]), torch.tensor([FRAMES])
    return Clips(features, torch.arange(FRAMES)[None], zero, length, length, zero, PADDING, first_item=0, items=1)


def noisy_loss(model, clips, generator):
    """A loss that depends on all weights, both clips and the generator."""
    noise = torch.randn(clips[0].features.shape, generator=generator)
    difference = model.weight @ (clips[0].features + noise).mT - model.weight @ clips[1].features.mT
    loss = difference.square().mean()
    return {"loss": loss, "half": loss.detach() / 2}


class Learner(Byov):
    """A method with one weight matrix and a loss chosen by the test."""

    def __init__(self, settings, loss):
        super().__init__(WIDTH, settings)
        del self.encoder, self.decoder
        self.weight, self.loss = torch.nn.Parameter(torch.randn(3, WIDTH)), loss

    def forward(self, clips, generator):
        return self.loss(self, clips, generator)


def score(model):
    """Goes up and down with the weights, so that the best model is neither the first nor the last."""
    total = sum(parameter.sum().item() for parameter in model.parameters())
    return {"score": total * 1e3 % 1, "total": total}


@pytest.fixture
def trainer(tmp_path):
    def make(
        stop=None,
        *,
        loss=noisy_loss,
        stop_at=None,
        select="score",
        folder=tmp_path,
        validate=score,
        steps_per_epoch=STEPS_PER_EPOCH,
        **settings,
    ):
        usual = {"epochs": EPOCHS, "lr": 1e-2, "weight_decay": 0, "validate_every": 1, "seed": 3}
        settings = ByovSettings(**(usual | {"latent": 8, "heads": 2} | settings))
        with torch.random.fork_rng():
            torch.manual_seed(0)
            method = Learner(settings, loss)
        return Trainer(
            method,
            RandomBatches(stop or threading.Event(), stop_at, steps_per_epoch),
            folder=folder,
            device=torch.device("cpu"),
            validate=validate,
            select=select,
            checkpoint_every=1,
        )

    return make


@pytest.mark.parametrize("precision", ["float32", "bf16"])
@pytest.mark.parametrize("stop_at", range(TOTAL))
def test_interrupted_at_any_step_it_ends_the_same(trainer, tmp_path, stop_at, precision):
    trainer = partial(trainer, precision=precision)
    whole = trainer(folder=tmp_path / "whole")
    whole.train()
    stop = threading.Event()
    with pytest.raises(Interrupted, match=f"stopped after step {stop_at + 1} of {TOTAL}"):
        trainer(stop, stop_at=stop_at, folder=tmp_path / "parts").train(stop.is_set)
    assert checkpoints(tmp_path / "parts" / "checkpoint")[0].name == f"step-{stop_at + 1:09d}.safetensors"
    resumed = trainer(folder=tmp_path / "parts")
    resumed.resume()
    assert resumed.state.step == stop_at + 1
    resumed.train()
    assert contents(tmp_path / "parts") == contents(tmp_path / "whole")
    assert resumed.state == whole.state


def test_the_loss_of_an_epoch_is_the_mean_over_its_steps(trainer, tmp_path):
    seen = []

    def recorded(*arguments):
        losses = noisy_loss(*arguments)
        seen.append(losses["loss"].item())
        return losses

    trainer(loss=recorded).train()
    means = [sum(seen[first : first + STEPS_PER_EPOCH]) / STEPS_PER_EPOCH for first in range(0, TOTAL, STEPS_PER_EPOCH)]
    assert [record["loss"] for record in records(tmp_path)[1:]] == pytest.approx(means)
    assert [record["half"] for record in records(tmp_path)[1:]] == pytest.approx([mean / 2 for mean in means])


def test_an_unknown_metric_keeps_the_last_model(trainer, tmp_path):
    trained = trainer(select="unknown")
    trained.train()
    assert (tmp_path / "model.safetensors").read_bytes() == (tmp_path / "model-last.safetensors").read_bytes()
    assert trained.state.best_metrics == score(trained.method)


def test_learning_rate_schedules():
    settings = ByovSettings(epochs=10, lr=1.0, warmup=2, schedule="cosine")
    rates = [learning_rate(settings, step, 4) for step in range(41)]
    assert rates[:8] == pytest.approx([(step + 1) / 9 for step in range(8)])
    assert rates[8] == pytest.approx(1)  # the cosine starts where the warm-up ends
    assert rates[16] == pytest.approx(0.5 * (1 + math.cos(math.pi / 4)))
    assert rates[24] == pytest.approx(0.5)
    assert rates[40] == pytest.approx(0)
    constant = ByovSettings(epochs=10, lr=1.0, warmup=2)
    assert [learning_rate(constant, step, 4) for step in (7, 8, 39)] == pytest.approx([8 / 9, 1, 1])


def at_step(step, change):
    """Change the loss of one step."""
    calls = iter(range(TOTAL))

    def loss(model, *arguments):
        losses = noisy_loss(model, *arguments)
        return losses | {"loss": change(model, losses["loss"])} if next(calls) == step else losses

    return loss


def infinite_gradient(model, loss):
    """A finite loss whose gradient is not."""
    return loss + (model.weight - model.weight.detach()).abs().sum().sqrt()


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_loss_that_is_not_finite_keeps_the_last_checkpoint(trainer, tmp_path, value):
    with pytest.raises(Diverged, match=rf"became {value} at step 6 \(epoch 1\)"):
        trainer(loss=at_step(6, lambda _, loss: loss * value)).train()
    (kept,) = checkpoints(tmp_path / "checkpoint")
    assert kept.name == "step-000000004.safetensors"
    resumed = trainer(folder=tmp_path)
    resumed.resume()
    resumed.train()
    trainer(folder=tmp_path / "whole").train()
    assert (tmp_path / "model.safetensors").read_bytes() == (tmp_path / "whole" / "model.safetensors").read_bytes()


@pytest.mark.parametrize(("step", "stop_at", "noticed"), [(7, None, 8), (5, 5, 6)])
def test_a_gradient_that_is_not_finite_is_never_saved(trainer, tmp_path, step, stop_at, noticed):
    stop = threading.Event()
    with pytest.raises(Diverged, match=f"no longer finite at step {noticed}"):
        trainer(stop, loss=at_step(step, infinite_gradient), stop_at=stop_at).train(stop.is_set)
    assert [path.name for path in checkpoints(tmp_path / "checkpoint")] == ["step-000000004.safetensors"]
    for path in tmp_path.rglob("*.safetensors"):
        assert all(tensor.isfinite().all() for tensor in load_file(path).values())
