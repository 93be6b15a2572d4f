"""Run tasks in worker processes: processes of this machine, or actors of a Ray cluster (ray_pool.py).

Every worker runs one task at a time. If a worker dies, it is restarted and its task runs again.
"""

import logging
import multiprocessing
import os
import threading
import warnings
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.synchronize import Event
from typing import Any, Generic, Protocol, TypeVar

from byov.errors import Interrupted, ProcessLost
from byov.progress import Stop, never

LOGGER = logging.getLogger(__name__)
STEP_SECONDS = 0.2  # between two checks of `stop`
MAX_LOSSES = 3  # after which a task has failed


class PoolTask(Protocol):
    """A picklable piece of work."""

    @property
    def name(self) -> str:
        """Unique name, for messages."""

    def __call__(self, stop: Stop) -> Any:
        """Run the task. Returns early, in a state that can be resumed, once `stop()` is true."""


TaskT = TypeVar("TaskT", bound=PoolTask)


class Worker(Protocol):
    """A process that runs one task at a time."""

    def submit(self, task: PoolTask) -> "Future[Any]": ...

    def result(self, future: "Future[Any]") -> Any:
        """Return the result of a finished task, or raise its exception; ProcessLost if the worker died."""

    def restart(self) -> None:
        """Replace the process after it died."""

    def stop(self) -> None:
        """Ask the running task to stop."""

    def close(self) -> None:
        """End the process immediately."""


@dataclass(frozen=True)
class Finished(Generic[TaskT]):
    """A task that has ended, with its result or the exception that it raised."""

    task: TaskT
    result: Any = None
    error: Exception | None = None


def run_tasks(
    workers: Sequence[Worker],
    tasks: Sequence[TaskT],
    *,
    stop: Stop = never,
    grace_seconds: float = 0.0,
    split: Callable[[TaskT], Sequence[TaskT]] = lambda _: (),
    on_step: Callable[[Sequence[str]], None] = lambda _: None,
) -> Iterator[Finished[TaskT]]:
    """Run tasks on the workers and yield each as it finishes.

    A task whose worker died runs again, and fails with ProcessLost when this happens for the third time.

    Args:
        stop: Polled several times a second. Once true, running tasks are asked to stop and Interrupted is raised.
        grace_seconds: How long running tasks may take to stop.
        split: Smaller tasks to run in place of one whose worker died; empty to run the same task again.
        on_step: Called several times a second with the names of the running tasks.
    """
    waiting, idle = deque(tasks), list(workers)
    running: dict[Future[Any], tuple[Worker, TaskT]] = {}
    losses: Counter[str] = Counter()
    while waiting or running:
        while waiting and idle:
            worker, task = idle.pop(), waiting.popleft()
            running[worker.submit(task)] = worker, task
        while idle:  # Frees its CPUs for a worker that is restarting elsewhere.
            idle.pop().close()
        done, _ = wait(running, timeout=STEP_SECONDS, return_when=FIRST_COMPLETED)
        for future in done:
            worker, task = running.pop(future)
            idle.append(worker)
            try:
                finished = Finished(task, worker.result(future))
            except ProcessLost as error:
                worker.restart()
                losses[task.name] += 1
                if parts := split(task):
                    waiting.extendleft(parts)
                elif losses[task.name] < MAX_LOSSES:
                    waiting.appendleft(task)
                else:
                    yield Finished(task, error=error)
                    continue
                LOGGER.info(f"{task.name}: lost its worker ({error}); trying again")
                continue
            except Exception as error:
                finished = Finished(task, error=error)
            yield finished
        on_step([task.name for _, task in running.values()])
        if stop():
            for worker, _ in running.values():
                worker.stop()
            wait(running, timeout=grace_seconds)
            raise Interrupted("stopped; run the same command to resume")


@contextmanager
def environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables, for this process and those that it starts."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def thread_variables(count: int) -> dict[str, str]:
    """Return the environment variables of a number of compute threads, on which the last bits of results depend."""
    return dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), str(count))


@contextmanager
def local_workers(count: int) -> Iterator[list["LocalWorker"]]:
    """Processes of this machine with one compute thread each. A process starts with its first task."""
    workers = [LocalWorker() for _ in range(count)]
    with environment(thread_variables(1)):
        try:
            yield workers
        finally:
            for worker in workers:
                worker.close()


class LocalWorker:
    """A process of this machine.

    Each worker has an executor of its own: when a process dies, ProcessPoolExecutor fails the tasks of all others.
    """

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._stop = context.Event()
        self._executor = ProcessPoolExecutor(1, mp_context=context, initializer=_start_process, initargs=(self._stop,))

    def submit(self, task: PoolTask) -> "Future[Any]":
        return self._executor.submit(_run_task, task)

    def result(self, future: "Future[Any]") -> Any:
        try:
            return future.result()
        except BrokenProcessPool:
            raise ProcessLost("its process was killed or crashed; check whether memory suffices") from None

    def stop(self) -> None:
        self._stop.set()

    def close(self) -> None:
        processes = list((self._executor._processes or {}).values())
        self._executor.shutdown(wait=False, cancel_futures=True)
        for process in processes:  # Python 3.14 has kill_workers for this.
            process.kill()


# State of a worker process.
_stop_event: Event
_running = threading.Lock()  # held while a task runs


def _start_process(stop: Event) -> None:
    global _stop_event
    _stop_event = stop
    os.setsid()  # Ctrl-C in a terminal is for the parent, which asks its workers to stop.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    warnings.simplefilter("ignore")
    logging.getLogger("byov").addHandler(logging.NullHandler())
    threading.Thread(target=_exit_with_parent, daemon=True).start()


def _exit_with_parent() -> None:
    """End when the parent is killed, after the running task has saved its state."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    _stop_event.set()
    with _running:
        os._exit(1)


def _run_task(task: PoolTask) -> Any:
    with _running:
        return task(_stop_event.is_set)
