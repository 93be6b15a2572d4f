"""Files that appear whole or not at all.

A file is written under a temporary name in its own folder, synced, and renamed. The writer holds a lock on the
temporary file for as long as it lives, so that a later process can tell the leftovers of a killed writer (no
lock: remove) from the work of a live one (locked: leave alone).
"""

import errno
import fcntl
import logging
import os
import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

LOGGER = logging.getLogger(__name__)

PARTIAL_SUFFIX = ".partial"
NOT_WRITABLE = (errno.EROFS, errno.EACCES, errno.EPERM)
LOOKS, LOOK_SECONDS = 20, 0.005
_without_locks: set[Path] = set()  # folders of which it was said
_live: set[Path] = set()  # this process's own temporary files
# Held while one, a lock or a folder is made or gets its final name, and by a writer that opens it by name, which could
# make it anew: none slips past an exit.
creation = threading.RLock()


class PartialFile:
    """A locked temporary file beside `final`: `commit` gives it that name, `discard` removes it."""

    def __init__(self, final: Path) -> None:
        self.final = final
        with creation:
            make_folder(final.parent)
            try:
                self.path, self._lock = _create_locked(final)
            except OSError as error:  # of a folder that may not be written to; nobody knows the temporary name
                error.filename = str(final)
                raise
            _live.add(self.path)

    def commit(self) -> None:
        try:
            _sync(self.path)
            with creation:
                self.path.replace(self.final)
            _sync(self.final.parent)
        finally:
            self.discard()

    def discard(self) -> None:
        with suppress(OSError):  # a folder that became unwritable must not hide the error that brought us here
            self.path.unlink()
        _live.discard(self.path)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


@contextmanager
def replacing(final: Path) -> Iterator[Path]:
    """Yield a temporary path that becomes `final` when the block ends, and vanishes when it raises."""
    partial = PartialFile(final)
    try:
        yield partial.path
        partial.commit()
    except OSError as error:  # of a full disk, which does not say what it has no room for
        if error.filename is None:
            error.filename = str(final)
        raise
    finally:
        partial.discard()


@contextmanager
def replacing_file(final: Path) -> Iterator[BinaryIO]:
    """The same as an open file."""
    # Not "wb", which would make it anew after an exit has removed it.
    with replacing(final) as partial, partial.open("r+b") as file:
        yield file


def write_text(final: Path, text: str) -> None:
    """Replace the text file `final`, unless it holds exactly this text already."""
    write_bytes(final, text.encode())


def write_bytes(final: Path, content: bytes) -> None:
    """The same of a file of any kind."""
    if final.is_file() and final.read_bytes() == content:
        return
    with replacing_file(final) as file:
        file.write(content)


def remove_abandoned(folder: Path) -> None:
    """Remove the temporary files below `folder` whose writers are dead."""
    for partial in folder.rglob(f".*{PARTIAL_SUFFIX}"):
        with suppress(OSError):  # locked by a live writer, gone meanwhile, or not ours to remove
            descriptor = os.open(partial, os.O_RDWR)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                partial.unlink()
            finally:
                os.close(descriptor)


def discard_own() -> None:
    """Remove this process's temporary files, finished or not."""
    with creation:
        for path in list(_live):
            with suppress(OSError):
                path.unlink()


@contextmanager
def exclusive(lock_file: Path, *, wait: bool = True) -> Iterator[None]:
    """Let one process at a time through, on this machine and on shared disks that support locks.

    With wait=False, a BlockingIOError instead of a wait for the other. Where nothing can be written (a read-only disk)
    there is nothing to guard: who writes after all gets the error of that.
    """
    make_folder(lock_file.parent)
    try:
        with creation:
            descriptor = os.open(lock_file, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        if error.errno not in NOT_WRITABLE:
            raise
        yield
        return
    try:
        try:
            _lock(descriptor, wait=wait)
        except BlockingIOError:
            raise
        except OSError as error:  # the rename still keeps every file whole
            _say_without_locks(lock_file.parent, error)
        yield
    finally:
        os.close(descriptor)


def _lock(descriptor: int, *, wait: bool) -> None:
    """Who only looks whether a lock is held (run_progress.at_work) holds it for an instant: that is waited for."""
    for _ in range(0 if wait else LOOKS):
        with suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        time.sleep(LOOK_SECONDS)
    fcntl.flock(descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)


def make_folder(folder: Path) -> None:
    """Make a folder and its parents, such that they outlast a loss of power."""
    with creation:
        absent = [path for path in (folder, *folder.parents) if not path.exists()]
        folder.mkdir(parents=True, exist_ok=True)
    for path in absent:
        _sync(path.parent)


def _say_without_locks(folder: Path, error: OSError) -> None:
    if folder not in _without_locks:
        _without_locks.add(folder)
        LOGGER.warning(
            f"{folder}: its file system has no locks ({error.strerror}); let one process at a time work there"
        )


def _create_locked(final: Path) -> tuple[Path, int | None]:
    while True:
        partial = final.with_name(f".{final.name}.{secrets.token_hex(4)}{PARTIAL_SUFFIX}")
        descriptor = os.open(partial, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_SH)
        # Between creation and lock another process may have taken the file for abandoned.
        if partial.exists():
            return partial, descriptor
        os.close(descriptor)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
