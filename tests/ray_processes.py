"""The processes and files of a Ray that a test may kill, and two machines: two addresses of the loopback network."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

RAY = str(Path(sys.executable).parent / "ray")
HIDING = ("unshare", "--mount", "sh", "-c", 'mount -t tmpfs none "$1" && shift && exec "$@"', "sh")
HEAD, OTHER = "127.0.0.2", "127.0.0.3"
# A machine that does not answer is given up after two seconds, in the place of fifteen.
IMPATIENT = {
    "RAY_health_check_initial_delay_ms": "0",
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_timeout_ms": "500",
    "RAY_health_check_failure_threshold": "3",
}


def can_hide() -> bool:
    """Whether a machine can be given a folder to itself (TwoMachines.restore)."""
    return (
        shutil.which("unshare") is not None
        and not subprocess.run(["unshare", "--mount", "true"], check=False).returncode
    )


class RayProcesses:
    """Those of one test or of several, in a folder whose path is short enough for their sockets."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))
        unwanted = {"RAY_ADDRESS", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "PYTHONUNBUFFERED"}
        self.environment = {name: value for name, value in os.environ.items() if name not in unwanted} | {
            "RAY_TMPDIR": str(self.folder),
            "PYTHONSAFEPATH": "1",
            "OMP_NUM_THREADS": "1",  # as many as a worker has: bits are compared
        }

    def running(self) -> list[int]:
        """All that have a file open below the folder: Ray's have their logs there."""
        return [pid for pid in all_processes() if any(str(self.folder) in name for name in open_files(pid))]

    def all_gone(self, seconds: float = 30.0) -> bool:
        """They end one after the other."""
        deadline = time.monotonic() + seconds
        while self.running() and time.monotonic() < deadline:
            time.sleep(0.05)
        return self.running() == []

    def close(self) -> None:
        for pid in self.running():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        shutil.rmtree(self.folder, ignore_errors=True)


def all_processes() -> list[int]:
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal()]


def open_files(pid: int) -> set[str]:
    names = set()
    with suppress(OSError):  # it ended, or the file was closed
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            names.add(str(descriptor.readlink()))
    return names


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
    def __init__(self, ray: RayProcesses) -> None:
        self._ray = ray
        with socket.create_server((HEAD, 0)) as server:
            self.address = f"{HEAD}:{server.getsockname()[1]}"
        self._nodes = {HEAD: self._start(HEAD, "--head", f"--port={self.address.partition(':')[2]}")}
        self.restore()

    def _start(self, ip: str, *options: str, within: Sequence[str] = ()) -> "subprocess.Popen[str]":
        common = ("--num-cpus=1", "--object-store-memory=80000000", "--disable-usage-stats", "--block")
        return subprocess.Popen(
            [*within, RAY, "start", f"--node-ip-address={ip}", *options, *common],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            text=True,
            env=self._ray.environment,
        )

    def restore(self, *, hidden: Path | None = None) -> None:
        """Start the other machine, if it is not there, and wait until Ray counts two.

        hidden: a folder that a new one has to itself, and empty.
        """
        if hidden is not None and OTHER in self._nodes:
            self.kill_machine()
        if OTHER not in self._nodes or self._nodes[OTHER].poll() is not None:
            self._wait_for(1)
            alone = (
                ()
                if hidden is None
                else ("unshare", "--mount", "sh", "-c", f'mount -t tmpfs none "{hidden}"; exec "$@"', "sh")
            )
            self._nodes[OTHER] = self._start(OTHER, f"--address={self.address}", within=alone)
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
            timeout=120,
        ).returncode:
            assert time.monotonic() < deadline, "the cluster did not come up"

    def raylet(self) -> int:
        """Of the other machine."""
        below = children(self._nodes[OTHER].pid)
        return next(pid for pid in below if b"/raylet\0" in Path(f"/proc/{pid}/cmdline").read_bytes())

    def kill_machine(self, ip: str = OTHER) -> None:
        node = self._nodes[ip]
        for pid in children(node.pid) if node.poll() is None else ():
            with suppress(ProcessLookupError):  # ended with the one before
                os.kill(pid, signal.SIGKILL)
        node.wait()

    def close(self) -> None:
        for ip in self._nodes:
            self.kill_machine(ip)
