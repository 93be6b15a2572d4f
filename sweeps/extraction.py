"""Feature extraction on a Ray cluster.

Output files are byte-identical to those of a single process.
"""

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from math import ceil

from byov.cache.atomic import remove_abandoned
from byov.cache.features import identity_difference
from byov.errors import ClusterError, ProcessLost
from byov.extract import extraction
from byov.extract.encoder_names import EncoderName, parse_encoder
from byov.extract.encoders import FrameEncoder, load_encoder
from byov.extract.plan import ExtractionOptions, Job, Outcome, Plan, VideoOutcome
from byov.progress import NO_PROGRESS, Progress, Stop, never
from byov.text import pluralize
from byov.workers import ClusterOptions, RayWorkers

LOGGER = logging.getLogger(__name__)
CHUNKS_PER_WORKER = 8  # small chunks let all workers finish at about the same time
MAX_VIDEOS = 16  # maximum number per chunk, since a chunk is retried if its worker dies


def extract_on_cluster(
    plan: Plan,
    jobs: Sequence[Job],
    options: ExtractionOptions,
    cluster: ClusterOptions,
    progress: Progress = NO_PROGRESS,
    stop: Stop = never,
) -> Outcome:
    """Run the jobs of an extraction plan on a Ray cluster.

    Nothing is written until all workers have loaded the same encoder. If a worker dies, its videos
    are retried one by one; a video fails after its worker has died three times. Raises Interrupted
    once `stop` returns True; finished videos are kept.
    """
    # Workers need absolute paths, but not the manifest entries.
    jobs = [
        replace(
            job,
            video=replace(job.video, path=job.video.path.absolute()),
            path=job.path.absolute(),
            found=None,
        )
        for job in jobs
    ]
    options = replace(options, cores=cluster.cpus_per_worker)
    one_per_folder = list({job.video.path.parent: job.video.path for job in jobs}.values())
    outcome = Outcome()
    try:
        with RayWorkers(
            cluster, plan.folder, one_per_folder, tasks=len(jobs), stop=stop
        ) as workers:
            identity, *others = workers.call_all(
                partial(_load_identity, plan.encoder, options), stop
            )
            for other in others:
                _refuse_difference(identity, other)
            extraction.refuse_other_identity(plan, jobs, identity)
            LOGGER.info(f"extracting with {pluralize(workers.count, 'worker')}")
            chunk = partial(ExtractVideos, plan.encoder, options, identity)
            chunks = [chunk(tuple(some)) for some in split_jobs(jobs, workers.count)]
            started = time.monotonic()
            with extraction.job_bars(jobs, progress) as (videos, frames):
                for task, result, error in workers.run(
                    chunks, stop=stop, split=ExtractVideos.split
                ):
                    if isinstance(error, ProcessLost):
                        reason = (
                            "its worker died three times. Check the available memory, or "
                            "try without --cluster."
                        )
                        video = task.jobs[0].video
                        result = [VideoOutcome(video.id, failure=f"{video.path}: {reason}")]
                    # For example, the disk is full, which would affect other videos, too.
                    elif error is not None:
                        raise error
                    for video in result:
                        outcome.add(video)
                        frames.advance(video.frames)
                        videos.advance(latest=video.video_id)
            outcome.seconds = time.monotonic() - started
            return outcome
    finally:
        remove_abandoned(plan.folder.parent)


@dataclass(frozen=True)
class ExtractVideos:
    """Task that extracts a chunk of videos."""

    encoder: EncoderName
    options: ExtractionOptions
    identity: Mapping[str, str]  # identity that the loaded encoder must have
    jobs: tuple[Job, ...]

    @property
    def name(self) -> str:
        return ", ".join(job.video.id for job in self.jobs)

    def __call__(self, stop: Stop) -> list[VideoOutcome]:  # noqa: ARG002
        encoder = _load(self.encoder, self.options)
        _refuse_difference(self.identity, extraction.encoder_identity(encoder))
        with NO_PROGRESS.bar("frames", unit="frame") as frames:
            return list(extraction.Extraction(encoder, self.options, frames).run(self.jobs))

    def split(self) -> list["ExtractVideos"]:
        """Return one task per video, or an empty list if there is only one video."""
        return [replace(self, jobs=(job,)) for job in self.jobs] if len(self.jobs) > 1 else []


def split_jobs(jobs: Sequence[Job], workers: int) -> list[list[Job]]:
    """Distribute jobs over chunks, largest videos first.

    A worker decodes several videos of a chunk in parallel.
    """
    largest_first = sorted(jobs, key=lambda job: -job.video.path.stat().st_size)
    chunks = max(min(len(jobs), CHUNKS_PER_WORKER * workers), ceil(len(jobs) / MAX_VIDEOS))
    return [largest_first[first::chunks] for first in range(chunks)]


@lru_cache(maxsize=1)
def _load(name: EncoderName, options: ExtractionOptions) -> FrameEncoder:
    if name.is_imagenet:
        name = parse_encoder(name.id)  # The path of the bundled weights differs between machines.
    encoder = load_encoder(name, resize=options.resize, device=options.device)
    if options.compile:
        encoder.compile()
    return encoder


def _load_identity(name: EncoderName, options: ExtractionOptions, stop: Stop) -> dict[str, str]:  # noqa: ARG001
    return extraction.encoder_identity(_load(name, options))


def _refuse_difference(expected: Mapping[str, str], found: Mapping[str, str]) -> None:
    if difference := identity_difference(found, expected):
        raise ClusterError(
            f"workers differ in {difference}. Use the same software and hardware on all machines."
        )
