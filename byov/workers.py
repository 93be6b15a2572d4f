"""Executors that run tasks in parallel: LocalWorkers in processes on this machine, RayWorkers in
actors on a Ray cluster.

```
with LocalWorkers(4) as workers:
    for task, result, error in workers.run(tasks, stop=stop):
        ...
```

Ray is an optional dependency and slow to import, so it is imported where it is used. `ray.init`
replaces the SIGTERM handler when called from the main thread; callers with their own handlers must
open RayWorkers in another thread, which must live as long as the workers.
"""

import logging
import multiprocessing
import os
import re
import secrets
import socket
import sys
import threading
import time
import warnings
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from math import inf
from multiprocessing.synchronize import Event
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any, Protocol, Self, TypeAlias, TypeVar

from byov.device import usable_cores
from byov.errors import ClusterError, Interrupted, ProcessLost
from byov.progress import Stop, never, raise_if_stopped

LOGGER = logging.getLogger(__name__)
STEP_SECONDS = 0.2  # interval between checks of `stop`
MAX_LOSSES = 3  # a task fails when its worker has died this many times
CONNECT_SECONDS = 6.0
START_SECONDS = 60.0  # timeout for a Ray worker to start
# Results are small; Ray's default is a third of the machine's memory.
OBJECT_STORE_BYTES = 100 << 20
# Affect results.
PACKAGES = ("byov-egoexo", "torch", "numpy", "scikit-learn", "scikit-learn-intelex", "h5py", "av")
_ADDRESS = re.compile(r"local|auto|(\[[0-9a-fA-F:]+\]|[\w.-]+):\d{1,5}")


class WorkerTask(Protocol):
    """Picklable task.

    Once `stop()` returns True, it must return early, in a state that can be resumed.
    """

    @property
    def name(self) -> str: ...  # must be unique
    def __call__(self, stop: Stop) -> Any: ...


T = TypeVar("T")
TaskT = TypeVar("TaskT", bound=WorkerTask)
Worker: TypeAlias = "_LocalWorker | _RayWorker"


class Workers(ABC):
    """Executor that runs `count` tasks at once, each in a worker. Use it as a context manager.

    Retries are not left to the libraries: ProcessPoolExecutor has none, and with Ray's
    `max_task_retries`, the driver would not learn of a lost worker and could not retry the videos
    of a chunk one by one.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._idle: list[Worker] = []
        self._running: dict[Future[Any], tuple[Worker, Any]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in (*self._idle, *(worker for worker, _ in self._running.values())):
            worker.close()

    @abstractmethod
    def _start(self) -> Worker: ...

    def run(
        self,
        tasks: Sequence[TaskT],
        *,
        stop: Stop = never,
        grace_seconds: float = 0.0,
        split: Callable[[TaskT], Sequence[TaskT]] = lambda _: (),
    ) -> Iterator[tuple[TaskT, Any, Exception | None]]:
        """Run tasks and yield (task, result, exception) as each of them finishes.

        A task is retried if its worker dies, and fails with ProcessLost the third time.

        Args:
            tasks: Tasks to run.
            stop: Polled several times a second. Once it returns True, running tasks are signaled
                to stop.
            grace_seconds: How long running tasks may take to stop.
            split: Returns smaller tasks to run instead of a lost one.

        Raises:
            Interrupted: `stop` returned True.
        """
        waiting = deque(tasks)
        losses: Counter[str] = Counter()
        while waiting or self._running:
            while waiting and len(self._running) < self.count:
                worker = self._idle.pop() if self._idle else self._start()
                task = waiting.popleft()
                self._running[worker.submit(task)] = worker, task
            while self._idle:  # free the CPUs for workers that are starting
                self._idle.pop().close()
            done, _ = wait(self._running, timeout=STEP_SECONDS, return_when=FIRST_COMPLETED)
            for future in done:
                worker, task = self._running.pop(future)
                try:
                    result = worker.result(future)
                except ProcessLost as error:
                    worker.close()  # it may still be running on an unreachable machine
                    losses[task.name] += 1
                    retries = split(task) or ([task] if losses[task.name] < MAX_LOSSES else [])
                    waiting.extendleft(retries)
                    if retries:
                        LOGGER.info(f"{task.name}: lost its worker ({error}); retrying")
                    else:
                        yield task, None, error
                except Exception as error:
                    self._idle.append(worker)
                    yield task, None, error
                else:
                    self._idle.append(worker)
                    yield task, result, None
            if stop():
                for worker, _ in self._running.values():
                    worker.stop()
                wait(self._running, timeout=grace_seconds)
                raise Interrupted("stopped; run the same command to resume")


def thread_variables(count: int) -> dict[str, str]:
    """Return environment variables that fix the number of compute threads, for reproducible
    results.
    """
    return dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), str(count))


# --- processes on this machine


class LocalWorkers(Workers):
    """Executor with processes on this machine, which have one compute thread each."""

    def _start(self) -> Worker:
        return _LocalWorker()


class _LocalWorker:
    """Process on this machine that runs one task at a time.

    Each worker has its own ProcessPoolExecutor, since an executor fails all of its tasks when one
    process dies.
    """

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._stop = context.Event()
        self._executor = ProcessPoolExecutor(
            1, mp_context=context, initializer=_start_process, initargs=(self._stop,)
        )

    def submit(self, task: Callable[[Stop], Any]) -> "Future[Any]":
        variables = thread_variables(1)
        before = {name: os.environ[name] for name in variables if name in os.environ}
        # The process inherits the variables. It starts with the first task.
        os.environ.update(variables)
        try:
            return self._executor.submit(_run_task, task)
        finally:
            for name in variables:
                del os.environ[name]
            os.environ.update(before)

    def result(self, future: "Future[Any]") -> Any:
        """Return the task's result; raise its exception, or ProcessLost."""
        try:
            return future.result()
        except BrokenProcessPool:
            raise ProcessLost(
                "its process was killed or crashed; check the available memory"
            ) from None

    def stop(self) -> None:
        self._stop.set()

    def close(self) -> None:
        for process in list((self._executor._processes or {}).values()):
            process.kill()  # Python 3.14 has kill_workers for this.
        self._executor.shutdown(wait=False, cancel_futures=True)


# State of a local worker process.
_stop_event: Event
_running = threading.Lock()  # held while a task runs


def _start_process(stop: Event) -> None:
    global _stop_event
    _stop_event = stop
    os.setsid()  # Ctrl-C in a terminal must reach only the parent, which stops its workers.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    warnings.simplefilter("ignore")
    logging.getLogger("byov").addHandler(logging.NullHandler())
    threading.Thread(target=_exit_with_parent, daemon=True).start()


def _exit_with_parent() -> None:
    """Exit when the parent is killed, after the running task has saved its state.

    ProcessPoolExecutor's processes otherwise outlive a killed parent until their task ends.
    """
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    _stop_event.set()
    with _running:
        os._exit(1)


def _run_task(task: Callable[[Stop], Any]) -> Any:
    with _running:
        return task(_stop_event.is_set)


# --- Ray


@dataclass(frozen=True)
class ClusterOptions:
    """Address of a Ray cluster, and the workers to start on it."""

    # HOST:PORT, "local" to start a cluster, or "auto" for the one running on this machine.
    address: str = "local"
    workers: int | None = None  # number of workers; None for as many as fit
    cpus_per_worker: int = 1
    gpus_per_worker: float = 0.0

    def check(self) -> None:
        """Raise ClusterError if the address is malformed or Ray is not installed."""
        if not _ADDRESS.fullmatch(self.address):
            raise ClusterError(
                f"--cluster {self.address}: expected local, auto or HOST:PORT, like 10.0.0.1:6379"
            )
        if find_spec("ray") is None:
            raise ClusterError("--cluster needs Ray: pip install 'byov-egoexo[cluster]'")


class RayWorkers(Workers):
    """Executor with actors on a Ray cluster.

    Entering it raises ClusterError if the cluster cannot be used, and Interrupted once `stop`
    returns True.

    Args:
        options: Address of the cluster, and the number and resources of the workers.
        output: Folder for the output, which need not exist yet. All machines must share it.
        inputs: Input files. All machines must share them.
        tasks: Number of tasks, which limits the number of workers.
        stop: Polled while the workers start.
    """

    def __init__(
        self,
        options: ClusterOptions,
        output: Path,
        inputs: Sequence[Path],
        *,
        tasks: int,
        stop: Stop = never,
    ) -> None:
        super().__init__(min(tasks, options.workers or tasks))
        self.options = options
        self._output = output.absolute()
        self._inputs = inputs
        self._stop = stop

    def __enter__(self) -> Self:
        needs = {"CPU": self.options.cpus_per_worker, "GPU": self.options.gpus_per_worker}
        existing = next(path for path in (self._output, *self._output.parents) if path.is_dir())
        with ExitStack() as session:
            session.enter_context(ray_session(self.options))
            marker = session.enter_context(NamedTemporaryFile(dir=existing, prefix=".cluster."))
            shared = (Path(marker.name), *self._inputs)
            sizes = {path.absolute(): path.stat().st_size for path in shared}
            versions = {name: _version(name) for name in PACKAGES}
            self._check = partial(_check_machine, versions, sizes)
            import ray

            capacity = sum(  # number of workers that fit on an idle cluster
                min(
                    int(node["Resources"].get(kind, 0) / needed)
                    for kind, needed in needs.items()
                    if needed
                )
                for node in ray.nodes()
                if node["Alive"]
            )
            self._idle = [self._start() for _ in range(min(self.count, capacity))]
            self.call_all(lambda _stop: None, self._stop, START_SECONDS)  # checks the machines
            self.count = len(self._idle)
            if not self._idle:
                raise ClusterError(
                    f"no machine has {self.options.cpus_per_worker} CPUs and "
                    f"{self.options.gpus_per_worker:g} GPUs free for a worker. Lower "
                    "--cpus-per-worker or --gpus-per-worker; `ray status` shows what is free."
                )
            self._session = session.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._session.close()

    def _start(self) -> Worker:
        return _RayWorker(self.options, self._check)

    def call_all(
        self, function: Callable[[Stop], T], stop: Stop = never, timeout_seconds: float = inf
    ) -> list[T]:
        """Call a function in every worker and return the results; call it before `run`.

        Workers that exceed the timeout are closed, and not used later.

        Raises:
            ClusterError: A worker died.
            Interrupted: `stop` returned True.
        """
        futures = {worker.submit(function): worker for worker in self._idle}
        deadline = time.monotonic() + timeout_seconds
        while (
            late := wait(futures, timeout=STEP_SECONDS).not_done
        ) and time.monotonic() < deadline:
            raise_if_stopped(stop)
        for future in late:  # another job probably uses their CPUs
            futures.pop(future).close()
        self._idle = list(futures.values())
        try:
            return [worker.result(future) for future, worker in futures.items()]
        except ProcessLost as error:
            raise ClusterError(
                f"a worker died while starting ({error}); check the available memory"
            ) from error


@contextmanager
def ray_session(cluster: ClusterOptions) -> Iterator[None]:
    """Connect this process to a Ray cluster.

    A local cluster is started first and shut down afterwards.
    """
    cluster.check()
    options: dict[str, Any] = {}
    if cluster.address == "local":
        # The variables stay set, because Ray reads some of them only at import time.
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        # The same scheduling priority as this process.
        os.environ.setdefault("RAY_worker_niceness", "0")
        if "ray" not in sys.modules:
            os.environ.setdefault("RAY_AUTH_MODE", "token")
        has_token = "RAY_AUTH_TOKEN" in os.environ or "RAY_AUTH_TOKEN_PATH" in os.environ
        if os.environ.get("RAY_AUTH_MODE") == "token" and not has_token:
            os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
        options = {
            "num_cpus": max(usable_cores(), (cluster.workers or 0) * cluster.cpus_per_worker),
            "object_store_memory": OBJECT_STORE_BYTES,
            "include_dashboard": False,
        }
    elif cluster.address != "auto":
        host, _, port = cluster.address.rpartition(":")
        try:  # ray.init would retry for minutes
            socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()
        except (OSError, OverflowError) as error:
            raise ClusterError(
                f"--cluster {cluster.address}: cannot connect ({error}). Start a cluster with "
                "`ray start --head`, or use --cluster local."
            ) from error
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


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:  # optional package
        return "not installed"


def _check_machine(versions: dict[str, str], sizes: dict[Path, int]) -> None:
    """Raise ClusterError if package versions or file sizes on this machine differ from those of the
    driver.
    """
    for package, expected in versions.items():
        if (installed := _version(package)) != expected:
            raise ClusterError(
                f"{socket.gethostname()} has {package} {installed}, but the driver has {expected}. "
                "Install the same versions on all machines."
            )
    for path, size in sizes.items():
        if not path.is_file() or path.stat().st_size != size:
            raise ClusterError(
                f"{socket.gethostname()} cannot access {path}. All machines must share its folder."
            )


class _RayWorker:
    """Ray actor that runs one task at a time and checks its machine before each."""

    def __init__(self, cluster: ClusterOptions, check: Callable[[], None]) -> None:
        import ray

        actor_class: Any = ray.remote(
            num_cpus=cluster.cpus_per_worker,
            num_gpus=cluster.gpus_per_worker,
            max_concurrency=2,  # allows `stop` to be called while `run` is running
            scheduling_strategy="SPREAD",
            runtime_env={"env_vars": thread_variables(cluster.cpus_per_worker)},
        )(_Actor)
        folder = str(Path.cwd())
        self._actor = actor_class.remote(None if folder in sys.path else folder)
        self._check = check

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

    def stop(self) -> None:
        self._actor.stop.remote()

    def close(self) -> None:
        import ray

        ray.kill(self._actor)


class _Actor:
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
