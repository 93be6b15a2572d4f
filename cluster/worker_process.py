"""A process that does one piece of work after the other, for whoever has started it."""

import traceback
from dataclasses import dataclass
from multiprocessing.connection import Connection
from queue import SimpleQueue
from threading import Event, Thread
from typing import Any, Protocol

from byov.progress import Stop

STOP = "stop"
START = "import sys; from byov.cluster.worker_process import work_for; work_for(int(sys.argv[1]))"


class Work(Protocol):
    """A piece of work that can be pickled."""

    @property
    def name(self) -> str:
        """By which its answer is known."""

    def __call__(self, stop: Stop) -> Any:
        """Do it, and give a result that can be pickled. Once `stop` says so, come to an end that can be resumed."""


@dataclass(frozen=True)
class Answer:
    """What became of a piece of work: its result, or why there is none."""

    name: str
    result: Any = None
    error: str = ""  # one line: an exception that the work did not expect, or the loss of the process
    trace: str = ""  # where the exception came from


def answer_to(work: Work, stop: Stop) -> Answer:
    try:
        return Answer(work.name, work(stop))
    except Exception as error:
        first = (str(error).splitlines() or [""])[0]
        return Answer(work.name, error=f"{type(error).__name__}: {first}", trace=traceback.format_exc())


def work_for(descriptor: int) -> None:
    """Until the other end of the connection is closed; then what is under way is told to stop.

    descriptor: of a socket, over which come pieces of work, and STOP for the one that is under way.
    """
    connection: Connection[Any, Any] = Connection(descriptor)
    waiting: SimpleQueue[tuple[Work, Event] | None] = SimpleQueue()
    Thread(target=_listen, args=(connection, waiting), daemon=True).start()
    while (received := waiting.get()) is not None:
        work, stop = received
        answer = answer_to(work, stop.is_set)
        try:
            connection.send(answer)
        except OSError:  # nobody is left to be told
            return


def _listen(connection: "Connection[Any, Any]", waiting: "SimpleQueue[tuple[Work, Event] | None]") -> None:
    stop = Event()
    try:
        while True:
            message = connection.recv()
            if message == STOP:
                stop.set()
            else:
                stop = Event()
                waiting.put((message, stop))
    except (EOFError, OSError):
        stop.set()
        waiting.put(None)
