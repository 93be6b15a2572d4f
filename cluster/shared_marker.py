"""A file by which machines know that they see the same folder, and that the driver is still about its work."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from byov.cache.atomic import PartialFile

LOOK_SECONDS = 0.5


@contextmanager
def marker_in(folder: Path) -> Iterator[Path]:
    """A file that is there for as long as this lasts, in the folder or, where it is still to be made, above it."""
    existing = next(path for path in (folder, *folder.absolute().parents) if path.is_dir())
    marker = PartialFile(existing.absolute() / "cluster")
    try:
        yield marker.path
    finally:
        marker.discard()


class UntilGone:
    """A stop for work on another machine: it says so once a file is gone, for which it looks twice a second."""

    def __init__(self, marker: Path) -> None:
        self._marker, self._gone, self._looked = marker, False, -LOOK_SECONDS

    def __call__(self) -> bool:
        now = time.monotonic()
        if not self._gone and now - self._looked >= LOOK_SECONDS:
            self._looked, self._gone = now, _is_gone(self._marker)
        return self._gone


def _is_gone(path: Path) -> bool:
    """Not merely out of reach, as a file on a disk of the network can be for a while."""
    try:
        path.stat()
    except FileNotFoundError:
        return True
    except OSError:
        pass
    return False
