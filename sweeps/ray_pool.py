"""Workers on a Ray cluster: connect, check the machines, and run tasks in actors.

Ray is an optional dependency and slow to import, so it is imported where it is used. `ray.init`
replaces the SIGTERM handler when called from the main thread; callers with their own handlers must
open the session in another thread, which must live as long as the session.
"""

import os
import re
import secrets
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from math import inf
from pathlib import Path
from platform import node
from tempfile import NamedTemporaryFile
from typing import Any, TypeVar

from byov.device import usable_cores
from byov.errors import ClusterError, ProcessLost
from byov.progress import Stop, raise_if_stopped
from byov.sweeps.worker_pool import STEP_SECONDS, thread_variables

T = TypeVar("T")
LOCAL = "local"
AUTO = "auto"
CONNECT_SECONDS = 6.0
START_SECONDS = 60.0  # timeout for a worker to start
# Results are small; Ray's default is a third of the machine's memory.
OBJECT_STORE_BYTES = 100 << 20
# Affect results.
PACKAGES = ("byov-egoexo", "torch", "numpy", "scikit-learn", "scikit-learn-intelex", "h5py", "av")
_ADDRESS = re.compile(r"(\[[0-9a-fA-F:]+\]|[\w.-]+):(\d{1,5})")


@dataclass(frozen=True)
class ClusterOptions:
    """Address of a Ray cluster, and the workers to start on it."""

    # HOST:PORT, "local" to start a cluster, or "auto" for the one running on this machine.
    address: str = LOCAL
    workers: int | None = None  # number of workers; None for as many as fit
    cpus_per_worker: int = 1
    gpus_per_worker: float = 0.0

    def check(self) -> None:
        """Raise ClusterError if the address is malformed or Ray is not installed."""
        if self.address not in (LOCAL, AUTO) and not _ADDRESS.fullmatch(self.address):
            raise ClusterError(
                f"--cluster {self.address}: expected local, auto or HOST:PORT, like 10.0.0.1:6379"
            )
        if find_spec("ray") is None:
            raise ClusterError("--cluster needs Ray: pip install 'byov-egoexo[cluster]'")


@contextmanager
def ray_session(cluster: ClusterOptions) -> Iterator[None]:
    """Connect this process to a Ray cluster.

    A local cluster is started first and shut down afterwards.
    """
    cluster.check()
    options: dict[str, Any] = {}
    if cluster.address == LOCAL:
        _configure_local_ray()
        cpus = max(usable_cores(), (cluster.workers or 0) * cluster.cpus_per_worker)
        options = {
            "num_cpus": cpus,
            "object_store_memory": OBJECT_STORE_BYTES,
            "include_dashboard": False,
        }
    elif cluster.address != AUTO:
        _check_connection(cluster.address)
    import ray

    try:
        ray.init(address=cluster.address, log_to_driver=False, logging_level="critical", **options)
    except Exception as error:  # Ray raises various exceptions with multi-line messages
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ClusterError(
            f"--cluster {cluster.address}: {reason}. See docs/many-machines.md."
        ) from error
    try:
        yield
    finally:
        ray.shutdown()


def _configure_local_ray() -> None:
    """Set environment variables for Ray.

    They stay set, because Ray reads some of them only at import time.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # The same scheduling priority as this process.
    os.environ.setdefault("RAY_worker_niceness", "0")
    if "ray" not in sys.modules:
        os.environ.setdefault("RAY_AUTH_MODE", "token")
    has_token = "RAY_AUTH_TOKEN" in os.environ or "RAY_AUTH_TOKEN_PATH" in os.environ
    if os.environ.get("RAY_AUTH_MODE") == "token" and not has_token:
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)


def _check_connection(address: str) -> None:
    """Raise ClusterError if nothing listens at HOST:PORT, since `ray.init` would retry for
    minutes.
    """
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise ClusterError(
            f"--cluster {address}: cannot connect ({error}). Start a cluster with `ray start "
            "--head`, or use "
            "--cluster local."
        ) from error


@contextmanager
def ray_workers(
    cluster: ClusterOptions, output: Path, files: Sequence[Path], *, stop: Stop, max_workers: int
) -> Iterator[list["RayWorker"]]:
    """Open a Ray session and start workers.

    All machines must share the input files and the output folder, which need not exist yet. Raises
    Interrupted once `stop` returns True.
    """
    existing = next(path for path in (output, *output.absolute().parents) if path.is_dir())
    with (
        ray_session(cluster),
        NamedTemporaryFile(dir=existing.absolute(), prefix=".cluster.") as marker,
    ):
        shared = {path.absolute(): path.stat().st_size for path in (Path(marker.name), *files)}
        check = partial(_check_machine, {name: _version(name) for name in PACKAGES}, shared)
        candidates = [
            RayWorker(cluster, check) for _ in range(min(max_workers, _capacity(cluster)))
        ]
        # Runs the machine check.
        workers = list(run_on_all(candidates, lambda _stop: None, stop, START_SECONDS))
        if not workers:
            raise ClusterError(
                f"no machine has {cluster.cpus_per_worker} CPUs and {cluster.gpus_per_worker:g} "
                "GPUs free for a "
                "worker. Lower --cpus-per-worker or --gpus-per-worker; `ray status` shows what is "
                "free."
            )
        yield workers


def run_on_all(
    workers: Sequence["RayWorker"],
    function: Callable[[Stop], T],
    stop: Stop,
    timeout_seconds: float = inf,
) -> dict["RayWorker", T]:
    """Call a function in every worker and return a dict that maps workers to results.

    Workers that exceed the timeout are closed and left out. Raises ClusterError if a worker dies.
    """
    futures = {worker.submit(function): worker for worker in workers}
    deadline = time.monotonic() + timeout_seconds
    while (late := wait(futures, timeout=STEP_SECONDS).not_done) and time.monotonic() < deadline:
        raise_if_stopped(stop)
    for future in late:  # another job probably uses their CPUs
        futures.pop(future).close()
    try:
        return {worker: worker.result(future) for future, worker in futures.items()}
    except ProcessLost as error:
        raise ClusterError(
            f"a worker died while starting ({error}); check the available memory"
        ) from error


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:  # optional package
        return "not installed"


def _check_machine(versions: dict[str, str], files: dict[Path, int]) -> None:
    """Raise ClusterError if package versions or file sizes on this machine differ from those of the
    driver.
    """
    for package, expected in versions.items():
        if (found := _version(package)) != expected:
            raise ClusterError(
                f"{node()} has {package} {found}, but the driver has {expected}. Install the same "
                "versions on all "
                "machines."
            )
    for path, size in files.items():
        if not path.is_file() or path.stat().st_size != size:
            raise ClusterError(
                f"{node()} cannot access {path}. All machines must share its folder."
            )


def _capacity(cluster: ClusterOptions) -> int:
    """Return the number of workers to start: as many as requested, but no more than fit on an idle
    cluster.
    """
    import ray

    needs = {"CPU": cluster.cpus_per_worker, "GPU": cluster.gpus_per_worker}
    fitting = sum(
        min(
            int(node["Resources"].get(kind, 0) / needed) for kind, needed in needs.items() if needed
        )
        for node in ray.nodes()
        if node["Alive"]
    )
    return min(fitting, cluster.workers or fitting)


class RayWorker:
    """Worker that runs tasks in a Ray actor and checks the machine before each task."""

    def __init__(self, cluster: ClusterOptions, check: Callable[[], None]) -> None:
        import ray

        self._actor_class: Any = ray.remote(
            num_cpus=cluster.cpus_per_worker,
            num_gpus=cluster.gpus_per_worker,
            max_concurrency=2,  # allows `stop` to be called while `run` is running
            scheduling_strategy="SPREAD",
            runtime_env={"env_vars": thread_variables(cluster.cpus_per_worker)},
        )(_Actor)
        self._check = check
        self._start()

    def _start(self) -> None:
        folder = str(Path.cwd())
        self._actor = self._actor_class.remote(None if folder in sys.path else folder)

    def submit(self, task: Callable[[Stop], Any]) -> "Future[Any]":
        future: Future[Any] = self._actor.run.remote(self._check, task).future()
        return future

    def result(self, future: "Future[Any]") -> Any:
        from ray.exceptions import RayError, RayTaskError

        try:
            return future.result()
        except RayTaskError as error:
            raise error.cause from error
        except RayError as error:
            raise ProcessLost(type(error).__name__) from error

    def restart(self) -> None:
        self.close()  # the actor may still be running on an unreachable machine
        self._start()

    def stop(self) -> None:
        self._actor.stop.remote()

    def close(self) -> None:
        import ray

        ray.kill(self._actor)


class _Actor:
    """Ray actor that runs tasks."""

    def __init__(self, driver_folder: str | None) -> None:
        # Ray adds the driver's working directory, in which folders such as `data` would shadow
        # packages.
        sys.path[:] = [path for path in sys.path if path != driver_folder]
        self._stop = threading.Event()

    def run(self, check: Callable[[], None], task: Callable[[Stop], Any]) -> Any:
        check()
        return task(self._stop.is_set)

    def stop(self) -> None:
        self._stop.set()
