"""Where figures are shown beside metrics.jsonl. Weights & Biases is stood in for by what this project calls of it."""

import sys
from types import SimpleNamespace

import pytest

from byov.errors import TrainError
from byov.train.trackers import open_boards
from byov.train.trainer import MetricsLog

RECORDS = [{"epoch": 0, "step": 0, "retrieval": 0.2}, {"epoch": 1, "step": 4, "lr": 0.1, "loss": 2.0}]


class StandIn:
    """The module wandb: what it was asked for, in order."""

    class Error(Exception):
        pass

    def __init__(self):
        self.begun, self.logged, self.finished, self.refuses = [], [], 0, None
        self.Settings = dict

    def init(self, **how):
        if self.refuses:
            raise self.Error(self.refuses)
        self.begun.append(how)
        return SimpleNamespace(id=how["id"] or f"run{len(self.begun)}", log=self._log, finish=self._finish)

    def _log(self, figures, step):
        self.logged.append((step, figures))

    def _finish(self):
        self.finished += 1


@pytest.fixture
def wandb(monkeypatch):
    standing_in = StandIn()
    monkeypatch.setitem(sys.modules, "wandb", standing_in)
    monkeypatch.delenv("WANDB_PROJECT", raising=False)
    return standing_in


@pytest.fixture
def log(tmp_path):
    def write(count):
        with open_boards(tmp_path / "toy", {"lr": 0.1}, tensorboard=False, wandb=True) as boards:
            metrics = MetricsLog(tmp_path / "toy", boards)
            for number in range(count):
                metrics(RECORDS[: number + 1])

    (tmp_path / "toy").mkdir()
    return write


def test_wandb_has_the_figures_of_metrics_jsonl(wandb, log, tmp_path):
    log(2)
    assert wandb.logged == [(0, {"retrieval": 0.2}), (4, {"lr": 0.1, "loss": 2.0})]
    (begun,) = wandb.begun
    assert {key: begun[key] for key in ("project", "name", "id", "config")} == {
        "project": "byov",
        "name": "toy",
        "id": None,
        "config": {"lr": 0.1},
    }
    assert begun["dir"] == str(tmp_path / "toy")
    assert begun["settings"] == {"silent": True, "console": "off"}
    assert wandb.finished == 1


def test_a_run_that_is_resumed_goes_on_there_too(wandb, log):
    log(1)
    log(2)
    assert [begun["id"] for begun in wandb.begun] == [None, "run1"]
    assert wandb.finished == 2


def test_the_project_is_that_of_the_environment(wandb, log, monkeypatch):
    monkeypatch.setenv("WANDB_PROJECT", "mine")
    log(1)
    assert wandb.begun[0]["project"] == "mine"


def test_without_figures_nothing_is_begun(wandb, log):
    log(0)
    assert not wandb.begun
    assert not wandb.finished


def test_who_is_not_logged_in_is_told_in_one_line(wandb, log):
    wandb.refuses = "No API key configured. Log in.\nMore."
    told = r"^--wandb: No API key configured\. Log in; with WANDB_MODE=offline it writes files alone$"
    with pytest.raises(TrainError, match=told):
        log(1)
