"""The training loop by itself: any method, any batches."""

import json
import math
import threading
from contextlib import nullcontext

import pytest
import torch
from safetensors.torch import load_file

from byov.errors import Diverged, Interrupted, TrainError
from byov.train.checkpoint import checkpoints, load_checkpoint, save_checkpoint
from byov.train.methods.byov import Byov, ByovSettings
from byov.train.sampling import Clips
from byov.train.trainer import MetricsLog, Trainer, learning_rate

EPOCHS, STEPS_PER_EPOCH = 3, 4
TOTAL = EPOCHS * STEPS_PER_EPOCH
WIDTH, FRAMES = 6, 5


@pytest.fixture(autouse=True)
def one_thread():
    """Sums do not depend on how many other tests are at work."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


class RandomBatches:
    """Batches by step; asks for a stop while a chosen step is under way."""

    steps_per_epoch = STEPS_PER_EPOCH

    def __init__(self, stop: threading.Event, stop_at: int | None):
        self._stop, self._stop_at = stop, stop_at

    def ahead(self, first_step, end_step):
        for step in range(first_step, end_step):
            if step == self._stop_at:
                self._stop.set()
            random = torch.Generator().manual_seed(step)
            features = torch.randn(2, 1, FRAMES, WIDTH, generator=random)
            yield clips_of(features[0]), clips_of(features[1])


def clips_of(features):
    """One whole video."""
    zero, length = torch.tensor([0]), torch.tensor([FRAMES])
    return Clips(features, torch.arange(FRAMES)[None], zero, length, length, zero, zero, None, first_item=0, items=1)


def noisy_length(method, clips, random):
    """A loss that uses everything that it is given."""
    first, second = clips
    noise = torch.randn(first.features.shape, generator=random)
    seen = [method.encoder.see(clips_of(first.features + noise)), method.encoder.see(second)]
    there, back = method.encoder(seen)
    apart = there - back
    return {"loss": apart.square().mean(), "half": apart.square().mean().detach() / 2}


class Learner(Byov):
    """A method with a loss of the test's."""

    loss = staticmethod(noisy_length)

    def forward(self, clips, random):
        return self.loss(self, clips, random)


def score(model):
    """Goes up and down with the weights, so that the best model is neither the first nor the last."""
    total = sum(parameter.sum().item() for parameter in model.parameters())
    return {"score": total * 1e3 % 1, "total": total}


@pytest.fixture
def trainer(tmp_path):
    def make(
        stop=None,
        *,
        loss=noisy_length,
        stop_at=None,
        select="score",
        folder=tmp_path,
        lr=1e-2,
        validate=score,
        epochs=EPOCHS,
    ):
        with torch.random.fork_rng():
            torch.manual_seed(0)
            sizes = {"latent": 8, "depth": 1, "decoder_depth": 1, "heads": 2, "frames": FRAMES}
            settings = ByovSettings(epochs=epochs, lr=lr, weight_decay=0, validate_every=1, seed=3, **sizes)
            method = Learner(WIDTH, settings)
        method.loss = loss
        return Trainer(
            method,
            RandomBatches(stop or threading.Event(), stop_at),
            folder=folder,
            device=torch.device("cpu"),
            validate=validate,
            select=select,
            checkpoint_every=1,
            log=MetricsLog(folder),
        )

    return make


def results(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


@pytest.mark.parametrize("stop_at", range(TOTAL))
def test_stopped_at_any_step_it_goes_on_to_the_same_end(trainer, tmp_path, stop_at):
    whole = trainer(folder=tmp_path / "whole")
    whole.train()
    stop = threading.Event()
    with pytest.raises(Interrupted, match=f"stopped after step {stop_at + 1} of {TOTAL}"):
        trainer(stop, stop_at=stop_at, folder=tmp_path / "parts").train(stop.is_set)
    assert checkpoints(tmp_path / "parts" / "checkpoint")[0].name == f"step-{stop_at + 1:09d}.safetensors"
    again = trainer(folder=tmp_path / "parts")
    again.resume()
    assert again.state.step == stop_at + 1
    again.train()
    assert results(tmp_path / "parts") == results(tmp_path / "whole")
    assert again.state == whole.state


def test_stopped_after_every_step_it_goes_on_to_the_same_end(trainer, tmp_path):
    trainer(folder=tmp_path / "whole").train()
    for step in range(TOTAL + 1):
        stop = threading.Event()
        part = trainer(stop, stop_at=step, folder=tmp_path / "parts")
        part.resume()
        with nullcontext() if step == TOTAL else pytest.raises(Interrupted):
            part.train(stop.is_set)
    assert results(tmp_path / "parts") == results(tmp_path / "whole")


def test_the_loss_of_an_epoch_is_the_mean_over_its_steps_and_other_losses_come_along(trainer, tmp_path):
    seen = []

    def listening(*arguments):
        losses = noisy_length(*arguments)
        seen.append(losses["loss"].item())
        return losses

    trainer(loss=listening).train()
    records = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    means = [sum(seen[first : first + STEPS_PER_EPOCH]) / STEPS_PER_EPOCH for first in range(0, TOTAL, STEPS_PER_EPOCH)]
    assert [record["loss"] for record in records[1:]] == pytest.approx(means)
    assert [record["half"] for record in records[1:]] == pytest.approx([mean / 2 for mean in means])


def test_a_metric_that_never_comes_keeps_the_last_model_and_its_figures(trainer, tmp_path):
    alone = trainer(select="unknown")
    alone.train()
    assert (tmp_path / "model.safetensors").read_bytes() == (tmp_path / "model-last.safetensors").read_bytes()
    assert alone.state.best_metrics == score(alone.method)


def test_of_models_that_score_the_same_the_first_is_kept(trainer, tmp_path):
    kept = trainer(validate=lambda _: {"score": 0.5})
    kept.train()
    first = load_file(tmp_path / "model.safetensors")
    last = load_file(tmp_path / "model-last.safetensors")
    one_epoch = trainer(folder=tmp_path / "short", epochs=1)
    one_epoch.train()
    assert all(torch.equal(first[name], weights) for name, weights in one_epoch.method.state_dict().items())
    assert any(not torch.equal(first[name], last[name]) for name in first)


def test_the_learning_rate_rises_to_its_value_and_falls_to_zero_along_a_cosine():
    settings = ByovSettings(epochs=10, lr=1.0, warmup=2, schedule="cosine")
    rates = [learning_rate(settings, step, 4) for step in range(41)]
    assert rates[:8] == pytest.approx([(step + 1) / 9 for step in range(8)])
    assert rates[8] == pytest.approx(1)  # the cosine begins where the warm-up ends, not at the first step
    assert rates[24] == pytest.approx(0.5)
    assert rates[16] == pytest.approx(0.5 * (1 + math.cos(math.pi / 4)))
    assert rates[40] == pytest.approx(0)
    constant = ByovSettings(epochs=10, lr=1.0, warmup=2)
    assert [learning_rate(constant, step, 4) for step in (7, 8, 39)] == pytest.approx([8 / 9, 1, 1])


def at_step(step, change):
    """A loss that is changed at one step."""
    calls = iter(range(TOTAL))

    def loss(method, *arguments):
        losses = noisy_length(method, *arguments)
        return losses | {"loss": change(method, losses["loss"])} if next(calls) == step else losses

    return loss


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_loss_that_is_not_finite_stops_it_and_keeps_the_last_good_checkpoint(trainer, tmp_path, value):
    with pytest.raises(Diverged, match=rf"the loss became {value} at step 6 \(epoch 1\); the last checkpoint is kept"):
        trainer(loss=at_step(6, lambda _, loss: loss * value)).train()
    (kept,) = checkpoints(tmp_path / "checkpoint")
    assert kept.name == "step-000000004.safetensors"
    assert all(tensor.isfinite().all() for tensor in load_file(kept).values())
    again = trainer(folder=tmp_path)
    again.resume()
    again.train()
    trainer(folder=tmp_path / "whole").train()
    assert results(tmp_path) == results(tmp_path / "whole")


def test_without_a_checkpoint_the_message_does_not_promise_one(trainer):
    with pytest.raises(Diverged, match=r"at step 2 \(epoch 0\); there is no checkpoint yet"):
        trainer(loss=at_step(2, lambda _, loss: loss * float("nan"))).train()


def infinite_slope(method, loss):
    """Finite itself, with a gradient that is not."""
    return loss + (method.encoder.norm.weight - method.encoder.norm.weight.detach()).abs().sum().sqrt()


def test_a_gradient_that_is_not_finite_reaches_neither_checkpoint_nor_model(trainer, tmp_path):
    with pytest.raises(Diverged, match=r"the weights are no longer finite at step 8 \(epoch 2\)"):
        trainer(loss=at_step(7, infinite_slope)).train()
    (kept,) = checkpoints(tmp_path / "checkpoint")
    assert kept.name == "step-000000004.safetensors"
    for path in (kept, tmp_path / "model.safetensors"):
        assert all(tensor.isfinite().all() for tensor in load_file(path).values())


def test_a_stop_right_after_a_gradient_that_is_not_finite_leaves_no_checkpoint_of_it(trainer, tmp_path):
    stop = threading.Event()
    with pytest.raises(Diverged, match="the weights are no longer finite at step 6"):
        trainer(stop, loss=at_step(5, infinite_slope), stop_at=5).train(stop.is_set)
    assert [path.name for path in checkpoints(tmp_path / "checkpoint")] == ["step-000000004.safetensors"]


def test_resuming_without_a_checkpoint_begins_at_the_beginning(trainer, tmp_path):
    fresh = trainer()
    fresh.resume()
    assert fresh.state.step == 0
    assert checkpoints(tmp_path / "checkpoint") == []


def test_a_checkpoint_restores_weights_and_optimizer_bit_for_bit(tmp_path):
    def made(seed):
        torch.manual_seed(seed)
        model = torch.nn.Linear(3, 2)
        return model, torch.optim.Adam(model.parameters(), fused=True)

    model, optimizer = made(0)
    model(torch.ones(3)).sum().backward()
    optimizer.step()
    save_checkpoint(tmp_path, model, optimizer, {"a": [1, 0.1]}, 7)
    other, other_optimizer = made(1)
    assert load_checkpoint(tmp_path, other, other_optimizer, dict) == {"a": [1, 0.1]}
    for ours, theirs in zip(other.parameters(), model.parameters(), strict=True):
        assert torch.equal(ours, theirs)
        for key, value in optimizer.state[theirs].items():
            assert torch.equal(other_optimizer.state[ours][key], value)
    save_checkpoint(tmp_path / "again", other, other_optimizer, {"a": [1, 0.1]}, 7)
    (first,), (again,) = checkpoints(tmp_path), checkpoints(tmp_path / "again")
    assert first.read_bytes() == again.read_bytes()
    again.rename(again.with_name("step-000000008.safetensors"))  # of another step than it says
    with pytest.raises(TrainError, match="1 checkpoint, none of use"):
        load_checkpoint(tmp_path / "again", other, other_optimizer, dict)


def test_a_checkpoint_holds_the_memory_of_a_training_and_takes_no_other(tmp_path):
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.Adam(model.parameters(), fused=True)
    model(torch.ones(1)).sum().backward()
    optimizer.step()
    save_checkpoint(tmp_path, model, optimizer, {}, 3, {"means": torch.tensor([1.5, -torch.inf])})
    memory = {"means": torch.zeros(2)}
    assert load_checkpoint(tmp_path, model, optimizer, dict, memory) == {}
    assert memory["means"].tolist() == [1.5, -torch.inf]
    for other in ({"means": torch.zeros(3)}, {"means": torch.zeros(2, dtype=torch.int64)}, {"else": torch.zeros(2)}):
        with pytest.raises(TrainError, match="1 checkpoint, none of use"):
            load_checkpoint(tmp_path, model, optimizer, dict, other)


def test_only_the_last_two_checkpoints_stay(tmp_path):
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.Adam(model.parameters())
    for step in (3, 10, 200):
        save_checkpoint(tmp_path, model, optimizer, {}, step)
    assert [path.name for path in checkpoints(tmp_path)] == ["step-000000200.safetensors", "step-000000010.safetensors"]
