"""Pieces of work in other processes: what is asked of whoever runs them, and the processes of this machine.

A worker is handed one piece of work after the other, so that it imports PyTorch once. What it needs must be seen from
where it runs: paths are absolute.
"""

import os
import subprocess
import sys
import tempfile
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from socket import socketpair
from typing import Any, Protocol

from byov.cluster.worker_process import START, STOP, Answer, Work


def thread_variables(count: int) -> dict[str, str]:
    """What tells a process at its start with how many threads to compute. Bits are the same only between equal numbers
    of them."""
    return dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), str(count))


class Workers(Protocol):
    """Each piece of work that is handed in comes back as one answer, in whatever order, unless it is told to stop."""

    def submit(self, work: Work) -> None:
        """It is begun as soon as a worker is free, after what was submitted before."""

    def running(self) -> list[str]:
        """The names of the work that is under way."""

    def wait(self, seconds: float) -> list[Answer]:
        """What has ended since the last call; [] if nothing has within the time."""

    def stop(self) -> None:
        """Begin nothing more, and ask what is under way to leave what it needs to be resumed; it ends as usual."""

    def close(self) -> None:
        """End all workers at once, whatever they do."""


@dataclass
class _Worker:
    process: "subprocess.Popen[bytes]"
    connection: "Connection[Any, Any]"
    said: Any  # the file of its standard error
    work: Work | None = None


class LocalWorkers:
    """Processes of this machine, of one thread each, since several use the cores; begun when there is work for them,
    replaced when they die."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._workers: list[_Worker] = []
        self._waiting: deque[Work] = deque()

    def submit(self, work: Work) -> None:
        self._waiting.append(work)
        self._hand_out()

    def running(self) -> list[str]:
        return [worker.work.name for worker in self._workers if worker.work is not None]

    def wait(self, seconds: float) -> list[Answer]:
        by_connection = {worker.connection: worker for worker in self._workers if worker.work is not None}
        ready = wait(list(by_connection), seconds) if by_connection else []
        answers = [self._receive(by_connection[connection]) for connection in ready]  # type: ignore[index]
        self._hand_out()
        return answers

    def stop(self) -> None:
        self._waiting.clear()
        for worker in self._workers:
            if worker.work is not None:
                self._send(worker, STOP)

    def close(self) -> None:
        self._waiting.clear()
        for worker in self._workers:
            worker.process.kill()
        while self._workers:
            self._bury(self._workers[-1])

    def _hand_out(self) -> None:
        while self._waiting:
            idle = next((worker for worker in self._workers if worker.work is None), None)
            if idle is None:
                if len(self._workers) >= self._size:
                    return
                idle = self._begin()
            idle.work = self._waiting.popleft()
            self._send(idle, idle.work)

    def _begin(self) -> _Worker:
        """In a session of its own: Ctrl-C in the terminal is for who started it, which tells the workers."""
        ours, theirs = socketpair()
        said = tempfile.TemporaryFile()  # noqa: SIM115  closed when the worker is gone
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-P", "-c", START, str(theirs.fileno())],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=said,
                start_new_session=True,
                env={**os.environ, **thread_variables(1)},
            )
        worker = _Worker(process, Connection(ours.detach()), said)
        self._workers.append(worker)
        return worker

    def _send(self, worker: _Worker, message: Any) -> None:
        with suppress(OSError):  # it is gone, which `wait` will find
            worker.connection.send(message)

    def _receive(self, worker: _Worker) -> Answer:
        work, worker.work = worker.work, None
        assert work is not None
        try:
            answer: Answer = worker.connection.recv()
            return answer
        except (EOFError, OSError):
            worker.process.kill()
            return Answer(work.name, error=f"its process is gone ({self._bury(worker)})")

    def _bury(self, worker: _Worker) -> str:
        """What a worker that has ended, or is about to, has left to say."""
        code = worker.process.wait()
        worker.connection.close()
        self._workers.remove(worker)
        with worker.said as file:
            file.seek(0)
            lines = file.read()[-10_000:].decode(errors="replace").strip().splitlines()
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        return ": ".join([how, *lines[-1:]])
