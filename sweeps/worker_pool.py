"""Run tasks in worker processes on this machine, or in Ray actors (ray_pool.py).

Each worker runs one task at a time. If a worker dies, it is restarted and its task is retried.
"""

import logging
import multiprocessing
import os
import threading
import warnings
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing.synchronize import Event
from typing import Any, Protocol, TypeVar

from byov.errors import Interrupted, ProcessLost
from byov.progress import Stop, never

LOGGER = logging.getLogger(__name__)
STEP_SECONDS = 0.2  # interval between checks of `stop`
MAX_LOSSES = 3  # a task fails when its worker has died this many times


class PoolTask(Protocol):
    """Picklable task.

    Once `stop()` returns True, it must return early, in a state that can be resumed.
    """

    @property
    def name(self) -> str: ...  # must be unique
    def __call__(self, stop: Stop) -> Any: ...


TaskT = TypeVar("TaskT", bound=PoolTask)


class Worker(Protocol):
    """Process that runs one task at a time."""

    def submit(self, task: PoolTask) -> "Future[Any]": ...
    # Raises the task's exception, or ProcessLost.
    def result(self, future: "Future[Any]") -> Any: ...
    def restart(self) -> None: ...  # replaces a process that died
    def stop(self) -> None: ...  # signals the running task to stop
    def close(self) -> None: ...  # ends the process immediately


def run_tasks(
    workers: Sequence[Worker],
    tasks: Sequence[TaskT],
    *,
    stop: Stop = never,  # polled several times a second
    grace_seconds: float = 0.0,  # how long running tasks may take to stop
    # Returns smaller tasks to run instead of a lost one.
    split: Callable[[TaskT], Sequence[TaskT]] = lambda _: (),
) -> Iterator[tuple[TaskT, Any, Exception | None]]:
    """Run tasks on the workers and yield (task, result, exception) as each task finishes.

    A task is retried if its worker dies, and fails with ProcessLost the third time. Once `stop`
    returns True, running tasks are signaled to stop and Interrupted is raised.
    """
    waiting = deque(tasks)
    idle = list(workers)
    running: dict[Future[Any], tuple[Worker, TaskT]] = {}
    losses: Counter[str] = Counter()
    while waiting or running:
        while waiting and idle:
            worker = idle.pop()
            task = waiting.popleft()
            running[worker.submit(task)] = worker, task
        while idle:  # free the CPUs for workers that are restarting
            idle.pop().close()
        done, _ = wait(running, timeout=STEP_SECONDS, return_when=FIRST_COMPLETED)
        for future in done:
            worker, task = running.pop(future)
            idle.append(worker)
            try:
                result = worker.result(future)
            except ProcessLost as error:
                worker.restart()
                losses[task.name] += 1
                retries = split(task) or ([task] if losses[task.name] < MAX_LOSSES else [])
                waiting.extendleft(retries)
                if retries:
                    LOGGER.info(f"{task.name}: lost its worker ({error}); retrying")
                else:
                    yield task, None, error
            except Exception as error:
                yield task, None, error
            else:
                yield task, result, None
        if stop():
            for worker, _ in running.values():
                worker.stop()
            wait(running, timeout=grace_seconds)
            raise Interrupted("stopped; run the same command to resume")


def thread_variables(count: int) -> dict[str, str]:
    """Return environment variables that fix the number of compute threads, for reproducible
    results.
    """
    return dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), str(count))


@contextmanager
def local_workers(count: int) -> Iterator[list["LocalWorker"]]:
    """Create workers on this machine with one compute thread each.

    Processes start with their first task.
    """
    workers = [LocalWorker() for _ in range(count)]
    variables = thread_variables(1)
    before = {name: os.environ[name] for name in variables if name in os.environ}
    os.environ.update(variables)  # inherited by the processes
    try:
        yield workers
    finally:
        for worker in workers:
            worker.close()
        for name in variables:
            del os.environ[name]
        os.environ.update(before)


class LocalWorker:
    """Worker process on this machine.

    Each worker has its own ProcessPoolExecutor, since an executor fails all of its tasks when one
    process dies.
    """

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._stop = context.Event()
        self._executor = ProcessPoolExecutor(
            1, mp_context=context, initializer=_start_process, initargs=(self._stop,)
        )

    def submit(self, task: PoolTask) -> "Future[Any]":
        return self._executor.submit(_run_task, task)

    def result(self, future: "Future[Any]") -> Any:
        try:
            return future.result()
        except BrokenProcessPool:
            raise ProcessLost(
                "its process was killed or crashed; check the available memory"
            ) from None

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
    os.setsid()  # Ctrl-C in a terminal must reach only the parent, which stops its workers.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    warnings.simplefilter("ignore")
    logging.getLogger("byov").addHandler(logging.NullHandler())
    threading.Thread(target=_exit_with_parent, daemon=True).start()


def _exit_with_parent() -> None:
    """Exit when the parent is killed, after the running task has saved its state."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    _stop_event.set()
    with _running:
        os._exit(1)


def _run_task(task: PoolTask) -> Any:
    with _running:
        return task(_stop_event.is_set)
