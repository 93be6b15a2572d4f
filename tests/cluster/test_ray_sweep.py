"""byov-sweep --cluster: the bits of one run after another, whoever is lost on the way."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.ray_processes import IMPATIENT, RayProcesses, TwoMachines, can_hide, children

from byov.cluster.grids import read_grid
from byov.cluster.run_work import Folders
from byov.cluster.sweep import sweep, swept_runs

pytest.importorskip("ray")

COMMAND = str(Path(sys.executable).parent / "byov-sweep")
LONG = 60  # epochs, so that there is time to be lost in
NAMES = ["toy-paper-r0.3-tiny-s0", "toy-paper-r0.3-tiny-s1"]


@pytest.fixture(scope="module")
def ray():
    processes = RayProcesses()
    yield processes
    processes.close()


@pytest.fixture(scope="module")
def machines(ray):
    ray.environment |= IMPATIENT | {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "b" * 32}
    two = TwoMachines(ray)
    yield two
    two.close()


@pytest.fixture(scope="module")
def whole(tmp_path_factory, make_cache, tiny, here):
    """Features, a grid of two runs, and those runs made one after another; only to look at."""
    root = tmp_path_factory.mktemp("whole")
    make_cache(root / "features")
    settings = tiny | {"epochs": LONG, "validate-every": LONG, "seed": [0, 1]}
    lines = [f"{key} = {json.dumps(value)}" for key, value in settings.items()]
    lines += ["[evaluation]", 'tasks = ["retrieval"]', 'protocol = "standard"', "untrained = false"]
    (root / "grid.toml").write_text("\n".join(lines) + "\n")
    folders = Folders(root / "features", root / "runs")
    result = sweep(swept_runs([read_grid(root / "grid.toml")], folders.features), folders, here(), device="cpu")
    assert [(one.name, one.state) for one in result.runs] == [(name, "finished") for name in NAMES]
    return root


@pytest.fixture
def start(ray, whole, tmp_path):
    """start(*options): the command, with runs in tmp_path/runs."""
    started = []

    def start(*options):
        places = ("--features-dir", whole / "features", "--runs-dir", tmp_path / "runs", "--json")
        words = [COMMAND, str(whole / "grid.toml"), *map(str, (*options, *places))]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        started.append(subprocess.Popen(words, **pipes, env=ray.environment, cwd=tmp_path))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def in_training(process, run):
    """Wait until a run has done some epochs; the process that trains it."""
    metrics = run / "metrics.jsonl"
    while not metrics.exists() or len(metrics.read_text().splitlines()) < 15:
        assert process.poll() is None, f"it ended before: {process.communicate()}"
        time.sleep(0.005)
    assert not (run / "model-last.safetensors").exists(), "it was too late"


def ends_whole(process, whole, tmp_path, contents):
    out, err = process.communicate(timeout=600)
    assert process.returncode == 0, err
    assert [one["state"] for one in json.loads(out)["runs"]] == ["finished"] * 2
    assert contents(tmp_path / "runs") == contents(whole / "runs")
    return err


@pytest.mark.slow
def test_two_workers_give_what_one_run_after_another_gives(start, ray, whole, tmp_path, contents):
    err = ends_whole(start("--cluster", "local", "--workers", 2), whole, tmp_path, contents)
    assert err.splitlines()[:2] == [
        "1 machine of a Ray cluster",
        "2 runs: 0 finished before, 0 failed before, 2 to do",
    ]
    assert ray.all_gone()


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_leaves_checkpoints_and_the_same_command_goes_on(start, ray, whole, tmp_path, contents, number, code):
    stopped = start("--cluster", "local", "--workers", 2)
    in_training(stopped, tmp_path / "runs" / NAMES[0])
    stopped.send_signal(number)
    out, err = stopped.communicate(timeout=120)
    assert (stopped.returncode, out) == (code, ""), err
    assert err.splitlines()[-2:] == ["the sweep is stopped; the same command goes on with it", "interrupted"]
    assert ray.all_gone()
    run = tmp_path / "runs" / NAMES[0]
    assert not (run / "model-last.safetensors").exists(), "it was too late"
    assert list((run / "checkpoint").glob("*.safetensors"))
    assert not list((tmp_path / "runs").glob(".cluster.*"))
    ends_whole(start("--workers", 2), whole, tmp_path, contents)


@pytest.mark.long
def test_after_the_drivers_death_the_same_command_goes_on(start, ray, whole, tmp_path, contents):
    killed = start("--cluster", "local", "--workers", 2)
    in_training(killed, tmp_path / "runs" / NAMES[0])
    killed.kill()
    killed.communicate()
    assert ray.all_gone(120)  # the last of Ray's notice it after a minute
    assert not (tmp_path / "runs" / NAMES[0] / "model-last.safetensors").exists(), "it was too late"
    ends_whole(start("--cluster", "local", "--workers", 2), whole, tmp_path, contents)


@pytest.mark.long
@pytest.mark.parametrize("lost", ["workers", "machine"])
def test_runs_of_what_is_lost_are_gone_on_with(start, machines, whole, tmp_path, contents, lost):
    machines.restore()
    process = start("--cluster", machines.address)
    for name in NAMES:
        in_training(process, tmp_path / "runs" / name)
    if lost == "machine":
        machines.kill_machine()
    else:
        for pid in children(machines.raylet()):
            if b"ray::do_work" in Path(f"/proc/{pid}/cmdline").read_bytes():
                os.kill(pid, signal.SIGKILL)
    assert "its worker is lost" in ends_whole(process, whole, tmp_path, contents)


@pytest.mark.long
@pytest.mark.skipif(not can_hide(), reason="folders can be hidden by root only")
def test_a_folder_that_a_machine_does_not_see_is_said_before_anything_is_done(machines, start, whole, tmp_path):
    """The other machine has its own, empty one in the place of the features."""
    machines.restore(hidden=whole / "features")
    ran = start("--cluster", machines.address)
    out, err = ran.communicate(timeout=120)
    machines.kill_machine()
    assert (ran.returncode, out) == (2, "")
    (line,) = err.splitlines()
    assert line.startswith("error: the worker on ")
    assert line.endswith(f"cannot work: {whole / 'features/toy/manifest.json'} is not there")
    assert not (tmp_path / "runs").exists() or list((tmp_path / "runs").iterdir()) == []


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--cpus-per-worker", 2), "--cpus-per-worker needs --cluster"),
        (("--cluster", "somewhere"), "expected local, auto or HOST:PORT"),
        (("--cluster", "local", "--device", "cuda"), "--gpus-per-worker"),
        (("--cluster", "127.0.0.1:1"), "nobody answers there"),
    ],
)
def test_mistakes_are_one_line(start, options, said):
    process = start(*options)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (2, "")
    assert said in err
    assert err.count("\n") == 1
