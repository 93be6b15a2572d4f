"""The curves of a training, from files of all kinds."""

import json
from pathlib import Path

import pytest

from byov.cache.runs import RunRecord
from byov.report.content import Curve, Unavailable
from byov.report.curves import read_curves

RECORDS = [
    {"epoch": 0, "step": 0, "retrieval": 0.9, "trimmed": 0.1, "tau": 0.9, "both": 0.5, "map@10_ego2exo": 0.9},
    {"epoch": 1, "step": 4, "lr": 1e-3, "loss": 3.0, "self": 1.0, "cross": 2.0},
    {
        "epoch": 2,
        "step": 8,
        "lr": 1e-3,
        "loss": 2.0,
        "self": 0.5,
        "cross": 1.5,
        "retrieval": 0.6,
        "tau": 0.1,
        "both": 0.7,
    },
    {
        "epoch": 3,
        "step": 12,
        "lr": 1e-3,
        "loss": 1.0,
        "self": 0.4,
        "cross": 0.6,
        "retrieval": 0.6,
        "tau": 0.3,
        "both": 0.8,
    },
]


@pytest.fixture
def curves_of(tmp_path: Path):
    """curves_of(text, select): the curves of a run whose metrics.jsonl holds this text."""

    def read(text, select="retrieval"):
        (tmp_path / "metrics.jsonl").write_text(text)
        settings = {"settings": {"select": select}} if select else {}
        return read_curves(run_in(tmp_path, settings))

    return read


def run_in(folder, training):
    texts = dict.fromkeys(("dataset", "encoder", "encoder_folder", "recipe", "untrained_sha256"), "x")
    return RunRecord(name="r", folder=folder, column="merged/0.3", seed=0, training=training, **texts)


def lines(records):
    return "".join(json.dumps(record) + "\n" for record in records)


def test_losses_and_validation_apart_each_at_its_epochs(curves_of):
    curves = curves_of(lines(RECORDS))
    assert [curve.name for curve in curves.losses] == ["loss", "self", "cross"]
    assert curves.losses[0] == Curve("loss", (1, 2, 3), (3.0, 2.0, 1.0))
    assert [curve.name for curve in curves.validation] == ["retrieval", "trimmed", "both", "tau"]
    assert curves.validation[0] == Curve("retrieval", (0, 2, 3), (0.9, 0.6, 0.6))


@pytest.mark.parametrize(("select", "kept"), [("retrieval", 2), ("both", 3), ("tau", 3), ("last", None), (None, None)])
def test_the_kept_epoch_is_the_first_best_of_what_chose(curves_of, select, kept):
    assert curves_of(lines(RECORDS), select).kept_epoch == kept


def test_without_labels_tau_chose(curves_of):
    unlabeled = [{name: value for name, value in one.items() if name not in ("retrieval", "both")} for one in RECORDS]
    assert curves_of(lines(unlabeled)).kept_epoch == 3


def test_without_validation_nothing_chose(curves_of):
    curves = curves_of(lines(RECORDS[1:2]))
    assert (curves.validation, curves.kept_epoch) == ((), None)


@pytest.mark.slow
def test_the_kept_epoch_is_that_of_the_run(whole_project, content):
    validation = json.loads((whole_project.run / "config.json").read_text())["training"]["validation"]
    curve = next(curve for curve in content.curves.validation if curve.name == "retrieval")
    assert curve.values[curve.epochs.index(content.curves.kept_epoch)] == validation["retrieval"]
    assert [curve.name for curve in content.curves.losses] == ["loss", "self", "cross"]
    assert content.curves.losses[0].epochs == (1, 2, 3)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[" * 100_000,
        "[]\n",
        '{"epoch": "1"}\n',
        '{"epoch": 1, "loss": NaN}\n',
        '{"epoch": 1, "loss": null}\n',
        '{"epoch": 1, "loss": "<script>"}\n',
        lines(RECORDS)[:-9],
    ],
)
def test_a_damaged_file_is_a_reason(curves_of, text):
    curves = curves_of(text)
    assert isinstance(curves, Unavailable)
    assert curves.reason.startswith("metrics.jsonl is damaged")


def test_no_file_and_bytes_that_are_no_text_are_reasons(curves_of, tmp_path):
    curves_of("")
    run = run_in(tmp_path, {})
    (tmp_path / "metrics.jsonl").write_bytes(b"\xff\xfe")
    assert "damaged" in read_curves(run).reason
    (tmp_path / "metrics.jsonl").unlink()
    assert read_curves(run) == Unavailable("the run has no metrics.jsonl")
