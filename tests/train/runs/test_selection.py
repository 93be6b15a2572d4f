"""Which model a run keeps, and how its learning rate goes."""

import json
import math

import pytest
import torch
from safetensors.torch import load_file
from tests.train.runs.run_files import records

pytestmark = pytest.mark.usefixtures("cache")
EPOCHS = 4


def validation(run):
    return json.loads((run / "config.json").read_text())["training"]["validation"]


@pytest.mark.parametrize("metric", ["retrieval", "trimmed", "both", "tau"])
def test_the_kept_model_is_the_first_best_by_the_chosen_metric(byov_train, tiny, run, metric):
    ran = byov_train("--run", "toy", *tiny, "--epochs", EPOCHS, "--select", metric)
    assert ran.code == 0, ran
    found = records(run)[1:]
    scores = [record[metric] for record in found]
    best = found[scores.index(max(scores))]
    assert validation(run) == {name: best[name] for name in validation(run)}
    # The model after so many epochs is that of a run that ends there.
    ended = byov_train("--run", "shorter", *tiny, "--epochs", best["epoch"], "--select", "last")
    assert ended.code == 0, ended
    kept, last = (load_file(folder / "model.safetensors") for folder in (run, run.parent / "shorter"))
    assert kept.keys() == last.keys()
    assert all(torch.equal(kept[name], last[name]) for name in kept)


def test_the_last_model_is_kept_if_that_is_asked_for_with_its_own_figures(byov_train, tiny, run):
    assert byov_train("--run", "toy", *tiny, "--select", "last").code == 0
    assert (run / "model.safetensors").read_bytes() == (run / "model-last.safetensors").read_bytes()
    last = records(run)[-1]
    assert validation(run) == {
        name: last[name] for name in ("map@10_ego2exo", "map@10_exo2ego", "retrieval", "trimmed", "tau", "both")
    }


def test_validation_comes_every_so_many_epochs_and_at_the_end(byov_train, tiny, run):
    assert byov_train("--run", "toy", *tiny, "--epochs", 5, "--validate-every", 2).code == 0
    assert [record["epoch"] for record in records(run) if "retrieval" in record] == [0, 2, 4, 5]
    assert [record["epoch"] for record in records(run) if "loss" in record] == [1, 2, 3, 4, 5]


def test_how_often_checkpoints_come_changes_no_number(byov_train, tiny, run, reference, contents):
    assert byov_train("--run", "toy", *tiny, "--checkpoint-every", 50).code == 0
    assert [path.name for path in run.glob("checkpoint/*")] == ["step-000000012.safetensors"]
    assert contents(run) == contents(reference)


def test_the_learning_rate_warms_up_and_goes_down_along_a_cosine(byov_train, tiny, run):
    """4 steps per epoch; the record has the rate of an epoch's last step."""
    assert byov_train("--run", "toy", *tiny, "--warmup", 2, "--schedule", "cosine", "--epochs", 5).code == 0
    warmup, total = 8, 20
    expected = [
        1e-3 * (step + 1) / (warmup + 1)
        if step < warmup
        else 1e-3 * (1 + math.cos(math.pi * (step - warmup) / (total - warmup))) / 2
        for step in (3, 7, 11, 15, 19)
    ]
    assert [record["lr"] for record in records(run)[1:]] == pytest.approx(expected, rel=1e-12)


def test_a_constant_learning_rate_stays(reference):
    assert [record["lr"] for record in records(reference)[1:]] == [1e-3] * 3


def test_a_run_of_the_cycle_term_alone_resumes_though_it_leaves_the_decoder_alone(start_train, byov_train, tiny, run):
    options = (*tiny, "--cycle", 1, "--no-self", "--no-cross")
    assert byov_train("--run", "whole", *options).code == 0
    command = start_train("--run", "toy", *options, pause_before=("metrics.jsonl", 3))
    assert command.paused()
    command.kill()
    ran = byov_train("--run", "toy", "--resume")
    assert ran.code == 0, ran
    assert "resuming from step 4 of 12" in ran.err
    for name in ("model.safetensors", "model-last.safetensors", "metrics.jsonl"):
        assert (run / name).read_bytes() == (run.parent / "whole" / name).read_bytes()
    assert any(name.startswith("optimizer.") for name in load_file(next(run.glob("checkpoint/*"))))
