"""Atomic file writes and locks.

A file is written under a temporary name in its final folder, synced and renamed, so it is either
complete or absent. Writers hold a lock on `<temporary name>.lock`. If the lock is free, the writer
was killed and a later process removes the temporary file.
"""

import errno
import logging
import os
import secrets
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import BinaryIO

from filelock import FileLock, Timeout

LOGGER = logging.getLogger(__name__)

PARTIAL_SUFFIX = ".partial"
_live: dict["PartialFile", FileLock] = {}  # temporary files of this process and their locks
# Lock that is held while a file or folder is created or renamed. An exit handler can acquire it
# before `discard_own` to prevent other threads from creating files afterwards.
creation = threading.RLock()


class PartialFile:
    """Temporary file next to `final`; `commit` renames it to `final`, `discard` removes it."""

    def __init__(self, final: Path) -> None:
        self.final = final
        self.path = final.with_name(f".{final.name}.{secrets.token_hex(4)}{PARTIAL_SUFFIX}")
        self._lock_path = self.path.with_name(f"{self.path.name}.lock")
        with creation:
            make_folder(final.parent)
            try:
                lock = _acquire(self._lock_path)
                self.path.touch(exist_ok=False)
            except OSError as error:  # report the final name, not the temporary one
                with suppress(OSError):
                    self._lock_path.unlink(missing_ok=True)
                error.filename = str(final)
                raise
            _live[self] = lock

    def commit(self) -> None:
        try:
            _sync(self.path)
            with creation:
                self.path.replace(self.final)
            _sync(self.final.parent)
        finally:
            self.discard()

    def discard(self) -> None:
        lock = _live.pop(self, None)
        if lock is None:
            return
        for path in (self.path, self._lock_path):
            with suppress(OSError):  # do not mask the original error
                path.unlink(missing_ok=True)
        lock.release(force=True)


@contextmanager
def replacing(final: Path) -> Iterator[Path]:
    """Yield a temporary path that is renamed to `final` on success and removed if the block
    raises.
    """
    partial = PartialFile(final)
    try:
        yield partial.path
        partial.commit()
    except OSError as error:
        if error.filename is None:  # on a full disk, the error has no file name
            error.filename = str(final)
        raise
    finally:
        partial.discard()


@contextmanager
def replacing_file(final: Path) -> Iterator[BinaryIO]:
    """Like `replacing`, but yield an open binary file."""
    # Mode "wb" would recreate the file after an exit handler has removed it.
    with replacing(final) as partial, partial.open("r+b") as file:
        yield file


def write_text(final: Path, text: str) -> None:
    """Replace a text file atomically; do nothing if it already has this content."""
    write_bytes(final, text.encode())


def write_bytes(final: Path, content: bytes) -> None:
    """Replace a binary file atomically; do nothing if it already has this content."""
    is_same_size = final.is_file() and final.stat().st_size == len(content)
    if is_same_size and final.read_bytes() == content:
        return
    with replacing_file(final) as file:
        file.write(content)


def make_folder(folder: Path) -> None:
    """Create a folder and its parents, and sync them to disk."""
    with creation:
        absent = [path for path in (folder, *folder.parents) if not path.exists()]
        folder.mkdir(parents=True, exist_ok=True)
    for path in absent:
        _sync(path.parent)


def remove_abandoned(folder: Path, *, recursive: bool = True) -> None:
    """Remove temporary files of killed writers from `folder` and, if `recursive` is True, its
    subfolders.
    """
    for lock_path in folder.glob(f"{'**/' * recursive}.*{PARTIAL_SUFFIX}.lock"):
        # Timeout: a live writer holds the lock. OSError: the file is gone or belongs to another
        # user.
        with suppress(Timeout, OSError), FileLock(lock_path, timeout=0):
            lock_path.with_suffix("").unlink(missing_ok=True)
            lock_path.unlink(missing_ok=True)


def discard_own() -> None:
    """Remove all temporary files of this process."""
    with creation:
        for partial in list(_live):
            partial.discard()


@contextmanager
def exclusive(lock_path: Path, *, busy: Exception | None = None) -> Iterator[None]:
    """Run the block in one process at a time. If the lock is taken, raise `busy`, or wait if it is
    None.

    In a read-only folder there is nothing to protect, so the block runs without a lock.
    """
    make_folder(lock_path.parent)
    with ExitStack() as stack:
        try:
            stack.callback(_acquire(lock_path, wait=busy is None).release)
        except OSError as error:
            if busy is not None and isinstance(error, BlockingIOError):
                raise busy from None
            if error.errno not in (errno.EROFS, errno.EACCES, errno.EPERM):
                raise
        yield


def is_locked(lock_path: Path) -> bool:
    """Return whether any process holds the lock at `lock_path` (see `exclusive`)."""
    if not lock_path.exists():
        return False
    try:
        with FileLock(lock_path, timeout=0):
            return False
    except Timeout:
        return True
    except OSError:  # a read-only folder, or a file system without locks
        return False


def _acquire(lock_path: Path, *, wait: bool = False) -> FileLock:
    """Acquire a lock; if the file system does not support locks, warn once and continue without
    one.
    """
    # 0.1 seconds tolerate `is_locked` in another process, which holds the lock briefly.
    lock = FileLock(lock_path, timeout=-1 if wait else 0.1, mode=0o666, thread_local=False)
    try:
        lock.acquire(poll_interval=0.005)
    except Timeout:
        raise BlockingIOError(errno.EAGAIN, "locked by another process", str(lock_path)) from None
    except OSError as error:
        if error.errno not in (errno.ENOLCK, errno.EOPNOTSUPP):
            raise
        _warn_without_locks(lock_path.parent)
    return lock


@cache
def _warn_without_locks(folder: Path) -> None:
    LOGGER.warning(
        f"{folder}: this file system does not support locks; run only one process at a time in "
        "this folder"
    )


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
