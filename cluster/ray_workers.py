"""Pieces of work on a Ray cluster.

Ray repeats nothing by itself and is never waited for longer than was asked.
"""

import logging
import pickle
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from byov.cluster.driver_path import driver_only_path
from byov.cluster.hand_out import MOST_ATTEMPTS
from byov.cluster.ray_session import ClusterOptions, ray_session
from byov.cluster.ray_task import do_work, machine_report, versions
from byov.cluster.shared_marker import marker_in
from byov.cluster.worker_process import Answer, Work
from byov.cluster.worker_report import SharedFiles, WorkerReport
from byov.cluster.worker_room import able_machines, workers_to_hire
from byov.cluster.workers import thread_variables
from byov.errors import ClusterError
from byov.text import pluralize

LOGGER = logging.getLogger(__name__)
REPORT_SECONDS = 60.0  # for a machine to say what it is


@contextmanager
def ray_workers(cluster: ClusterOptions, results: Path, files: Sequence[Path]) -> Iterator["RayWorkers"]:
    """Workers on machines that are alike, and that see the folder of results and these files."""
    with ray_session(cluster), marker_in(results) as marker:
        _refuse_unlike_machines(
            cluster, SharedFiles(marker, tuple((path.absolute(), path.stat().st_size) for path in files))
        )
        yield RayWorkers(cluster, marker)


def _refuse_unlike_machines(cluster: ClusterOptions, shared: SharedFiles) -> None:
    import ray
    from ray.exceptions import RayError
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    ask = ray.remote(num_cpus=0, max_retries=0)(machine_report)
    asked = [
        ask.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)).remote(
            shared, driver_only_path()
        )
        for node in able_machines(cluster)
    ]
    try:
        reports: list[WorkerReport] = ray.get(asked, timeout=REPORT_SECONDS)
    except RayError as error:
        reason = " ".join(str(error).split())
        raise ClusterError(f"a machine of the cluster does not say what it is ({reason})") from error
    for report in reports:
        report.refuse_unlike(WorkerReport("this machine", versions()))
    LOGGER.info(f"{pluralize(len(reports), 'machine')} of a Ray cluster")


class RayWorkers:
    """A `Workers`. Work whose worker is lost is begun again, and so resumed; after three losses it is given up.

    marker: a file that tells work to stop once it is gone.
    """

    def __init__(self, cluster: ClusterOptions, marker: Path) -> None:
        import ray

        self._marker, self._size = marker, workers_to_hire(cluster)
        self._task: Any = ray.remote(
            num_cpus=cluster.cpus_per_worker,
            num_gpus=cluster.gpus_per_worker,
            max_retries=0,
            scheduling_strategy="SPREAD",
            runtime_env={"env_vars": thread_variables(cluster.cpus_per_worker)},
        )(do_work)
        self._waiting: deque[Work] = deque()
        self._under_way: dict[Any, Work] = {}
        self._losses: Counter[str] = Counter()

    def submit(self, work: Work) -> None:
        self._waiting.append(work)
        self._hand_out()

    def running(self) -> list[str]:
        return [work.name for work in self._under_way.values()]

    def wait(self, seconds: float) -> list[Answer]:
        import ray

        ready, _ = ray.wait(list(self._under_way), timeout=seconds) if self._under_way else ([], [])
        heard = [self._receive(reference) for reference in ready]
        self._hand_out()
        return [answer for answer in heard if answer is not None]

    def stop(self) -> None:
        self._waiting.clear()
        self._marker.unlink(missing_ok=True)

    def close(self) -> None:
        import ray

        self._waiting.clear()
        for reference in self._under_way:
            ray.cancel(reference, force=True)
        self._under_way.clear()

    def _hand_out(self) -> None:
        while self._waiting and len(self._under_way) < self._size:
            work = self._waiting.popleft()
            self._under_way[self._task.remote(pickle.dumps(work), self._marker, driver_only_path())] = work

    def _receive(self, reference: Any) -> Answer | None:
        """None: it is begun again."""
        import ray
        from ray.exceptions import RayError, RayTaskError

        work = self._under_way.pop(reference)
        try:
            answer: Answer = ray.get(reference)
            return answer
        except RayTaskError as error:  # what work itself raises is in its answer
            return Answer(work.name, error=f"{type(error.cause).__name__}: {error.cause}", trace=str(error))
        except RayError as error:
            return self._lose(work, type(error).__name__)

    def _lose(self, work: Work, reason: str) -> Answer | None:
        self._losses[work.name] += 1
        if self._losses[work.name] >= MOST_ATTEMPTS or not self._marker.exists():
            return Answer(work.name, error=f"its worker is lost ({reason})")
        LOGGER.info(f"{work.name}: its worker is lost ({reason}); it is gone on with")
        self._waiting.appendleft(work)
        return None
