"""Rendering many videos with all processors."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import IO, NamedTuple

from byov.data.demo.film import View
from byov.device import usable_cores


class RenderJob(NamedTuple):
    """A video to render; goes to the worker as a JSON list."""

    seed: int
    film_index: int
    view: View
    path: str
    performance: int  # film index of the video whose performance it shows: most show their own


def render_all(jobs: Sequence[RenderJob], progress: Callable[[int, int], None] | None) -> None:
    """Share the jobs out among as many processes as can work side by side."""
    count = min(usable_cores(), len(jobs))
    with _workers([jobs[start::count] for start in range(count)]) as finished:
        for done, _ in enumerate(finished, start=1):
            if progress is not None:
                progress(done, len(jobs))


@contextmanager
def _workers(shares: Sequence[Sequence[RenderJob]]) -> Iterator[IO[str]]:
    """Run a rendering process per share of the jobs; gives their joint output, a line per finished video.

    Plain subprocesses, because multiprocessing's spawned ones run the caller's main script anew, which must
    not be asked of callers. One pipe takes the output of all: lines this short are written in one piece.
    """
    command = [sys.executable, "-P", "-m", "byov.data.demo.worker"]
    read_end, write_end = os.pipe()
    workers: list[subprocess.Popen[str]] = []
    with os.fdopen(read_end) as output:
        try:
            try:
                for share in shares:
                    worker = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=write_end, text=True)
                    workers.append(worker)
                    assert worker.stdin is not None
                    with worker.stdin as stdin:
                        json.dump(share, stdin)
            finally:
                os.close(write_end)  # else the output would never end
            yield output
            statuses = [worker.wait() for worker in workers]
            if any(statuses):
                raise RuntimeError(f"rendering the demo videos failed (exit statuses {statuses})")
        finally:
            for worker in workers:
                worker.kill()
                worker.wait()
