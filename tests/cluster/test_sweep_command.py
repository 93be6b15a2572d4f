"""byov-sweep in local processes: output, exit codes, Ctrl-C."""

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress

import pytest

from byov.cli.sweep import main
from byov.cluster.grids import plan_runs, read_grid
from byov.cluster.run_task import Folders
from byov.cluster.sweep import sweep

NAMES = ["toy-paper-r0.3-tiny-s0", "toy-paper-r0.3-tiny-s1"]
QUICK = {"tasks": ["retrieval"], "protocol": "standard", "untrained": False}
COMMAND = "from byov.cli.sweep import main; main()"


@pytest.fixture
def write_grid(tmp_path, tiny):
    """write_grid(**settings): the path of a grid of tiny runs."""

    def write(runs=(), **settings):
        tables = [("[evaluation]", QUICK), *(("[[runs]]", run) for run in runs)]
        path = tmp_path / "grid.toml"
        with path.open("w") as file:
            for heading, table in (("", tiny | settings), *tables):
                print(heading, *(f"{key} = {json.dumps(value)}" for key, value in table.items()), sep="\n", file=file)
        return path

    return write


@pytest.fixture
def byov_sweep(call, folders):
    """byov_sweep(*arguments): the command in this process, with workers in others."""
    options = ("--runs-dir", folders.runs, "--features-dir", folders.features)
    return lambda *arguments: call(main, "byov-sweep", *arguments, *options)


@pytest.fixture
def start_sweep(folders, clean_environment):
    """start_sweep(path): the command in a process group of its own, with one worker."""
    started = []

    def start(path):
        options = ("--runs-dir", folders.runs, "--features-dir", folders.features, "--workers", "1")
        words = [sys.executable, "-c", COMMAND, *map(str, (path, *options))]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        started.append(subprocess.Popen(words, **pipes, text=True, env=clean_environment, start_new_session=True))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def wait_for_epochs(process, run):
    """Wait until a run has trained for some epochs."""
    metrics = run / "metrics.jsonl"
    while not metrics.exists() or len(metrics.read_text().splitlines()) < 3:
        with suppress(subprocess.TimeoutExpired):
            process.wait(0.005)
            pytest.fail(f"ended early: {process.communicate()}")


def sweep_inline(path, folders, inline_worker):
    runs = plan_runs([read_grid(path)], folders.features)
    return sweep(runs, folders, [inline_worker()], device="cpu")


@pytest.mark.slow
def test_two_workers_write_what_one_process_writes(byov_sweep, write_grid, folders, contents, inline_worker, tmp_path):
    path = write_grid(runs=[{"lr": 1e30}, {"seed": [0, 1]}])
    ran = byov_sweep(path, "--workers", 2, "--out", tmp_path / "out", "--json")
    assert ran.code == 1, ran  # the first run diverges
    assert [run["state"] for run in ran.json["runs"]] == ["failed", "finished", "finished"]
    assert sum(line.startswith("[") for line in ran.err.splitlines()) == 3
    assert "±" in (tmp_path / "out/results.md").read_text()
    assert json.loads((tmp_path / "out/results.json").read_text()) == ran.json
    inline = Folders(folders.features, tmp_path / "inline")
    sweep_inline(path, inline, inline_worker)
    assert contents(folders.runs) == contents(inline.runs)


def test_a_dry_run_lists_the_runs_and_writes_nothing(byov_sweep, write_grid, folders):
    path = write_grid(seed=[0, 1])
    ran = byov_sweep(path, "--dry-run")
    assert ran.code == 0
    assert ran.out.splitlines() == [f"{name}: to train" for name in NAMES]
    assert not folders.runs.exists()
    shown = byov_sweep(path, "--dry-run", "--json").json
    assert [(run["run"], run["settings"]["seed"]) for run in shown] == [(NAMES[0], 0), (NAMES[1], 1)]


def test_an_invalid_grid_is_one_line_and_exit_code_2(byov_sweep, write_grid):
    ran = byov_sweep(write_grid(seed=[]))
    assert (ran.code, ran.out) == (2, "")
    (line,) = ran.err.splitlines()
    assert line.startswith("error: ")


@pytest.mark.slow
def test_interrupted_and_killed_sweeps_resume_to_the_same_files(
    start_sweep, write_grid, folders, contents, inline_worker, tmp_path
):
    path = write_grid(epochs=30, **{"validate-every": 30})
    run = folders.runs / NAMES[0]
    interrupted = start_sweep(path)
    wait_for_epochs(interrupted, run)
    os.killpg(interrupted.pid, signal.SIGINT)  # a terminal signals the whole group
    out, err = interrupted.communicate()
    assert (interrupted.returncode, out) == (130, ""), err
    assert "run the same command to resume" in err
    assert not (run / "model-last.safetensors").exists()
    assert list((run / "checkpoint").glob("*.safetensors"))
    killed = start_sweep(path)
    wait_for_epochs(killed, run)
    killed.kill()
    killed.communicate()
    inline = Folders(folders.features, tmp_path / "inline")
    for place in (folders, inline):
        assert [status.state for status in sweep_inline(path, place, inline_worker).runs] == ["finished"]
    assert contents(folders.runs) == contents(inline.runs)
