"""Workers, raylets and whole machines that are killed in the middle of a video.

Two machines are played by two addresses of the loopback network.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray")
pytestmark = pytest.mark.long

RAY = str(Path(sys.executable).parent / "ray")
HEAD, OTHER = "127.0.0.2", "127.0.0.3"
LONG = 600  # frames: long enough to be killed in their midst
# A machine that does not answer is given up after two seconds, in the place of fifteen.
IMPATIENT = {
    "RAY_health_check_initial_delay_ms": "0",
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_timeout_ms": "500",
    "RAY_health_check_failure_threshold": "3",
}


def children(pid: int) -> list[int]:
    """All processes below one, itself first."""
    parents = {}
    for path in Path("/proc").iterdir():
        try:
            parents[int(path.name)] = int((path / "stat").read_text().rpartition(")")[2].split()[1])
        except (ValueError, OSError):
            continue
    found = [pid]
    for parent in found:
        found += [child for child, its in parents.items() if its == parent]
    return found


class TwoMachines:
    def __init__(self, ray: Any) -> None:
        self._ray = ray
        with socket.create_server((HEAD, 0)) as server:
            self.address = f"{HEAD}:{server.getsockname()[1]}"
        self._nodes = {HEAD: self._start(HEAD, "--head", f"--port={self.address.partition(':')[2]}")}
        self.restore()

    def _start(self, ip: str, *options: str) -> "subprocess.Popen[str]":
        common = ("--num-cpus=1", "--object-store-memory=80000000", "--disable-usage-stats", "--block")
        return subprocess.Popen(
            [RAY, "start", f"--node-ip-address={ip}", *options, *common],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            text=True,
            env=self._ray.environment,
        )

    def restore(self) -> None:
        """Start the other machine, if it is not there, and wait until Ray counts two."""
        if OTHER not in self._nodes or self._nodes[OTHER].poll() is not None:
            self._wait_for(1)
            self._nodes[OTHER] = self._start(OTHER, f"--address={self.address}")
        self._wait_for(2)

    def _wait_for(self, count: int) -> None:
        script = (
            "import ray, sys, time; ray.init(sys.argv[1], log_to_driver=False)\n"
            "while ray.available_resources().get('CPU', 0) != float(sys.argv[2]): time.sleep(0.2)"
        )
        deadline = time.monotonic() + 120
        while subprocess.run(
            [sys.executable, "-c", script, self.address, str(count)],
            env=self._ray.environment,
            capture_output=True,
            check=False,
        ).returncode:
            assert time.monotonic() < deadline, "the cluster did not come up"

    def raylet(self) -> int:
        """Of the other machine."""
        below = children(self._nodes[OTHER].pid)
        return next(pid for pid in below if b"/raylet\0" in Path(f"/proc/{pid}/cmdline").read_bytes())

    def kill_machine(self) -> None:
        for pid in children(self._nodes[OTHER].pid):
            os.kill(pid, signal.SIGKILL)
        self._nodes[OTHER].wait()

    def close(self) -> None:
        for node in self._nodes.values():
            for pid in children(node.pid):
                os.kill(pid, signal.SIGKILL)
            node.wait()


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
    assert err.strip().endswith("interrupted; finished videos are kept, run the same command to resume")


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
