"""Workers, raylets and whole machines that are killed in the middle of a video.

Two machines are played by two addresses of the loopback network.
"""

import json
import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.ray_processes import IMPATIENT, TwoMachines, can_hide, children

pytest.importorskip("ray")
pytestmark = pytest.mark.long

LONG = 600  # frames: long enough to be killed in their midst


@pytest.fixture(scope="module")
def machines(ray: Any) -> Iterator[TwoMachines]:
    ray.environment |= IMPATIENT | {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "b" * 32}
    two = TwoMachines(ray)
    yield two
    two.close()


@pytest.fixture(scope="module")
def table(make_videos: Callable[..., Path]) -> Path:
    return make_videos([LONG, LONG, 5, 70, 40])


@pytest.fixture(scope="module")
def reference(
    ray: Any, table: Path, contents: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, bytes]:
    features = tmp_path_factory.mktemp("reference") / "features"
    assert ray.run(table, features).returncode == 0
    return contents(features)


def unfinished(features: Path) -> bool:
    return len(list(features.rglob("[!.]*.h5"))) < 5


def test_ctrl_c_leaves_nothing_running(ray, table, wait_for_work, tmp_path):
    process = ray.start(table, tmp_path / "f", "--cluster", "local", "--workers", 2)
    wait_for_work(process, tmp_path / "f")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, "")
    assert unfinished(tmp_path / "f"), "it was too late"
    assert ray.all_gone()
    assert err.strip().endswith("interrupted; finished videos are kept; run the same command to resume")


@pytest.mark.parametrize("lost", ["worker", "raylet", "machine"])
def test_what_is_lost_in_the_middle_of_a_video_is_done_again(
    ray, machines, table, reference, contents, wait_for_work, tmp_path, lost
):
    machines.restore()
    process = ray.start(table, tmp_path / "f", "--cluster", machines.address, "--json")
    raylet = machines.raylet()
    worker = 0
    while worker not in children(raylet):  # on the machine that is to be lost
        worker = wait_for_work(process, tmp_path / "f")
    if lost == "machine":
        machines.kill_machine()
    else:
        os.kill(worker if lost == "worker" else raylet, signal.SIGKILL)
    out, err = process.communicate(timeout=900)
    assert process.returncode == 0, err
    assert "is lost" in err
    said = json.loads(out)
    assert (said["extracted_videos"], said["failures"]) == (5, {})
    assert contents(tmp_path / "f") == reference


@pytest.mark.skipif(not can_hide(), reason="folders can be hidden by root only")
def test_videos_that_a_machine_does_not_see_are_said_before_anything_is_written(ray, machines, table, tmp_path):
    machines.restore(hidden=table.parent)
    ran = ray.run(table, tmp_path / "f", "--cluster", machines.address)
    machines.kill_machine()
    assert ran.returncode == 2
    (line,) = ran.stderr.splitlines()
    assert line.startswith("error: the worker on ")
    assert re.search(r"cannot work: .*/v\d\.mp4 is not there$", line)
    assert not (tmp_path / "f").exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--cpus-per-worker", 9), "no machine has 9 CPUs and 0 GPUs free"),
        (("--gpus-per-worker", 1), "no machine has 1 CPUs and 1 GPUs free"),
    ],
)
def test_no_room_for_a_worker(ray, machines, table, tmp_path, options, said):
    machines.restore()
    ran = ray.run(table, tmp_path / "f", "--cluster", machines.address, *options)
    assert ran.returncode == 2
    assert said in ran.stderr
    assert ran.stderr.count("\n") == 1
    assert not (tmp_path / "f").exists()


@pytest.mark.parametrize("joined", [False, True], ids=["local", "joined"])
def test_after_the_drivers_death_the_same_command_goes_on(
    ray, machines, table, reference, contents, wait_for_work, tmp_path, joined
):
    machines.restore()
    where = (machines.address,) if joined else ("local", "--workers", 2)
    process = ray.start(table, tmp_path / "f", "--cluster", *where)
    worker = wait_for_work(process, tmp_path / "f")
    process.kill()
    process.communicate()
    assert unfinished(tmp_path / "f"), "it was too late"
    deadline = time.monotonic() + 60
    while Path(f"/proc/{worker}").exists():  # nobody is left to work for
        assert time.monotonic() < deadline
        time.sleep(0.05)
    if joined:
        machines.restore()
    ran = ray.run(table, tmp_path / "f", "--cluster", *where, "--json")
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout)["failures"] == {}
    assert contents(tmp_path / "f") == reference
