"""Score the rows of a table in parallel processes, with one thread each."""

import os
from collections.abc import Sequence
from dataclasses import dataclass

from byov.cache.manifest import Manifest
from byov.device import computing_threads
from byov.errors import EvaluationError, ProcessLost
from byov.evaluate.embeddings import EmbeddingReader
from byov.evaluate.evaluation import RowsOrError, Scope, evaluate_or_skip
from byov.progress import NO_PROGRESS, Progress, Stop, Stoppable
from byov.workers import LocalWorkers

MIN_FRAMES = 10_000  # with fewer frames, starting the processes takes longer than scoring
# Memory for double-precision copies of 1,024 dimensions, and classifier caches.
BYTES_PER_FRAME = 32 << 10


@dataclass(frozen=True)
class RowTask:
    """Task that scores one row under all protocols."""

    name: str
    reader: EmbeddingReader
    scope: Scope

    def __call__(self, stop: Stop) -> RowsOrError:
        return evaluate_or_skip(self.reader, self.scope, Stoppable(NO_PROGRESS, stop))


def rows_at_once(manifest: Manifest, scope: Scope, rows: int) -> int:
    """Return the number of rows to score in parallel: one per core, if they fit into half of the
    memory.
    """
    frames = sum(
        video.frames or 0 for video in manifest.videos if video.split in ("train", scope.split)
    )
    if frames < MIN_FRAMES:
        return 1
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    return max(1, min(rows, computing_threads(), memory // (frames * BYTES_PER_FRAME)))


def evaluate_in_processes(
    readers: Sequence[EmbeddingReader], scope: Scope, processes: int, progress: Progress, stop: Stop
) -> list[RowsOrError]:
    """Call `evaluate_or_skip` for each reader in parallel; raise Interrupted once `stop` returns
    True.
    """
    tasks = [
        RowTask(f"row {index} ({reader.name})", reader, scope)
        for index, reader in enumerate(readers)
    ]
    scored = {}
    with (
        LocalWorkers(processes) as workers,
        progress.bar("rows", unit="row", total=len(tasks), brief=True) as bar,
    ):
        for task, rows, error in workers.run(tasks, stop=stop):
            if error is not None:
                raise (
                    EvaluationError(f"{task.reader.name}: {error}")
                    if isinstance(error, ProcessLost)
                    else error
                )
            scored[task.name] = rows
            bar.advance(latest=task.reader.name)
    return [scored[task.name] for task in tasks]
