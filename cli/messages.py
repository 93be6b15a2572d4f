"""What a command says to the person in front of it: on standard error, so that pipes stay clean."""

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from byov.text import printable

LIBRARIES = logging.getLogger("byov")


def note(message: str) -> None:
    """Tell the person, not the pipe."""
    print(printable(message), file=sys.stderr, flush=True)


class _Notes(logging.Handler):
    """What libraries log becomes a note, above the progress bars that are on the screen."""

    def emit(self, record: logging.LogRecord) -> None:
        tqdm = sys.modules.get("tqdm")  # without it there are no bars
        if tqdm is None:
            note(record.getMessage())
            return
        with tqdm.tqdm.external_write_mode():
            note(record.getMessage())


@contextmanager
def showing_log() -> Iterator[None]:
    """Within, what byov's libraries log is shown."""
    handler, level = _Notes(), LIBRARIES.level
    LIBRARIES.addHandler(handler)
    LIBRARIES.setLevel(logging.INFO)
    try:
        yield
    finally:
        LIBRARIES.removeHandler(handler)
        LIBRARIES.setLevel(level)
