"""Decoding in worker threads, ahead of the encoder and in bounded memory.

Each worker decodes one video at a time and hands over its frames in blocks; blocks of several videos arrive mixed,
those of one video in order. FFmpeg runs without Python's lock, so the workers run side by side.
"""

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from byov.cache.digests import file_sha256, file_state, fingerprint
from byov.data.video import STRICT, DecodingPolicy, FrameBlock, FrameReader
from byov.errors import DatasetError, VideoError
from byov.extract.plan import Job, OnMismatch
from byov.text import pluralize


@dataclass(frozen=True)
class PreparedFrames:
    """Consecutive frames of a video, as `prepare` has left them."""

    images: Tensor  # (n, ...)
    pts_seconds: NDArray[np.float64]  # (n,)


@dataclass(frozen=True)
class SourceFile:
    """What is known of a source file once it has been read to its end."""

    bytes: int
    sha256: str
    fingerprint: str
    fps: float
    truncated: bool
    corrupt_frames: int


@dataclass(frozen=True)
class Event:
    """The next thing that happened to a job: frames, or its end, or its failure."""

    job: Job
    frames: "PreparedFrames | None" = None
    finished: SourceFile | None = None
    failed: Exception | None = None


class DecodeAhead:
    """Iterates over the events of all jobs until each has finished or failed."""

    def __init__(
        self,
        jobs: Sequence[Job],
        *,
        prepare: Callable[[Tensor], Tensor],
        workers: int,
        threads_per_video: int = 1,
        policy: DecodingPolicy = STRICT,
        on_mismatch: OnMismatch = "error",
    ) -> None:
        self._jobs = iter(jobs)
        self._open_jobs = len(jobs)
        self._prepare = prepare
        self._threads_per_video = threads_per_video
        self._policy, self._on_mismatch = policy, on_mismatch
        self._take_lock = threading.Lock()
        self._stopped = threading.Event()
        # Some slack, so that a pause to write does not stop the decoders. A block is bounded in bytes (see data.video).
        self._events: queue.Queue[Event] = queue.Queue(maxsize=4 * workers)
        self._threads = [
            threading.Thread(target=self._work, name=f"decoder-{index}", daemon=True) for index in range(workers)
        ]

    def __iter__(self) -> Iterator[Event]:
        try:
            for thread in self._threads:
                thread.start()
            while self._open_jobs:
                event = self._events.get()
                if event.frames is None:
                    self._open_jobs -= 1
                yield event
        finally:
            self._stopped.set()

    def _work(self) -> None:
        torch.set_num_threads(1)  # of this thread: the workers are the parallelism
        while not self._stopped.is_set():
            with self._take_lock:
                job = next(self._jobs, None)
            if job is None:
                return
            with suppress(_Stopped):
                try:
                    self._put(Event(job, finished=self._decode(job)))
                except Exception as error:  # handed to the consumer, who knows what to make of it
                    self._put(Event(job, failed=error))

    def _decode(self, job: Job) -> SourceFile:
        path = job.video.path
        before = file_state(path)
        digest = file_sha256(path)
        reader = FrameReader(path, threads=self._threads_per_video, policy=self._policy)
        limit = job.label_count
        frames = 0
        for block in reader.blocks():
            wanted = block if limit is None else _first(block, limit - frames)
            frames += len(block.pixels)
            if wanted is not None:
                images = self._prepare(torch.from_numpy(wanted.pixels))
                self._put(Event(job, frames=PreparedFrames(images, wanted.pts_seconds)))
            elif self._on_mismatch == "trim":
                break
        if limit is not None and frames != limit and self._on_mismatch == "error":
            raise VideoError(
                f"{path}: {pluralize(frames, 'frame')} decoded, {pluralize(limit, 'label')}; re-export labels or use "
                "--on-mismatch trim"
            )
        _, size, _ = before
        source = SourceFile(size, digest, fingerprint(path), reader.fps, reader.truncated, reader.corrupt_frames)
        if file_state(path) != before:
            raise DatasetError(f"{path}: changed while it was read; run again when it is complete")
        return source

    def _put(self, event: Event) -> None:
        while not self._stopped.is_set():
            try:
                self._events.put(event, timeout=0.2)
                return
            except queue.Full:
                continue
        raise _Stopped


class _Stopped(BaseException):
    """The consumer has left."""


def _first(block: FrameBlock, count: int) -> FrameBlock | None:
    """The first frames of a block; None if there are none to keep."""
    if count <= 0:
        return None
    return FrameBlock(block.pixels[:count], block.pts_seconds[:count])
