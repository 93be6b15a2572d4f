"""Test that `byov-sweep --cluster` writes the same files as a single process, even if workers or
machines die.
"""

import json
import signal
from importlib.util import find_spec

import pytest
from tests.sweeps.tiny_sweeps import (
    NAMES,
    contents,
    make_folders,
    states,
    sweep_inline,
    wait_for_epochs,
    write_grid,
)

from byov.sweeps.grids import read_grid

pytestmark = pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed")

EPOCHS = 90  # enough that a process can be killed during training


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """Folder with features, a grid of two runs, and these runs, trained in this process."""
    root = tmp_path_factory.mktemp("reference")
    grid = write_grid(root / "grid.toml", epochs=EPOCHS, seed=[0, 1], **{"validate-every": EPOCHS})
    _, result = sweep_inline([read_grid(grid)], make_folders(root))
    assert states(result) == ["finished"] * 2
    return root


@pytest.fixture
def start(ray, reference, tmp_path):
    """Return a function that starts byov-sweep with runs in tmp_path/runs."""
    folders = ("--features-dir", reference / "features", "--runs-dir", tmp_path / "runs", "--json")
    return lambda *options: ray.start(
        "byov-sweep", reference / "grid.toml", *options, *folders, cwd=tmp_path
    )


@pytest.fixture
def check_finished(reference, tmp_path):
    """Return a function that waits for a sweep, compares its runs with the reference, and returns
    its messages.
    """

    def check(process):
        out, err = process.communicate(timeout=600)
        assert process.returncode == 0, err
        assert [run["state"] for run in json.loads(out)["runs"]] == ["finished"] * 2
        assert contents(tmp_path / "runs") == contents(reference / "runs")
        return err

    return check


@pytest.mark.parametrize(
    ("number", "code", "resumed_on"),
    [
        pytest.param(signal.SIGINT, 130, ("--cluster", "local"), marks=pytest.mark.slow),
        pytest.param(signal.SIGTERM, 143, (), marks=pytest.mark.long),
    ],
)
def test_stopped_runs_resume_on_ray_or_in_local_processes(
    start, ray, tmp_path, check_finished, number, code, resumed_on
):
    process = start("--cluster", "local", "--workers", 2)
    run = tmp_path / "runs" / NAMES[0]
    wait_for_epochs(process, run, 15)
    process.send_signal(number)
    out, err = process.communicate(timeout=120)
    assert (process.returncode, out) == (code, ""), err
    assert "run the same command to resume" in err
    assert ray.all_ended()
    assert not (run / "model-last.safetensors").exists(), "too late"
    assert list((run / "checkpoint").glob("*.safetensors"))
    assert not list((tmp_path / "runs").glob(".cluster.*"))
    check_finished(start("--workers", 2, *resumed_on))
    assert ray.all_ended()


@pytest.mark.long
def test_runs_of_a_lost_machine_are_resumed(start, machines, tmp_path, check_finished):
    machines.restore()
    process = start("--cluster", machines.address)
    for name in NAMES:
        wait_for_epochs(process, tmp_path / "runs" / name, 15)
    machines.kill_machine()
    assert "lost its worker" in check_finished(process)
