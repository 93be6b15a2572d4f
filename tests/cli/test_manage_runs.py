"""byov-runs, on runs of which only the texts are there."""

import json
import os

import pytest
from typer.main import get_command

from byov.cache.atomic import exclusive
from byov.cache.runs import read_progress, read_run, size_bytes, unfinished
from byov.cli import train
from byov.cli.manage_runs import main
from byov.cli.option_file import expand
from byov.train.settings import option_name, settings_classes

TRAINING = {
    "dataset": "demo",
    "encoder": "random/tiny",
    "encoder_folder": "random--tiny",
    "column": "merged/0.3",
    "recipe": "paper",
    "seed": 3,
    "untrained_sha256": "ab" * 32,
}


@pytest.fixture
def runs_dir(tmp_path, monkeypatch):
    monkeypatch.setenv("BYOV_RUNS", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "200")
    return tmp_path


@pytest.fixture
def write_run(runs_dir):
    """write_run(name, epochs done, ...): a run of 4 epochs with two checkpoints of 100 bytes."""

    def write(name, done=4, *, age_seconds=0, **settings):
        folder = runs_dir / name
        (folder / "checkpoint").mkdir(parents=True)
        records = [{"epoch": epoch, "step": epoch, "tau": 0.1, "both": 0.9 - epoch / 10} for epoch in range(done + 1)]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
        config = {"settings": {"method": "byov", "epochs": 4, "select": "both", "lr": 0.001} | settings}
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


def test_runs_are_listed_the_newest_first(byov_runs, write_run):
    write_run("done", age_seconds=10)
    write_run("half", 2)
    ran = byov_runs()
    assert ran.code == 0, ran.err
    heading, half, done = ran.out.splitlines()
    assert heading.split() == ["run", "method", "recipe", "dataset", "epoch", "state", "best", "val", "size"]
    assert half.split()[:8] == ["half", "byov", "paper", "demo", "2", "of", "4", "stopped"]
    assert half.split()[8:10] == ["both", "0.8000"]  # the untrained model is no candidate
    assert done.split()[7] == "finished"
    first, second = byov_runs("ls", "--json").json
    assert byov_runs("--json").json == [first, second]
    assert (first["run"], first["epoch"], first["epochs"], first["best"]) == ("half", 2, 4, 0.8)
    assert second["bytes"] > 200
    assert (first["method"], first["recipe"]) == ("byov", "paper")


def test_a_run_of_another_method_has_no_recipe(byov_runs, write_run):
    write_run("other", method="tcc")
    (run,) = byov_runs("--json").json
    assert (run["method"], run["recipe"]) == ("tcc", None)


def test_a_run_that_cannot_be_read_is_told_and_the_others_listed(byov_runs, write_run, runs_dir):
    write_run("good")
    (runs_dir / "bad").mkdir()
    (runs_dir / "bad" / "config.json").write_text("{}")
    ran = byov_runs("ls")
    assert "bad: not listed" in ran.err
    assert "good" in ran.out


def test_no_runs(byov_runs, runs_dir):
    assert byov_runs().out == f"{runs_dir} holds no runs; make one with byov-train --ratio 0.3\n"
    assert byov_runs("--json").json == []


def test_two_runs_are_compared_by_what_differs(byov_runs, write_run):
    write_run("a")
    write_run("b", 2, lr=0.01, heads=8)
    assert byov_runs("compare", "a", "b", "--json").json == {
        "runs": ["a", "b"],
        "different": {"lr": [0.001, 0.01], "heads": [None, 8], "epochs done": [4, 2]},
    }
    lines = byov_runs("compare", "a", "b").out.splitlines()
    assert [line.split() for line in lines] == [
        ["a", "b"],
        ["epochs", "done", "4", "2"],
        ["lr", "0.001", "0.01"],
        ["heads", "-", "8"],
    ]
    assert "have the same settings" in byov_runs("compare", "a", "a").out
    missing = byov_runs("compare", "a", "c")
    assert (missing.code, "no such run; choose one of" in missing.err) == (2, True)


def test_runs_of_other_labels_differ_in_their_data_and_in_what_selected_them(byov_runs, write_run):
    for name, digest, metric in (("a", "ab" * 32, "both"), ("b", "cd" * 32, "tau")):
        config = write_run(name) / "config.json"
        config.write_text(
            json.dumps(json.loads(config.read_text()) | {"training": TRAINING | {"videos_sha256": digest}})
        )
        (config.parent / "metrics.jsonl").write_text(json.dumps({"epoch": 4, metric: 0.5}))
    assert byov_runs("compare", "a", "b", "--json").json["different"] == {
        "train and val videos, features, labels": ["abababababab", "cdcdcdcdcdcd"],
        "selected by": ["both", "tau"],
    }


def test_settings_are_printed_as_a_file_for_another_training(byov_runs, write_run, tmp_path):
    write_run("a", crop=[0.5, 1.0], self_view=True, attention_window=None, norm="before")
    (tmp_path / "a.toml").write_text(byov_runs("settings", "a").out)
    words = expand(["--config", str(tmp_path / "a.toml"), "--lr", "1"], get_command(train.app).params)
    assert words == [
        *("--dataset", "demo", "--encoder", "random/tiny", "--ratio", "0.3", "--method", "byov", "--epochs", "4"),
        *("--select", "both", "--crop", "0.5,1.0", "--self", "--lr", "1"),
    ]


def test_an_encoder_in_a_folder_of_another_name_is_printed_by_its_folder(byov_runs, write_run):
    config = write_run("a") / "config.json"
    config.write_text(config.read_text().replace("random--tiny", "copied"))
    assert 'encoder = "copied"\n' in byov_runs("settings", "a").out


def test_a_run_of_no_ratio_is_one_line(byov_runs, write_run):
    config = write_run("a") / "config.json"
    config.write_text(config.read_text().replace("merged/0.3", "merged/all"))
    ran = byov_runs("settings", "a")
    assert (ran.code, ran.err) == (2, f"error: {config}: its column 'merged/all' is none of a ratio\n")


def test_every_setting_that_is_described_is_an_option():
    options = {name for option in get_command(train.app).params for name in option.opts}
    for kind in settings_classes().values():
        for name in (name for name, field in kind.model_fields.items() if field.description):
            assert f"--{option_name(name)}" in options


@pytest.mark.parametrize("how", ["delete", "prune"])
@pytest.mark.parametrize(("answer", "code"), [("n\n", 1), ("", 2)], ids=["no", "none"])
def test_without_a_yes_nothing_is_deleted(byov_runs, write_run, monkeypatch, tmp_path, how, answer, code):
    """To say no is no mistake; to give no answer is one."""
    folder = write_run("a")
    (tmp_path / "answer").write_text(answer)
    with (tmp_path / "answer").open() as file:
        monkeypatch.setattr("sys.stdin", file)
        ran = byov_runs(how, "a")
    assert (ran.code, "nothing was deleted" in ran.err, "error:" in ran.err) == (code, True, code == 2)
    assert len(list((folder / "checkpoint").iterdir())) == 2


def test_runs_are_deleted_by_name(byov_runs, write_run):
    folders = [write_run(name) for name in ("a", "b")]
    ran = byov_runs("delete", "a", "--yes")
    assert (ran.code, ran.out) == (0, f"{folders[0]}: deleted\n")
    assert [folder.exists() for folder in folders] == [False, True]
    assert byov_runs("delete", "../b", "--yes").code == 2


def test_a_run_in_training_is_said_to_be_and_not_deleted(byov_runs, write_run, runs_dir):
    folder = write_run("busy", 1)
    with exclusive(folder / ".lock"):
        assert read_progress(read_run(runs_dir, "busy")).said == "in training, at epoch 1 of 4"
        assert byov_runs("delete", "busy", "--yes").code == 2
    assert folder.exists()
    assert read_progress(read_run(runs_dir, "busy")).said == "stopped at epoch 1 of 4"


def test_checkpoints_of_finished_runs_are_pruned_and_no_others(byov_runs, write_run):
    done, half = write_run("done"), write_run("half", 2)
    assert "half: kept, it is stopped at epoch 2 of 4" in byov_runs("prune", "half", "--yes").err
    assert byov_runs("prune", "--yes").out == "done: 200 B freed\n"
    assert list((done / "checkpoint").iterdir()) == []
    assert (done / "model-last.safetensors").exists()
    assert len(list((half / "checkpoint").iterdir())) == 2
    assert byov_runs("prune", "--yes").out == "nothing to prune: no finished run has checkpoints\n"


def test_an_unfinished_run_says_where_it_stopped(write_run, runs_dir):
    folder = write_run("half", 2)
    write_run("done")
    assert unfinished(read_run(runs_dir, "half")) == (  # it has no model yet
        "half: unfinished, stopped at epoch 2 of 4; go on with byov-train --run half --resume"
    )
    (folder / "model.safetensors").write_bytes(b"")
    assert unfinished(read_run(runs_dir, "half")) == (
        "half: unfinished, stopped at epoch 2 of 4: its model is the best so far; "
        "go on with byov-train --run half --resume"
    )
    assert unfinished(read_run(runs_dir, "done")) is None


@pytest.mark.parametrize("text", ["", "not JSON\n", "[1]\n", '{"epoch": "x"}\n', f'{{"epoch": {10**400}}}\n', "\xff"])
def test_a_run_whose_metrics_are_damaged_says_nothing_of_its_epochs(text, write_run, runs_dir):
    folder = write_run("half", 2)
    (folder / "metrics.jsonl").write_bytes(text.encode("latin-1"))
    run = read_run(runs_dir, "half")
    assert (read_progress(run).epoch, read_progress(run).best, unfinished(run)) == (None, None, None)


def test_scores_that_are_no_numbers_are_left_out(byov_runs, write_run):
    folder = write_run("half", 2, select=["both"])
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(f'{{"epoch": 3, "tau": {10**400}}}\n{{"epoch": 3, "tau": NaN}}\n{{"epoch": 3, "tau": Infinity}}\n')
    ran = byov_runs()
    assert (ran.code, "3 of 4" in ran.out, "tau 0.1000" in ran.out) == (0, True, True), ran


def test_a_run_that_has_its_last_model_still_to_write_is_not_finished(byov_runs, write_run, runs_dir):
    """Killed right after its last epoch; without its checkpoint it would have to be trained anew."""
    folder = write_run("late")
    (folder / "model-last.safetensors").unlink()
    assert read_progress(read_run(runs_dir, "late")).said == "stopped at epoch 4 of 4"
    assert byov_runs("prune", "--yes").out == "nothing to prune: no finished run has checkpoints\n"
    for path in (folder / "checkpoint").iterdir():
        path.unlink()
    assert read_progress(read_run(runs_dir, "late")).state == "finished"


def test_a_file_that_is_gone_when_it_is_looked_at_does_not_disturb(write_run, monkeypatch):
    """As temporary files of a run in training are."""
    folder, walk = write_run("busy", 2), os.walk
    size = size_bytes(folder)
    partial = folder / ".metrics.jsonl.partial"
    partial.write_text("half")

    def slow_walk(top):
        for place, folders, names in walk(top):
            partial.unlink(missing_ok=True)
            yield place, folders, names

    monkeypatch.setattr(os, "walk", slow_walk)
    assert size_bytes(folder) == size
    assert not partial.exists()
