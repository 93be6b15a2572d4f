"""Ray processes that tests can kill, and a cluster of two simulated machines with different
loopback addresses.
"""

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

BIN = Path(sys.executable).parent
HEAD = "127.0.0.2"
OTHER = "127.0.0.3"
# Declare an unresponsive machine dead after two seconds instead of fifteen.
FAST_HEALTH_CHECKS = {
    "RAY_health_check_initial_delay_ms": "0",
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_timeout_ms": "500",
    "RAY_health_check_failure_threshold": "3",
}


def can_hide_folders() -> bool:
    """Return whether `TwoMachines.restore(hidden=...)` works on this system."""
    unshare = shutil.which("unshare")
    return (
        unshare is not None
        and not subprocess.run([unshare, "--mount", "true"], check=False).returncode
    )


def all_processes() -> list[int]:
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal()]


def open_files(pid: int) -> set[str]:
    names = set()
    with suppress(OSError):  # the process ended or closed the file
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            names.add(str(descriptor.readlink()))
    return names


def descendants(pid: int) -> list[int]:
    """Return the ids of a process and all its descendants."""
    parents = {}
    for other in all_processes():
        with suppress(OSError):
            parents[other] = int(
                Path(f"/proc/{other}/stat").read_text().rpartition(")")[2].split()[1]
            )
    family = [pid]
    for parent in family:
        family += [child for child, its in parents.items() if its == parent]
    return family


class RayProcesses:
    """Commands that use Ray, with a temporary folder whose path is short enough for Ray's
    sockets.
    """

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))
        unwanted = {
            "RAY_ADDRESS",
            "RAY_AUTH_MODE",
            "RAY_AUTH_TOKEN",
            "RAY_AUTH_TOKEN_PATH",
            "PYTHONUNBUFFERED",
        }
        self.environment = {
            name: value for name, value in os.environ.items() if name not in unwanted
        } | {
            "RAY_TMPDIR": str(self.folder),
            "PYTHONSAFEPATH": "1",
            "OMP_NUM_THREADS": "1",  # same as in the workers, for identical results
        }
        self._started: list[subprocess.Popen[str]] = []

    def start(self, command: str, *arguments: object, cwd: Path) -> "subprocess.Popen[str]":
        """Start a byov command."""
        words = [str(BIN / command), *map(str, arguments)]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        process = subprocess.Popen(words, **pipes, text=True, cwd=cwd, env=self.environment)
        self._started.append(process)
        return process

    def running(self) -> list[int]:
        """Return the ids of processes with an open file in the folder, where Ray writes its
        logs.
        """
        return [
            pid
            for pid in all_processes()
            if any(str(self.folder) in name for name in open_files(pid))
        ]

    def all_ended(self, seconds: float = 30.0) -> bool:
        """Wait until all Ray processes have ended; return whether they have."""
        deadline = time.monotonic() + seconds
        while self.running() and time.monotonic() < deadline:
            time.sleep(0.05)
        return self.running() == []

    def close(self) -> None:
        for process in self._started:
            process.kill()
            process.communicate()
        for pid in self.running():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        shutil.rmtree(self.folder, ignore_errors=True)


class TwoMachines:
    """Ray cluster of a head node and another machine, with one CPU each."""

    def __init__(self, ray: RayProcesses) -> None:
        ray.environment |= FAST_HEALTH_CHECKS | {
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": "b" * 32,
        }
        self._ray = ray
        with socket.create_server((HEAD, 0)) as server:
            self.address = f"{HEAD}:{server.getsockname()[1]}"
        self._nodes = {
            HEAD: self._start(HEAD, "--head", f"--port={self.address.partition(':')[2]}")
        }
        self.restore()

    def _start(self, ip: str, *options: str, prefix: Sequence[str] = ()) -> "subprocess.Popen[str]":
        common = (
            "--num-cpus=1",
            "--object-store-memory=80000000",
            "--disable-usage-stats",
            "--block",
        )
        return subprocess.Popen(
            [*prefix, str(BIN / "ray"), "start", f"--node-ip-address={ip}", *options, *common],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            text=True,
            env=self._ray.environment,
        )

    def restore(self, *, hidden: Path | None = None) -> None:
        """Start the other machine if it is not running, and wait until both are idle.

        `hidden` is a folder that appears empty on the other machine.
        """
        if hidden is not None and OTHER in self._nodes:
            self.kill_machine()
        if OTHER not in self._nodes or self._nodes[OTHER].poll() is not None:
            self._wait_for_cpus(1)
            mount = (
                "unshare",
                "--mount",
                "sh",
                "-c",
                f'mount -t tmpfs none "{hidden}"; exec "$@"',
                "sh",
            )
            self._nodes[OTHER] = self._start(
                OTHER, f"--address={self.address}", prefix=mount if hidden else ()
            )
        self._wait_for_cpus(2)

    def _wait_for_cpus(self, count: int) -> None:
        script = (
            "import ray, sys, time; ray.init(sys.argv[1], log_to_driver=False)\n"
            "while ray.available_resources().get('CPU', 0) != float(sys.argv[2]): time.sleep(0.2)"
        )
        words = [sys.executable, "-c", script, self.address, str(count)]
        deadline = time.monotonic() + 120
        while subprocess.run(
            words, env=self._ray.environment, capture_output=True, check=False, timeout=120
        ).returncode:
            assert time.monotonic() < deadline, "the cluster did not start"

    def raylet(self) -> int:
        """Return the process id of the other machine's raylet."""
        pids = descendants(self._nodes[OTHER].pid)
        return next(
            pid for pid in pids if b"/raylet\0" in Path(f"/proc/{pid}/cmdline").read_bytes()
        )

    def kill_machine(self, ip: str = OTHER) -> None:
        node = self._nodes[ip]
        for pid in descendants(node.pid) if node.poll() is None else ():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        node.wait()

    def close(self) -> None:
        for ip in self._nodes:
            self.kill_machine(ip)
