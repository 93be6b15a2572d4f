"""Tests of the training loop: schedules, runs interrupted after every step, and runs that
diverge.
"""

import math

import pytest
import torch
from safetensors.torch import load_file
from tests.train.runs.conftest import tiny_options
from tests.train.runs.run_files import checkpoints, contents, records, train_run

from byov.errors import Diverged, Interrupted
from byov.train.config import OptimizerConfig
from byov.train.registry import METHODS
from byov.train.trainer import learning_rate


@pytest.fixture
def train(shared_cache, tmp_path):
    """Return a function that trains a run on the shared cache and returns its folder."""

    def run(name, **options):
        torch.set_num_threads(1)
        train_run(name, features_dir=shared_cache.parent, runs_dir=tmp_path / name, **options)
        return tmp_path / name / name

    return run


# The decoder has no optimizer state.
UNUSED_DECODER = {"cycle": 1.0, "self_view": False, "cross_view": False}


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("byov", {"precision": "bf16"}),
        ("byov", UNUSED_DECODER),
        *(pytest.param(method, {}, marks=pytest.mark.slow) for method in METHODS),
    ],
    ids=str,
)
def test_interrupted_after_every_step_a_run_ends_the_same(train, tmp_path, method, options):
    options = tiny_options(method) | options
    whole = train("toy", **options)
    steps = records(whole)[-1]["step"]
    assert steps >= 6
    whole = whole.rename(tmp_path / "whole")
    for step in range(steps):
        with pytest.raises(
            Interrupted, match=f"stopped after step {step + 1} of {steps}; resume with byov-train"
        ):
            train("toy", stop=lambda: True, **({"resume": True} if step else options))
    assert contents(train("toy", resume=True)) == contents(whole)


def test_the_time_left_is_logged_once_also_by_a_resumed_run(train, monkeypatch, caplog):
    monkeypatch.setattr("byov.train.trainer.SHORTEST_ESTIMATE_SECONDS", 0.0)
    caplog.set_level("INFO", "byov")
    options = tiny_options("tcn") | {"epochs": 20}
    calls = iter(range(15))
    with pytest.raises(Interrupted):
        train("toy", stop=lambda: next(calls, None) is None, **options)
    train("toy", resume=True)
    assert sum(text.endswith(" left") for text in caplog.messages) == 2


def test_learning_rate_schedules():
    settings = OptimizerConfig(epochs=10, lr=1.0, warmup=2, schedule="cosine")
    rates = [learning_rate(settings, step, 4) for step in range(41)]
    assert rates[:8] == pytest.approx([(step + 1) / 9 for step in range(8)])
    assert rates[8] == pytest.approx(1)  # the cosine starts where the warm-up ends
    assert rates[16] == pytest.approx(0.5 * (1 + math.cos(math.pi / 4)))
    assert rates[24] == pytest.approx(0.5)
    assert rates[40] == pytest.approx(0)
    constant = OptimizerConfig(epochs=10, lr=1.0, warmup=2)
    assert [learning_rate(constant, step, 4) for step in (7, 8, 39)] == pytest.approx([8 / 9, 1, 1])


@pytest.mark.parametrize(
    ("options", "stop", "message"),
    [
        ({"lr": 1e30}, False, r"The loss became nan at step \d+ \(epoch \d\)"),
        # At the end of an epoch.
        ({"lr": 1e39, "batch_size": 4}, False, "The weights are no longer finite at step 1"),
        # In the checkpoint of an interrupted run.
        ({"lr": 1e39}, True, "The weights are no longer finite at step 1"),
    ],
)
def test_a_diverged_run_keeps_only_finite_weights(train, tmp_path, options, stop, message):
    with pytest.raises(Diverged, match=message):
        train("toy", stop=lambda: stop, **tiny_options("byov") | options)
    folder = tmp_path / "toy" / "toy"
    assert not (folder / "embeddings").exists()
    for path in folder.rglob("*.safetensors"):
        assert all(tensor.isfinite().all() for tensor in load_file(path).values()), path
    assert checkpoints(folder) == []
    with pytest.raises(Diverged):
        train("toy", resume=True)
