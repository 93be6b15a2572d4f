"""The extraction on the workers of a Ray cluster: to the byte what one process gives.

Nothing is written before all workers have reported and are alike. It ends when it is known of every video what became
of it: the videos of a worker that is lost are done again one by one, and one that is lost each time has failed.
"""

import pickle
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from byov.cache.atomic import remove_abandoned
from byov.cluster.crew import Crew, Loss
from byov.cluster.extraction_worker import WorkOrder
from byov.cluster.hand_out import MOST_ATTEMPTS, HandOut
from byov.cluster.ray_session import ClusterOptions, ray_session
from byov.cluster.shared_marker import marker_in
from byov.cluster.worker_report import SharedFiles
from byov.extract.extraction import ExtractionOptions, Outcome, VideoOutcome, job_bars, refuse_other_identity
from byov.extract.plan import Job, Plan
from byov.progress import NO_PROGRESS, Bar, Progress, Stop, never


def extract_on_cluster(
    plan: Plan,
    jobs: Sequence[Job],
    options: ExtractionOptions,
    cluster: ClusterOptions,
    progress: Progress = NO_PROGRESS,
    stop: Stop = never,
) -> Outcome:
    """As extraction.run_plan. `stop` is asked all the time; then Interrupted is raised, finished videos are kept."""
    try:
        with ray_session(cluster), marker_in(plan.folder) as marker:
            options = replace(options, cores=cluster.cpus_per_worker)
            order = WorkOrder(plan.encoder, options, SharedFiles(marker, _one_of_each_folder(jobs)))
            crew = Crew(cluster, pickle.dumps(order), stop)
            recipe = crew.gather(most=len(jobs))
            refuse_other_identity(plan, jobs, recipe.properties)
            with job_bars(jobs, progress) as (videos, frames):
                return _extract(crew, jobs, videos, frames)
    finally:
        remove_abandoned(plan.folder.parent)  # what lost workers had under their hands


def _extract(crew: Crew, jobs: Sequence[Job], videos: Bar, frames: Bar) -> Outcome:
    outcome, started = Outcome(), time.monotonic()
    hand_out = HandOut([_absolute(job) for job in jobs], _sizes(jobs), crew.size)
    unfinished = {job.video.id: job for job in jobs}

    def account(video: VideoOutcome) -> None:
        job = unfinished.pop(video.video_id)
        outcome.add(_as_given(video, job))
        frames.advance(video.frames)
        videos.advance(latest=video.video_id)

    while unfinished:
        for member in crew.idle():
            if chunk := hand_out.chunk():
                crew.assign(member, chunk)
        crew.hire(hand_out.waiting)  # in the place of those that were lost
        for told in crew.step():
            if isinstance(told, Loss):
                for job in hand_out.lost(told.chunk, told.unfinished):
                    account(VideoOutcome(job.video.id, failure=_given_up(job)))
            else:
                account(told)
    outcome.seconds = time.monotonic() - started
    return outcome


def _one_of_each_folder(jobs: Sequence[Job]) -> tuple[tuple[Path, int], ...]:
    folders = {job.video.path.parent: job.video.path for job in jobs}
    return tuple((path.absolute(), path.stat().st_size) for path in folders.values())


def _sizes(jobs: Sequence[Job]) -> dict[str, int]:
    return {job.video.id: job.video.path.stat().st_size for job in jobs}


def _absolute(job: Job) -> Job:
    """As a worker, which works in another folder, finds it; without what the cache has, which it has no need of."""
    video = replace(job.video, path=job.video.path.absolute())
    return replace(job, video=video, folder=job.folder.absolute(), entry=None)


def _as_given(video: VideoOutcome, job: Job) -> VideoOutcome:
    """With the path of the video as it was given."""
    if video.failure is None:
        return video
    return replace(video, failure=video.failure.replace(str(job.video.path.absolute()), str(job.video.path)))


def _given_up(job: Job) -> str:
    return (
        f"{job.video.path}: its worker was lost {MOST_ATTEMPTS} times while it did nothing else; "
        "see whether memory suffices, and whether byov-extract without --cluster can do it"
    )
