"""What the HuggingFace hub's library says of a hub that does not answer: one line in the place of two per attempt."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

SPEAKER = "huggingface_hub.utils._http"
_MARKS = (" thrown while requesting ", "Retrying in ", "Rate limited. Waiting ")


class RetriesOnce(logging.Filter):
    """Lets no word on a retry through, and says once that there are retries."""

    def __init__(self, say: Callable[[str], None]) -> None:
        super().__init__()
        self._say, self._said = say, False

    def filter(self, record: logging.LogRecord) -> bool:
        if not any(mark in record.getMessage() for mark in _MARKS):
            return True
        if not self._said:
            self._said = True
            self._say(
                "the HuggingFace hub does not answer; trying again for a while (HF_HUB_OFFLINE=1 does not ask it)"
            )
        return False


@contextmanager
def retries_said_once(say: Callable[[str], None]) -> Iterator[None]:
    speaker, once = logging.getLogger(SPEAKER), RetriesOnce(say)
    speaker.addFilter(once)
    try:
        yield
    finally:
        speaker.removeFilter(once)
