"""An HDF5 file of arrays that grow together by one row per frame.

Memory stays bounded: rows are buffered to blocks of fixed size and appended. The bytes of the finished file depend
only on its contents, never on how the rows arrived: blocks have a fixed size, and nothing records a time.
"""

import errno
import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import h5py
import numpy as np
from numpy.typing import DTypeLike, NDArray

from byov.cache.atomic import PartialFile, creation
from byov.cache.seal import header_digest

CHUNK_ROWS = 64  # unit of storage: what a short video wastes at most, what a read of one frame costs
BLOCK_ROWS = 4 * CHUNK_ROWS  # unit of writing: each call into HDF5 costs, whatever it writes
# HDF5's own structures: a fixed part for headers, attributes and trees, and a small share of the data.
METADATA_BYTES, METADATA_SHARE = 1 << 20, 0.02


class RowWriter:
    """Appends rows to the named columns; the file appears under its name only after `finish`.

    columns: name → (shape of one row, dtype). Used as a context manager; leaving it without `finish` leaves nothing.
    """

    def __init__(self, path: Path, columns: Mapping[str, tuple[tuple[int, ...], DTypeLike]]) -> None:
        self.path = path
        self.rows = 0  # appended so far
        self._buffered = 0  # of these, not yet in the file
        self._reserved_bytes = 0
        self._columns = {
            name: _Column(name, row_shape, np.dtype(dtype)) for name, (row_shape, dtype) in columns.items()
        }
        with creation:
            self._partial = PartialFile(path)
            try:
                self._reserve(METADATA_BYTES)
                # The partial file carries our own lock (see atomic); HDF5's would collide with it.
                self._file = h5py.File(self._partial.path, "w", locking=False, rdcc_nbytes=0)
                self._reserve(0)  # opening has emptied the file
            except BaseException:
                self._partial.discard()
                raise

    def append(self, rows: Mapping[str, NDArray[Any]]) -> None:
        """Add rows: one array (n, *row shape) for each column, n the same for all."""
        if rows.keys() != self._columns.keys():
            raise ValueError(f"columns {', '.join(rows)}; expected {', '.join(self._columns)}")
        counts = {name: len(values) for name, values in rows.items()}
        if len(set(counts.values())) > 1:
            raise ValueError(f"columns of different length: {counts}")
        for name, column in self._columns.items():
            column.check(rows[name])
        first, end = 0, next(iter(counts.values()))
        while first < end:
            count = min(end - first, BLOCK_ROWS - self._buffered)
            for name, column in self._columns.items():
                column.block[self._buffered : self._buffered + count] = rows[name][first : first + count]
            first += count
            self.rows += count
            self._buffered += count
            if self._buffered == BLOCK_ROWS:
                self._write_block()

    def finish(self, attrs: Mapping[str, str | int | float | bool]) -> None:
        """Write what is left and the attributes, close the file, and give it its name."""
        if self._buffered or not self.rows:
            self._write_block()
        for name, column in self._columns.items():
            # Its name too: a damaged link could give one column the name of another.
            for key, value in (("column", name), ("sha256", column.digest.hexdigest())):
                self._file[name].attrs[key] = _storable(value)
        header = dict(attrs) | {"columns": " ".join(sorted(self._columns))}
        header["header_sha256"] = header_digest(header)
        for key in sorted(header):
            self._file.attrs[key] = _storable(header[key])
        self._file.flush()
        size = self._file.id.get_filesize()
        self._file.close()
        os.truncate(self._partial.path, size)  # give back what was reserved and not needed
        self._partial.commit()

    def close(self) -> None:
        """Drop the file, unless it is finished."""
        if self._file:
            self._file.close()
        self._partial.discard()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _write_block(self) -> None:
        count, written = self._buffered, self.rows - self._buffered
        self._reserve(stored_rows(count) * sum(column.row_bytes for column in self._columns.values()))
        for name, column in self._columns.items():
            if column.dataset is None:
                column.dataset = self._file.create_dataset(
                    name,
                    shape=(0, *column.row_shape),
                    maxshape=(None, *column.row_shape),
                    chunks=(CHUNK_ROWS, *column.row_shape),
                    dtype=column.block.dtype,
                    fletcher32=True,  # a rotten block raises on read instead of giving wrong numbers
                )
            column.digest.update(column.block[:count].data)
            column.dataset.resize(self.rows, axis=0)
            column.dataset[written:] = column.block[:count]
        self._buffered = 0

    def _reserve(self, data_bytes: int) -> None:
        """Claim disk space before HDF5 needs it: HDF5 crashes the process when a write of its own finds none."""
        self._reserved_bytes += int(data_bytes * (1 + METADATA_SHARE))
        if not hasattr(os, "posix_fallocate"):
            return
        descriptor = os.open(self._partial.path, os.O_RDWR)
        try:
            os.posix_fallocate(descriptor, 0, self._reserved_bytes)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
                raise OSError(error.errno, os.strerror(error.errno or 0), str(self.path)) from None
        finally:
            os.close(descriptor)


def stored_rows(rows: int) -> int:
    """For how many there is room on disk: chunks are whole.

    >>> stored_rows(1)
    64
    """
    return -(-rows // CHUNK_ROWS) * CHUNK_ROWS


def _storable(value: str | int | float | bool) -> NDArray[Any] | int | float | bool:
    """Text as bytes of fixed length: of variable length, one damaged byte can hang or crash HDF5's reading of it."""
    if not isinstance(value, str):
        return value
    text = value.encode("utf-8", "surrogateescape")
    return np.array(text, dtype=h5py.string_dtype("utf-8", max(len(text), 1)))


class _Column:
    """One dataset: the rows on their way to it and the digest of all its rows so far."""

    def __init__(self, name: str, row_shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self.name, self.row_shape = name, row_shape
        self.block = np.empty((BLOCK_ROWS, *row_shape), dtype)
        self.dataset: h5py.Dataset | None = None  # made with the first block
        self.digest = hashlib.sha256()
        self.row_bytes = self.block.nbytes // BLOCK_ROWS

    def check(self, rows: NDArray[Any]) -> None:
        if rows.shape[1:] != self.row_shape:
            raise ValueError(f"{self.name}: rows of shape {rows.shape[1:]}, expected {self.row_shape}")
