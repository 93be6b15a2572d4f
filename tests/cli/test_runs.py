"""Tests of byov-runs, on run folders with empty model files."""

import io
import json
import os
import tomllib

import pytest
from tests.factories import make_training

from byov.cache.atomic import exclusive
from byov.cache.digests import file_sha256
from byov.cache.runs import read_run, size_bytes, summarize_run, unfinished_text
from byov.cli.runs import main
from byov.cli.terminal import note_unfinished

TRAINING = make_training(encoder="random/tiny", encoder_folder="random--tiny")


@pytest.fixture
def runs_dir(tmp_path, monkeypatch):
    monkeypatch.setenv("BYOV_RUNS", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "200")
    return tmp_path


@pytest.fixture
def write_run(runs_dir):
    """Write a run that stopped after `done` of 4 epochs, with two checkpoints of 100 bytes."""

    def write(name, done=4, *, age_seconds=0, **settings):
        folder = runs_dir / name
        (folder / "checkpoint").mkdir(parents=True)
        records = [
            {"epoch": epoch, "step": epoch, "tau": 0.1, "both": 0.9 - epoch / 10}
            for epoch in range(done + 1)
        ]
        (folder / "metrics.jsonl").write_text(
            "".join(json.dumps(record) + "\n" for record in records)
        )
        config = {
            "settings": {"method": "byov", "epochs": 4, "select": "both", "lr": 0.001} | settings
        }
        (folder / "config.json").write_text(json.dumps(config | {"training": TRAINING}))
        os.utime(folder / "config.json", (1_000_000 - age_seconds,) * 2)
        for step in (1, 2):
            (folder / "checkpoint" / f"step-{step:09d}.safetensors").write_bytes(bytes(100))
        if done == 4:
            (folder / "model-last.safetensors").write_bytes(b"")
        return folder

    return write


@pytest.fixture
def byov_runs(call):
    return lambda *arguments: call(main, "byov-runs", *arguments)


def test_runs_are_listed_newest_first(byov_runs, write_run):
    write_run("done", age_seconds=10, method="tcc")
    write_run("half", 2)
    ran = byov_runs()
    assert ran.code == 0, ran.err
    heading, half, done = ran.out.splitlines()
    assert heading.split() == [
        "run",
        "method",
        "recipe",
        "dataset",
        "epoch",
        "state",
        "best",
        "val",
        "size",
    ]
    assert half.split()[:8] == ["half", "byov", "paper", "demo", "2", "of", "4", "stopped"]
    # The score of the untrained model (epoch 0) is ignored.
    assert half.split()[8:10] == ["both", "0.8000"]
    assert done.split()[6] == "finished"  # the recipe is empty, since only byov has recipes
    first, second = byov_runs("ls", "--json").json
    assert byov_runs("--json").json == [first, second]
    assert (first["run"], first["epoch"], first["epochs"], first["best"]) == ("half", 2, 4, 0.8)
    assert [(run["method"], run["recipe"]) for run in (first, second)] == [
        ("byov", "paper"),
        ("tcc", None),
    ]
    assert second["bytes"] > 200


@pytest.mark.parametrize("config", [{}, {"settings": "abc", "training": TRAINING}])
def test_unreadable_run_is_skipped_with_a_note(byov_runs, runs_dir, config):
    (runs_dir / "bad").mkdir()
    (runs_dir / "bad" / "config.json").write_text(json.dumps(config))
    ran = byov_runs("ls")
    assert "bad: skipped" in ran.err
    assert str(runs_dir) in ran.out  # the message that there are no runs names the folder
    assert byov_runs("--json").json == []


def test_compare_shows_what_differs(byov_runs, write_run):
    write_run("a")
    write_run("b", 2, lr=0.01, heads=8)
    assert byov_runs("compare", "a", "b", "--json").json == {
        "runs": ["a", "b"],
        "different": {"epochs done": [4, 2], "lr": [0.001, 0.01], "heads": [None, 8]},
    }
    lines = byov_runs("compare", "a", "b").out.splitlines()
    assert [line.split() for line in lines] == [
        ["a", "b"],
        ["epochs", "done", "4", "2"],
        ["lr", "0.001", "0.01"],
        ["heads", "none", "8"],
    ]
    assert "same settings" in byov_runs("compare", "a", "a").out
    assert byov_runs("compare", "a", "c").code == 2


def test_compare_includes_data_and_selection_metric(byov_runs, write_run):
    for name, digest, metric in (("a", "ab" * 32, "both"), ("b", "cd" * 32, "tau")):
        config = write_run(name) / "config.json"
        config.write_text(config.read_text().replace("ab" * 32, digest))
        (config.parent / "metrics.jsonl").write_text(json.dumps({"epoch": 4, metric: 0.5}))
    assert byov_runs("compare", "a", "b", "--json").json["different"] == {
        "train and val features": ["abababababab", "cdcdcdcdcdcd"],
        "selected by": ["both", "tau"],
    }
    config.write_text(config.read_text().replace('"select": "both"', '"select": "last"'))
    assert byov_runs("compare", "a", "b", "--json").json["different"]["selected by"] == [
        "both",
        "last",
    ]


def test_settings_are_a_config_file_for_train(byov_runs, write_run):
    """Check that keys are option names, and that settings without an option or a value are left
    out.
    """
    config = (
        write_run("a", crop=[0.5, 1.0], self_view=True, attention_window=None, norm="before")
        / "config.json"
    )
    assert tomllib.loads(byov_runs("settings", "a").out) == {
        **{
            "dataset": "demo",
            "encoder": "random/tiny",
            "ratio": 0.3,
            "method": "byov",
            "epochs": 4,
            "lr": 0.001,
        },
        **{"select": "both", "crop": [0.5, 1.0], "self": True},
    }
    # A folder name other than the default.
    config.write_text(config.read_text().replace("random--tiny", "copied"))
    assert tomllib.loads(byov_runs("settings", "a").out)["encoder"] == "copied"


@pytest.mark.parametrize("subcommand", ["delete", "prune"])
@pytest.mark.parametrize("answer", ["n\n", ""], ids=["no", "none"])
def test_nothing_is_deleted_without_confirmation(
    byov_runs, write_run, monkeypatch, subcommand, answer
):
    folder = write_run("a")
    monkeypatch.setattr("sys.stdin", io.StringIO(answer))
    ran = byov_runs(subcommand, "a")
    assert (ran.code, "nothing was changed" in ran.err) == (1, True)
    assert len(list((folder / "checkpoint").iterdir())) == 2


def test_delete(byov_runs, write_run):
    deleted = write_run("a")
    kept = write_run("b")
    assert byov_runs("delete", "a", "--yes").code == 0
    assert not deleted.exists()
    assert kept.exists()
    assert byov_runs("delete", "../b", "--yes").code == 2


def test_running_run_is_not_deleted(byov_runs, write_run, runs_dir):
    folder = write_run("busy", 1)
    with exclusive(folder / ".lock"):
        assert "epoch 1 of 4" in summarize_run(read_run(runs_dir, "busy")).description
        assert "another process is training this run" in byov_runs("delete", "busy", "--yes").err
    assert folder.exists()
    assert summarize_run(read_run(runs_dir, "busy")).state == "stopped"


def test_prune_deletes_checkpoints_of_finished_runs_only(byov_runs, write_run):
    done = write_run("done")
    half = write_run("half", 2)
    assert "half: kept" in byov_runs("prune", "half", "--yes").err
    assert byov_runs("prune", "--yes").out == "done: 200 B freed\n"
    assert list((done / "checkpoint").iterdir()) == []
    assert (done / "model-last.safetensors").exists()
    assert len(list((half / "checkpoint").iterdir())) == 2
    assert "nothing to prune" in byov_runs("prune", "--yes").out


def test_run_without_its_last_model_is_not_finished(byov_runs, write_run, runs_dir):
    """Check that a run killed right after its last epoch keeps its checkpoint."""
    folder = write_run("late")
    (folder / "model-last.safetensors").unlink()
    assert summarize_run(read_run(runs_dir, "late")).state == "stopped"
    assert "nothing to prune" in byov_runs("prune", "--yes").out
    for path in (folder / "checkpoint").iterdir():
        path.unlink()
    assert summarize_run(read_run(runs_dir, "late")).state == "finished"


def test_unfinished_run_is_described_with_how_to_resume(write_run, runs_dir, capsys):
    (write_run("half", 2) / "model.safetensors").write_bytes(b"")
    write_run("done")
    note_unfinished([read_run(runs_dir, name) for name in ("half", "done")])
    (message,) = capsys.readouterr().err.splitlines()
    assert "epoch 2 of 4" in message
    assert "byov-train --run half --resume" in message


@pytest.mark.parametrize(
    "text", ["", "not JSON\n", "[1]\n", '{"epoch": "x"}\n', f'{{"epoch": {10**400}}}\n', "\xff"]
)
def test_unreadable_metrics_have_no_epoch(text, write_run, runs_dir):
    (write_run("half", 2) / "metrics.jsonl").write_bytes(text.encode("latin-1"))
    run = read_run(runs_dir, "half")
    assert (summarize_run(run).epoch, summarize_run(run).best, unfinished_text(run)) == (
        None,
        None,
        None,
    )


def test_numbers_of_changed_metrics_are_not_shown(byov_runs, write_run):
    folder = write_run("done")
    metrics = folder / "metrics.jsonl"
    config = json.loads((folder / "config.json").read_text())
    config["training"]["files_sha256"] = {"metrics.jsonl": file_sha256(metrics)}
    (folder / "config.json").write_text(json.dumps(config))
    assert [(run["epoch"], run["best"]) for run in byov_runs("--json").json] == [(4, 0.8)]
    metrics.write_text(metrics.read_text().replace("0.8", "0.9", 1))
    ran = byov_runs("--json")
    assert [(run["state"], run["epoch"], run["best"]) for run in ran.json] == [
        ("finished", None, None)
    ]
    assert "done: epoch and best score unknown, metrics.jsonl is damaged" in ran.err
    assert "0.9" not in byov_runs().out


def test_non_finite_scores_are_ignored(byov_runs, write_run):
    folder = write_run("half", 2, select=["both"])
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(
            f'{{"epoch": 3, "tau": {10**400}}}\n{{"epoch": 3, "tau": NaN}}\n{{"epoch": 3, "tau": '
            "Infinity}\n"
        )
    ran = byov_runs()
    assert (ran.code, "3 of 4" in ran.out, "tau 0.1000" in ran.out) == (0, True, True), ran


def test_size_ignores_files_that_disappear(write_run, monkeypatch):
    """Check that temporary files that vanish during training are not counted."""
    folder = write_run("busy", 2)
    monkeypatch.setattr(
        os, "walk", lambda top: [(top, [], ["config.json", ".metrics.jsonl.partial"])]
    )
    assert size_bytes(folder) == (folder / "config.json").stat().st_size
