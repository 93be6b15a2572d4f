"""byov-sweep --cluster: files as of one run after another, whatever dies on the way."""

import json
import os
import signal
import time
from importlib.util import find_spec
from pathlib import Path

import pytest
from tests.ray_processes import can_hide_folders, descendants

from byov.cluster.grids import plan_runs, read_grid
from byov.cluster.run_task import Folders
from byov.cluster.sweep import sweep

pytestmark = pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed")

EPOCHS = 60  # to have time to kill something
NAMES = ["toy-paper-r0.3-tiny-s0", "toy-paper-r0.3-tiny-s1"]


@pytest.fixture(scope="module")
def reference(tmp_path_factory, make_cache, tiny, inline_worker):
    """A folder with features, a grid of two runs, and the runs as trained in this process."""
    root = tmp_path_factory.mktemp("reference")
    make_cache(root / "features")
    settings = tiny | {"epochs": EPOCHS, "validate-every": EPOCHS, "seed": [0, 1]}
    lines = [f"{key} = {json.dumps(value)}" for key, value in settings.items()]
    lines += ["[evaluation]", 'tasks = ["retrieval"]', 'protocol = "standard"', "untrained = false"]
    (root / "grid.toml").write_text("\n".join(lines) + "\n")
    folders = Folders(root / "features", root / "runs")
    runs = plan_runs([read_grid(root / "grid.toml")], folders.features)
    result = sweep(runs, folders, [inline_worker()], device="cpu")
    assert [(status.name, status.state) for status in result.runs] == [(name, "finished") for name in NAMES]
    return root


@pytest.fixture
def start(ray, reference, tmp_path):
    """start(*options): byov-sweep with runs in tmp_path/runs."""
    folders = ("--features-dir", reference / "features", "--runs-dir", tmp_path / "runs", "--json")
    return lambda *options: ray.start("byov-sweep", reference / "grid.toml", *options, *folders, cwd=tmp_path)


def wait_for_epochs(process, run):
    """Wait until a run has trained for some epochs."""
    metrics = run / "metrics.jsonl"
    while not metrics.exists() or len(metrics.read_text().splitlines()) < 15:
        assert process.poll() is None, f"ended early: {process.communicate()}"
        time.sleep(0.005)
    assert not (run / "model-last.safetensors").exists(), "too late"


def check_finished(process, reference, tmp_path, contents):
    out, err = process.communicate(timeout=600)
    assert process.returncode == 0, err
    assert [run["state"] for run in json.loads(out)["runs"]] == ["finished"] * 2
    assert contents(tmp_path / "runs") == contents(reference / "runs")
    return err


@pytest.mark.slow
def test_two_workers_write_what_one_process_writes(start, ray, reference, tmp_path, contents):
    check_finished(start("--cluster", "local", "--workers", 2), reference, tmp_path, contents)
    assert ray.all_ended()


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_leaves_checkpoints_and_no_processes(start, ray, reference, tmp_path, contents, number, code):
    process, run = start("--cluster", "local", "--workers", 2), tmp_path / "runs" / NAMES[0]
    wait_for_epochs(process, run)
    process.send_signal(number)
    out, err = process.communicate(timeout=120)
    assert (process.returncode, out) == (code, ""), err
    assert "run the same command to resume" in err
    assert ray.all_ended()
    assert not (run / "model-last.safetensors").exists(), "too late"
    assert list((run / "checkpoint").glob("*.safetensors"))
    assert not list((tmp_path / "runs").glob(".cluster.*"))
    check_finished(start("--workers", 2), reference, tmp_path, contents)


@pytest.mark.long
def test_a_killed_sweep_resumes(start, ray, reference, tmp_path, contents):
    process, run = start("--cluster", "local", "--workers", 2), tmp_path / "runs" / NAMES[0]
    wait_for_epochs(process, run)
    process.kill()
    process.communicate()
    assert ray.all_ended(120)  # the last of Ray's processes ends after a minute
    assert not (run / "model-last.safetensors").exists(), "too late"
    check_finished(start("--cluster", "local", "--workers", 2), reference, tmp_path, contents)


@pytest.mark.long
@pytest.mark.parametrize("lost", ["worker", "machine"])
def test_runs_of_lost_workers_are_resumed(start, machines, reference, tmp_path, contents, lost):
    machines.restore()
    process = start("--cluster", machines.address)
    for name in NAMES:
        wait_for_epochs(process, tmp_path / "runs" / name)
    if lost == "machine":
        machines.kill_machine()
    else:
        for pid in descendants(machines.raylet()):
            if b"ray::_Actor" in Path(f"/proc/{pid}/cmdline").read_bytes():
                os.kill(pid, signal.SIGKILL)
    assert "lost its worker" in check_finished(process, reference, tmp_path, contents)


@pytest.mark.long
@pytest.mark.skipif(not can_hide_folders(), reason="only root can hide folders")
def test_a_machine_without_the_features_is_refused(machines, start, reference, tmp_path):
    machines.restore(hidden=reference / "features")
    process = start("--cluster", machines.address)
    out, err = process.communicate(timeout=120)
    machines.kill_machine()
    assert (process.returncode, out) == (2, "")
    (line,) = err.splitlines()
    assert f"does not see {reference / 'features/toy/manifest.json'}" in line
    assert not (tmp_path / "runs").exists() or list((tmp_path / "runs").iterdir()) == []


def test_an_address_without_a_cluster_is_one_line(start):
    process = start("--cluster", "127.0.0.1:1")
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (2, "")
    assert "cannot connect" in err
    assert err.count("\n") == 1
