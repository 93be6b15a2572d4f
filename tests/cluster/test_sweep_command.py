"""byov-sweep as it is typed: its processes, its messages, its exit codes, and Ctrl-C."""

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from byov.cli.sweep import main
from byov.cluster.grids import read_grid
from byov.cluster.run_work import Folders
from byov.cluster.sweep import sweep, swept_runs

QUICK = {"tasks": ["retrieval"], "protocol": "standard", "untrained": False}
LONG = 30  # epochs, so that there is time to be stopped in
COMMAND = "from byov.cli.sweep import main; main()"


def toml(settings, runs=()):
    tables = {key: value for key, value in settings.items() if isinstance(value, dict)}
    lines = [f"{key} = {json.dumps(value)}" for key, value in settings.items() if key not in tables]
    for heading, table in (
        *((f"[{name}]", table) for name, table in tables.items()),
        *(("[[runs]]", run) for run in runs),
    ):
        lines += [heading, *(f"{key} = {json.dumps(value)}" for key, value in table.items())]
    return "\n".join(lines) + "\n"


@pytest.fixture
def grid(tmp_path, tiny):
    """grid(**settings): the file of a grid of tiny runs."""

    def write(runs=(), **settings):
        path = tmp_path / "grid.toml"
        path.write_text(toml(tiny | {"evaluation": QUICK} | settings, runs))
        return path

    return write


@pytest.fixture
def byov_sweep(call, folders):
    """byov_sweep(*arguments): in this process; what it trains is trained in others."""
    places = ("--runs-dir", folders.runs, "--features-dir", folders.features)
    return lambda *arguments: call(main, "byov-sweep", *arguments, *places)


@pytest.fixture
def start_sweep(folders, clean_environment):
    """start_sweep(*arguments): in a process of its own, in a group of its own."""
    started = []

    def start(*arguments):
        places = ("--runs-dir", folders.runs, "--features-dir", folders.features, "--workers", "1")
        words = [sys.executable, "-c", COMMAND, *map(str, (*arguments, *places))]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        started.append(subprocess.Popen(words, **pipes, text=True, env=clean_environment, start_new_session=True))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def in_training(process, run: Path):
    """Wait until a run has done some epochs."""
    metrics = run / "metrics.jsonl"
    while not metrics.exists() or len(metrics.read_text().splitlines()) < 3:
        with suppress(subprocess.TimeoutExpired):
            process.wait(0.005)
            pytest.fail(f"it ended before: {process.communicate()}")


@pytest.mark.slow
def test_two_at_a_time_give_what_one_after_another_gives(byov_sweep, grid, folders, contents, here, tmp_path):
    """And one that fails is told of, and does not stop the others."""
    path = grid(runs=[{"lr": 1e30}, {"seed": [0, 1]}])
    ran = byov_sweep(path, "--workers", 2, "--out", tmp_path / "out", "--json")
    assert ran.code == 1, ran
    assert [one["state"] for one in ran.json["runs"]] == ["failed", "finished", "finished"]
    lines = ran.err.splitlines()
    assert lines[0] == "3 runs: 0 finished before, 0 failed before, 3 to do"
    assert sum(line.startswith("[") for line in lines) == 3
    assert lines[-1] == "1 run of 3 failed; --retry tries them again"
    assert "±" in (tmp_path / "out/results.md").read_text()
    assert json.loads((tmp_path / "out/results.json").read_text()) == ran.json
    alone = Folders(folders.features, tmp_path / "alone")
    swept = swept_runs([read_grid(path)], folders.features)
    sweep(swept, alone, here(), device="cpu")
    assert contents(folders.runs) == contents(alone.runs)


def test_a_dry_run_shows_the_runs_and_makes_nothing(byov_sweep, grid, folders):
    ran = byov_sweep(grid(seed=[0, 1]), "--dry-run")
    assert ran.code == 0
    assert ran.out.splitlines() == ["toy-paper-r0.3-tiny-s0: to train", "toy-paper-r0.3-tiny-s1: to train"]
    assert "2 runs, 2 of them not finished" in ran.err
    assert not folders.runs.exists()
    shown = byov_sweep(grid(seed=[0, 1]), "--dry-run", "--json").json
    assert [(one["run"], one["settings"]["seed"]) for one in shown] == [
        ("toy-paper-r0.3-tiny-s0", 0),
        ("toy-paper-r0.3-tiny-s1", 1),
    ]


def test_mistakes_are_one_line_and_exit_code_2(byov_sweep, grid, tmp_path):
    for path, said in ((grid(seed=[]), "an empty list"), (tmp_path / "none.toml", "no such file")):
        ran = byov_sweep(path)
        assert (ran.code, ran.out) == (2, "")
        (line,) = ran.err.splitlines()
        assert line.startswith("error: ")
        assert said in line


@pytest.mark.slow
def test_ctrl_c_leaves_what_is_gone_on_with_to_the_same_end(start_sweep, grid, folders, contents, here, tmp_path):
    path = grid(epochs=LONG, **{"validate-every": LONG})
    run = folders.runs / "toy-paper-r0.3-tiny-s0"
    stopped = start_sweep(path)
    in_training(stopped, run)
    os.killpg(stopped.pid, signal.SIGINT)  # as a terminal does: to all of the group
    out, err = stopped.communicate()
    assert (stopped.returncode, out) == (130, ""), err
    assert err.splitlines()[-2:] == ["the sweep is stopped; the same command goes on with it", "interrupted"]
    assert not (run / "model-last.safetensors").exists()
    assert list((run / "checkpoint").glob("*.safetensors"))
    killed = start_sweep(path)
    in_training(killed, run)
    killed.kill()
    killed.communicate()
    swept = swept_runs([read_grid(path)], folders.features)
    alone = Folders(folders.features, tmp_path / "alone")
    for places in (folders, alone):
        assert [one.state for one in sweep(swept, places, here(), device="cpu").runs] == ["finished"]
    assert contents(folders.runs) == contents(alone.runs)
