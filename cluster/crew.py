"""The workers of an extraction: hired, compared, asked, and replaced when they are lost.

Ray repeats nothing by itself and is never waited for longer than a moment, so that a stop is heard.
"""

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from byov import __version__
from byov.cluster.driver_path import driver_only_path
from byov.cluster.extraction_worker import ExtractionWorker
from byov.cluster.ray_session import ClusterOptions
from byov.cluster.worker_report import WorkerReport
from byov.cluster.worker_room import no_room, workers_to_hire
from byov.errors import ClusterError
from byov.extract.extraction import VideoOutcome
from byov.extract.plan import Job
from byov.progress import Stop, raise_if_stopped
from byov.text import pluralize

LOGGER = logging.getLogger(__name__)
STEP_SECONDS = 0.2
PLACING_SECONDS = 180.0  # for which a worker waits for room and for its process
MOST_FAILED_STARTS = 3  # in a row, in one worker's place


@dataclass(frozen=True)
class Loss:
    """A worker is gone before it had done all of its chunk."""

    chunk: Sequence[Job]
    unfinished: Sequence[Job]


@dataclass(eq=False)
class Member:
    """One worker, as the driver knows it: to be placed, then loading, then with a report and at work or idle."""

    handle: Any
    waiting: Any  # for its answer: a reference, or a generator of them; None if it is idle
    failed_starts: int  # of those before it in its place
    hired: float = field(default_factory=time.monotonic)
    placed: bool = False
    report: WorkerReport | None = None
    chunk: Sequence[Job] = ()
    unfinished: dict[str, Job] = field(default_factory=dict)  # of the chunk


class Crew:
    """order: a pickled WorkOrder."""

    def __init__(self, cluster: ClusterOptions, order: bytes, stop: Stop) -> None:
        import ray

        self._cluster, self._order, self._stop = cluster, order, stop
        self._actor = ray.remote(
            num_cpus=cluster.cpus_per_worker,
            num_gpus=cluster.gpus_per_worker,
            max_restarts=0,
            max_task_retries=0,
            scheduling_strategy="SPREAD",
        )(ExtractionWorker)
        self._members: list[Member] = []
        self._vacant: list[int] = []  # places without a worker: starts that have failed there, one after the other
        self._agreed: WorkerReport | None = None

    def gather(self, most: int) -> WorkerReport:
        """Hire as many as are wanted and to be had; what they are, once all have reported."""
        self._vacant = [0] * min(most, workers_to_hire(self._cluster))
        while self._vacant or any(member.report is None for member in self._members):
            self.hire(most)
            self.step()
        assert self._agreed is not None
        machines = {member.report.machine for member in self._members if member.report is not None}
        LOGGER.info(f"{pluralize(len(self._members), 'worker')} on {pluralize(len(machines), 'machine')}")
        return self._agreed

    def hire(self, most: int) -> None:
        """Fill vacant places, so that at most so many workers are about to start."""
        starting = sum(member.report is None for member in self._members)
        while self._vacant and starting < most:
            handle = self._actor.remote()
            self._members.append(Member(handle, handle.placed.remote(), self._vacant.pop()))
            starting += 1

    @property
    def size(self) -> int:
        return len(self._members)

    def idle(self) -> list[Member]:
        return [member for member in self._members if member.waiting is None]

    def assign(self, member: Member, chunk: Sequence[Job]) -> None:
        member.chunk, member.unfinished = chunk, {job.video.id: job for job in chunk}
        member.waiting = member.handle.extract.options(num_returns="streaming").remote(chunk)

    def step(self) -> list[VideoOutcome | Loss]:
        """What is heard within a moment."""
        import ray

        raise_if_stopped(self._stop)
        self._dismiss_unplaced()
        asked = {member.waiting: member for member in self._members if member.waiting is not None}
        ready, _ = ray.wait(list(asked), timeout=STEP_SECONDS)
        return [told for waiting in ready for told in self._hear(asked[waiting])]

    def _dismiss_unplaced(self) -> None:
        """Others' work may have taken the room that was there."""
        late = [
            member
            for member in self._members
            if not member.placed and time.monotonic() - member.hired > PLACING_SECONDS
        ]
        for member in late:
            self._dismiss(member)
        if late and not self._members:
            raise ClusterError(no_room(self._cluster))

    def _dismiss(self, member: Member) -> None:
        import ray

        self._members.remove(member)
        ray.kill(member.handle)  # it may only be out of reach

    def _hear(self, member: Member) -> list[VideoOutcome | Loss]:
        import ray
        from ray.exceptions import RayError, RayTaskError

        try:
            answer = ray.get(member.waiting if member.report is None else next(member.waiting))
        except StopIteration:
            member.waiting = None
            return []
        except RayTaskError as error:  # as a full disk: for all workers
            raise error.cause from error
        except RayError as error:
            return self._lose(member, error)
        if isinstance(answer, VideoOutcome):
            del member.unfinished[answer.video_id]
            return [answer]
        if isinstance(answer, WorkerReport):
            self._admit(member, answer)
        else:
            member.placed = True
            member.waiting = member.handle.start.remote(self._order, driver_only_path())
        return []

    def _admit(self, member: Member, report: WorkerReport) -> None:
        report.refuse_unlike(WorkerReport("this machine", {"byov": __version__}), self._agreed or report)
        self._agreed = self._agreed or report
        member.report, member.waiting = report, None

    def _lose(self, member: Member, error: Exception) -> list[VideoOutcome | Loss]:
        self._dismiss(member)
        where = f" on {member.report.machine}" if member.report is not None else ""
        LOGGER.info(f"a worker{where} is lost ({type(error).__name__})")
        failed_starts = member.failed_starts + 1 if member.report is None else 0
        if failed_starts < MOST_FAILED_STARTS:
            self._vacant.append(failed_starts)
        elif not self._members and not self._vacant:
            reason = " ".join(str(error).split())
            raise ClusterError(f"no worker can be started ({reason}); what is finished is kept")
        return [Loss(member.chunk, list(member.unfinished.values()))] if member.unfinished else []
