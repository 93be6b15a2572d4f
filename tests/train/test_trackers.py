"""Tests of experiment trackers. Weights & Biases is replaced by a stub."""

import sys
from types import SimpleNamespace

import pytest

from byov.errors import TrainError
from byov.train.trainer import open_trackers


class StubWandb:
    """Stub of the wandb module that records its calls."""

    class Error(Exception):
        pass

    def __init__(self):
        self.started = []
        self.logged = []
        self.finished = 0
        self.refuses = None
        self.Settings = dict

    def init(self, **arguments):
        if self.refuses:
            raise self.Error(self.refuses)
        self.started.append(arguments)
        return SimpleNamespace(
            id=arguments["id"] or f"run{len(self.started)}", log=self._log, finish=self._finish
        )

    def _log(self, metrics, step):
        self.logged.append((step, metrics))

    def _finish(self):
        self.finished += 1


@pytest.fixture
def wandb(monkeypatch):
    stub = StubWandb()
    monkeypatch.setitem(sys.modules, "wandb", stub)
    monkeypatch.delenv("WANDB_PROJECT", raising=False)
    return stub


@pytest.fixture
def log(tmp_path):
    def write(*records):
        with open_trackers(["wandb"], tmp_path / "toy", {"lr": 0.1}, 0) as (tracker,):
            for step, metrics in records:
                tracker(metrics, step)

    return write


def test_metrics_are_logged_to_one_wandb_run_which_a_resumed_run_continues(
    wandb, log, tmp_path, monkeypatch
):
    log((0, {"retrieval": 0.2}), (4, {"loss": 2.0}))
    assert wandb.logged == [(0, {"retrieval": 0.2}), (4, {"loss": 2.0})]
    (started,) = wandb.started
    assert (started["project"], started["name"], started["id"]) == ("byov", "toy", None)
    assert (started["config"], started["dir"]) == ({"lr": 0.1}, str(tmp_path / "toy"))
    assert wandb.finished == 1
    monkeypatch.setenv("WANDB_PROJECT", "mine")
    log((8, {}))
    assert (wandb.started[1]["project"], wandb.started[1]["id"]) == ("mine", "run1")


def test_a_wandb_error_is_one_line(wandb, log):
    wandb.refuses = "No API key configured. Log in.\nMore."
    with pytest.raises(
        TrainError,
        match=r"^--wandb: No API key configured\. Log in\. Set WANDB_MODE=offline[^\n]*$",
    ):
        log((0, {}))
