"""Tests of byov-sweep in local processes: output, exit codes and Ctrl-C."""

import json
import os
import signal

import pytest
from tests.sweeps.tiny_sweeps import (
    NAMES,
    contents,
    states,
    sweep_inline,
    wait_for_epochs,
    write_grid,
)

from byov.cli.sweep import main
from byov.sweeps.grids import Folders, read_grid

COMMAND = "from byov.cli.sweep import main; main()"


@pytest.fixture
def byov_sweep(call, folders):
    """Return a function that runs byov-sweep in this process, with workers in other processes."""
    options = ("--runs-dir", folders.runs, "--features-dir", folders.features)
    return lambda *arguments: call(main, "byov-sweep", *arguments, *options)


@pytest.fixture
def start_sweep(folders, start_python):
    """Return a function that starts byov-sweep with one worker in a new process group."""
    options = ("--runs-dir", folders.runs, "--features-dir", folders.features, "--workers", "1")
    return lambda path: start_python(COMMAND, path, *options)


@pytest.mark.slow
def test_two_workers_write_what_one_process_writes(byov_sweep, folders, tmp_path):
    path = write_grid(tmp_path / "grid.toml", runs=[{"lr": 1e30}, {"seed": [0, 1]}])
    ran = byov_sweep(path, "--workers", 2, "--out", tmp_path / "out", "--json")
    assert ran.code == 1, ran  # the first run diverges
    assert [run["state"] for run in ran.json["runs"]] == ["failed", "finished", "finished"]
    assert sum(line.startswith("[") for line in ran.err.splitlines()) == 3
    assert "±" in (tmp_path / "out/results.md").read_text()
    assert json.loads((tmp_path / "out/results.json").read_text()) == ran.json
    inline = Folders(folders.features, tmp_path / "inline")
    sweep_inline([read_grid(path)], inline)
    assert contents(folders.runs) == contents(inline.runs)


def test_a_dry_run_lists_the_runs_and_writes_nothing(byov_sweep, folders, tmp_path):
    path = write_grid(tmp_path / "grid.toml", seed=[0, 1])
    ran = byov_sweep("run", path, "--dry-run")
    assert ran.code == 0
    assert [line.partition(" (about ")[0] for line in ran.out.splitlines()] == [
        f"{name}: to train" for name in NAMES
    ]
    assert "expected time: about " in ran.err
    assert not folders.runs.exists()
    shown = byov_sweep("--dry-run", path, "--json").json
    assert [(run["run"], run["settings"]["seed"]) for run in shown] == [
        (NAMES[0], 0),
        (NAMES[1], 1),
    ]


def test_a_dry_run_says_first_what_is_missing(byov_sweep):
    ran = byov_sweep("paper", "--dry-run", "--tables", "table-1", "--dataset", "pour_milk")
    assert (ran.code, ran.out) == (0, "")
    runs, can_run, missing, *_ = ran.err.splitlines()
    assert "cannot run" in runs
    assert can_run == "can run: nothing"
    assert missing.startswith("features are missing: openai/clip-vit-base-patch16 of pour_milk")


@pytest.mark.parametrize(
    ("settings", "options"),
    [({"seed": []}, ()), ({}, ("--seeds", 2)), ({}, ("--small",)), ({}, ("b.toml",))],
)
def test_wrong_usage_is_one_line_and_exit_code_2(byov_sweep, tmp_path, settings, options):
    ran = byov_sweep(write_grid(tmp_path / "grid.toml", **settings), *options)
    assert (ran.code, ran.out) == (2, "")
    (line,) = ran.err.splitlines()
    assert line.startswith("error: ")


@pytest.mark.slow
def test_interrupted_and_killed_sweeps_resume_to_the_same_files(start_sweep, folders, tmp_path):
    path = write_grid(tmp_path / "grid.toml", epochs=30, **{"validate-every": 30})
    run = folders.runs / NAMES[0]
    interrupted = start_sweep(path)
    wait_for_epochs(interrupted, run, 3)
    os.killpg(interrupted.pid, signal.SIGINT)  # like a terminal, signal the whole group
    out, err = interrupted.communicate()
    assert (interrupted.returncode, out) == (130, ""), err
    assert "run the same command to resume" in err
    assert not (run / "model-last.safetensors").exists()
    assert list((run / "checkpoint").glob("*.safetensors"))
    killed = start_sweep(path)
    wait_for_epochs(killed, run, 3)
    killed.kill()
    killed.communicate()
    inline = Folders(folders.features, tmp_path / "inline")
    for place in (folders, inline):
        assert states(sweep_inline([read_grid(path)], place)[1]) == ["finished"]
    assert contents(folders.runs) == contents(inline.runs)
