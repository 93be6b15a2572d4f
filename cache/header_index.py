"""What the feature files of a folder say of themselves, in one file beside them: a large cache is looked
through without opening it video by video.

The files themselves keep it true. An entry counts only while its file has the inode, the size and the times that it
had when it was read; one that is damaged, or was written by another byov or on another machine, is passed over, and the
file is read. So the index may be deleted at any time, and is left out of copies. Damage to a file that its inode, size
and times do not show is found where its rows are read, and by byov-cache verify, which looks at no index.

An entry also has the state that the file's source, the video, had when the two were last compared and agreed: a source
in that very state need not be read again.
"""

import hashlib
import json
import os
import sqlite3
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self
from urllib.parse import quote

import numpy as np

from byov import __version__
from byov.cache.atomic import PartialFile
from byov.cache.features import Facts, header_of, read_facts
from byov.cache.layout import ratio_key
from byov.errors import CacheError

INDEX_NAME = ".headers.sqlite"
FEW_FILES = 64  # are read again more quickly than an index is written anew
SETTLED_NS = 2 * 10**9  # the longest tick of the clock that a disk's times are from
MOST_ENTRIES = 10**6
CACHE_KIB = 512  # entries are asked for one after the other, and once
LONGEST_ENTRY_BYTES = 64 << 20  # times of eight million frames
_TABLE = f'"headers of byov {__version__}"'
_SCHEMA = (
    f"CREATE TABLE {_TABLE} "
    "(name BLOB PRIMARY KEY, state TEXT, source_state TEXT, said TEXT, pts_seconds BLOB, sha256 TEXT)"
)
_FIND = f"SELECT * FROM {_TABLE} WHERE name = ?"
_READ_ONLY = "mode=ro&immutable=1"  # no locks and no journal: an index is replaced, never changed
_UNREADABLE = (CacheError, AttributeError, KeyError, TypeError, ValueError, RecursionError)


@dataclass(frozen=True)
class IndexedFacts(Facts):
    """Facts, and the states of files that they hold for; see settled_state."""

    state: str | None  # of the file
    source_state: str | None = None  # in which the source was compared with them, and agreed; None if it was not


class HeaderIndex:
    """Facts of the files of one encoder's folder, from the index where it is true; a context that leaves a better one.

    Where none can be written, on a read-only or a full disk, all goes on without.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / INDEX_NAME
        self._before = _open_index(self._path)
        self._after: _IndexWriter | None = None
        self._new: dict[bytes, _Entry] = {}  # by name, on their way to `_after`
        self._writable = True

    def read(self, path: Path) -> IndexedFacts:
        """As read_facts, which is asked for what is not in the index."""
        state = settled_state(path)
        known = self._known(path, state) if state else None
        if known is not None:
            return known
        said = read_facts(path)
        facts = IndexedFacts(said.header, said.pts_seconds, said.digests, state)
        self._keep(facts)
        return facts

    def keep_source(self, facts: IndexedFacts, source: Path, state: str | None) -> None:
        """The source was compared with what the file says of it, and agrees; state: before it was read."""
        if state not in (None, facts.source_state) and state == settled_state(source):
            self._keep(replace(facts, source_state=state))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            if kind is None and self._after is not None:
                self._write()
                self._finish()
        finally:
            self._give_up()
            if self._before is not None:
                self._before.close()

    def _known(self, path: Path, state: str) -> IndexedFacts | None:
        if self._before is None:
            return None
        try:
            found = self._before.execute(_FIND, (_name(path),)).fetchone()
            return _Entry(*found).facts(path, state) if found else None
        except sqlite3.Error:
            self._before.close()
            self._before = None
            return None
        except _UNREADABLE:
            return None

    def _keep(self, facts: IndexedFacts) -> None:
        if facts.state is not None and facts.state == settled_state(facts.header.path):
            entry = _Entry.of(facts, facts.state)
            self._new[entry.name] = entry
        if len(self._new) >= FEW_FILES:
            self._write()

    def _write(self) -> None:
        if self._writable:
            try:
                self._after = self._after or _IndexWriter(self._path)
                self._after.add(self._new.values())
            except (OSError, sqlite3.Error):
                self._give_up()
        self._new.clear()

    def _finish(self) -> None:
        """Add what was known of files that were not asked for, or not again; then the new index takes its place."""
        if self._after is not None:
            with suppress(OSError, sqlite3.Error):
                if self._before is not None:
                    self._after.add(_still_there(self._before, self._path.parent), or_else="IGNORE")
                self._after.finish()

    def _give_up(self) -> None:
        self._writable = False
        if self._after is not None:
            self._after.close()
            self._after = None


class _Entry(NamedTuple):
    """A line of the index, as it is stored; nothing in it is believed before `facts` has looked at it."""

    name: bytes  # ego/004.h5
    state: str
    source_state: str | None
    said: str
    pts_seconds: bytes
    sha256: str  # of all of this

    @classmethod
    def of(cls, facts: IndexedFacts, state: str) -> Self:
        header = facts.header
        attributes = asdict(header.provenance) | {
            "fps": header.fps,
            "truncated": header.truncated,
            "corrupt_frames": header.corrupt_frames,
        }
        said = json.dumps({"attributes": attributes, "digests": facts.digests})
        entry = cls(_name(header.path), state, facts.source_state, said, facts.pts_seconds.tobytes(), "")
        return entry._replace(sha256=entry.digest())

    def digest(self) -> str:
        texts = f"{self.state}\n{self.source_state}\n{self.said}\n".encode()
        return hashlib.sha256(self.name + b"\n" + texts + self.pts_seconds).hexdigest()

    def is_sound(self) -> bool:
        try:
            return self.sha256 == self.digest()
        except TypeError:  # where bytes should be, there is something else
            return False

    def facts(self, path: Path, state: str) -> IndexedFacts | None:
        """What it says of a file in this state; None if it is damaged or of another state."""
        if self.state != state or self.name != _name(path) or not self.is_sound():
            return None
        said: dict[str, dict[str, Any]] = json.loads(self.said)
        digests = {column: _checked_text(digest) for column, digest in said["digests"].items()}
        pts_seconds = np.frombuffer(self.pts_seconds, np.float64)
        header = header_of(path, said["attributes"] | {"columns": list(digests)}, len(pts_seconds))
        if any(ratio != ratio_key(float(ratio)) for ratio in header.ratios):
            return None
        return IndexedFacts(header, pts_seconds, digests, state, self.source_state)


class _IndexWriter:
    """A new index, whole once it is finished."""

    def __init__(self, path: Path) -> None:
        self._partial = PartialFile(path)
        try:
            # The partial file carries our own lock (see atomic); it is nobody's before it is whole.
            self._database = _connect(self._partial.path, "mode=rw&nolock=1")
            for line in ("PRAGMA journal_mode = OFF", "PRAGMA synchronous = OFF", "BEGIN", _SCHEMA):
                self._database.execute(line)
        except BaseException:
            self._partial.discard()
            raise

    def add(self, entries: Iterable[_Entry], or_else: Literal["REPLACE", "IGNORE"] = "REPLACE") -> None:
        """or_else: what becomes of an entry that is there already, or of the one that comes again."""
        self._database.executemany(f"INSERT OR {or_else} INTO {_TABLE} VALUES (?, ?, ?, ?, ?, ?)", entries)

    def finish(self) -> None:
        self._database.execute("COMMIT")
        self._database.close()
        self._partial.commit()

    def close(self) -> None:
        """Drop it, unless it is finished."""
        self._database.close()
        self._partial.discard()


def _open_index(path: Path) -> sqlite3.Connection | None:
    """The index, if it is one of this byov; others may hold anything, views that never end among it."""
    if not path.is_file():
        return None
    try:
        database = _connect(path, _READ_ONLY)
    except sqlite3.Error:
        return None
    try:
        database.execute("PRAGMA trusted_schema = OFF")
        database.execute("PRAGMA cell_size_check = ON")
        found = database.execute("SELECT type, sql FROM sqlite_schema").fetchmany(3)
        if sorted(found, key=str) == [("index", None), ("table", _SCHEMA)]:
            return database
    except sqlite3.Error:
        pass
    database.close()
    return None


def _connect(path: Path, options: str) -> sqlite3.Connection:
    database = sqlite3.connect(f"file:{quote(os.fsencode(path.absolute()))}?{options}", uri=True, isolation_level=None)
    database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LONGEST_ENTRY_BYTES)
    database.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
    return database


def _still_there(index: sqlite3.Connection, folder: Path) -> Iterator[_Entry]:
    """The sound entries of files that are there; whether they are still true is seen when they are asked for."""
    with suppress(sqlite3.Error):
        for row in islice(index.execute(f"SELECT * FROM {_TABLE}"), MOST_ENTRIES):
            entry = _Entry(*row)
            if entry.is_sound() and (folder / os.fsdecode(entry.name)).is_file():
                yield entry


def _name(path: Path) -> bytes:
    return os.fsencode("/".join(path.parts[-2:]))


def settled_state(path: Path) -> str | None:
    """What changes with every change of a file: its inode, size, time of modification, and time of change, which no
    program can set. None if it is not there, or has just changed: its times might not show another change."""
    try:
        found = path.stat()
    except OSError:
        return None
    if time.time_ns() - found.st_ctime_ns <= SETTLED_NS:
        return None
    return f"{found.st_ino} {found.st_size} {found.st_mtime_ns} {found.st_ctime_ns}"


def _checked_text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not text")
    return value
