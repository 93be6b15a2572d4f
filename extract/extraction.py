"""Feature extraction, in this process or on a Ray cluster.

The files on a cluster are byte-identical to those of a single process.
"""

import logging
import os
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from math import ceil
from typing import Any

import torch

from byov.cache.atomic import remove_abandoned
from byov.cache.features import identity_difference
from byov.data.video import MAX_PIXELS, DecodingPolicy, OnDamage, estimated_frames
from byov.device import Device
from byov.errors import ClusterError, ProcessLost
from byov.extract.encoder_names import EncoderName, Resize, parse_encoder
from byov.extract.encoders import FrameEncoder, load_encoder
from byov.extract.pipeline import Pipeline, feature_provenance
from byov.extract.plan import (
    DEFAULT_RATIOS,
    ExtractedFeatures,
    ExtractionOptions,
    Job,
    OnMismatch,
    Plan,
    VideoOutcome,
    make_plan,
)
from byov.extract.source import choose_source
from byov.folders import Folder, datasets_folder, features_folder
from byov.progress import NO_PROGRESS, Bar, Progress, Stop, Stoppable, never
from byov.text import pluralize
from byov.workers import ClusterOptions, RayWorkers

LOGGER = logging.getLogger(__name__)
CHUNKS_PER_WORKER = 8  # small chunks let all workers finish at about the same time
SPEED_FRAMES = 8  # frames of the batch that measures the speed
MAX_VIDEOS = 16  # maximum number per chunk, since a chunk is retried if its worker dies


def extract_features(
    dataset: str | None = None,
    *,
    manifest: str | os.PathLike[str] | None = None,
    folder: str | os.PathLike[str] | None = None,
    lerobot: str | os.PathLike[str] | None = None,
    ego_exo4d: str | os.PathLike[str] | None = None,
    ego: str | None = None,
    exo: str | None = None,
    task: str | None = None,
    scenario: str | None = None,
    step: str | None = None,
    split: Sequence[float] | None = None,
    name: str | None = None,
    source_options: Mapping[str, Any] | None = None,
    encoder: str | None = None,
    revision: str | None = None,
    ratios: Sequence[float] = DEFAULT_RATIOS,
    resize: Resize = "squash",
    device: Device = "auto",
    compile_model: bool = False,
    batch_size: int | None = None,
    decoders: int | None = None,
    shard: tuple[int, int] = (1, 1),
    on_truncated: OnDamage = "error",
    on_corrupt: OnDamage = "error",
    max_pixels: int = MAX_PIXELS,
    on_mismatch: OnMismatch = "error",
    verify_sources: bool = False,
    overwrite: bool = False,
    drop_labels: bool = False,
    datasets_dir: Folder = None,
    features_dir: Folder = None,
    cluster: ClusterOptions | None = None,
    progress: Progress = NO_PROGRESS,
    stop: Stop = never,
) -> ExtractedFeatures:
    """Compute the features of a dataset's videos with a frozen vision model; cached videos are
    skipped.

    Videos that cannot be decoded are listed in `failures` and do not stop the extraction.

    Args:
        dataset: Name of a built-in dataset; "demo" and the Meta-World datasets need no download.
        manifest: CSV of your own videos, instead of a dataset.
        folder: Folder of your own videos, instead of a dataset; a CSV that lists them is written.
        lerobot: Folder of a LeRobot dataset, instead of a dataset.
        ego_exo4d: Folder of Ego-Exo4D, instead of a dataset; `task`, `scenario` or `step` selects
            the videos.
        ego: Camera key in `lerobot`, or path pattern of the ego videos in `folder`, such as
            "*wrist*".
        exo: The same for exo videos; in `ego_exo4d`, "best", "all" or names like "cam01,cam03".
        task: Task in `lerobot`, required if there are several, or in `ego_exo4d`.
        scenario: Scenario in `ego_exo4d`, such as "Cooking".
        step: Step in `ego_exo4d`, each instance of which is a video.
        split: Fractions of train, val and test videos in `folder`, `lerobot` or `ego_exo4d`.
        name: Name for your own videos. Default: the name of the CSV or folder.
        source_options: Options of a reader from another package and, if it reads any folder, that
            folder under the name of the reader.
        encoder: Encoder id, such as "openai/clip-vit-base-patch16".
        datasets_dir: Folder that contains the datasets. Default: BYOV_DATASETS, else datasets/.
        features_dir: Folder of the feature cache. Default: BYOV_FEATURES, else features/.
        cluster: Ray cluster to run on, such as ClusterOptions("10.0.0.1:6379"). Default: this
            process.
        progress: Receives progress updates.
        stop: Called between batches; if it returns True, Interrupted is raised and finished videos
            are kept.

    The other arguments are the options of byov-extract.

    >>> # A small untrained encoder, to try things out.
    >>> done = extract_features("demo", encoder="random/tiny")
    >>> done.folder.as_posix(), done.videos + done.cached, done.failures
    ('features/demo/random--tiny', 8, {})
    """
    features = features_folder(features_dir)
    options = ExtractionOptions(
        ratios=(ratios,) if isinstance(ratios, (float, int, str)) else tuple(ratios),
        shard=shard,
        resize=resize,
        device=device,
        compile=compile_model,
        batch_size=batch_size,
        decoders=decoders,
        policy=DecodingPolicy(on_truncated, on_corrupt, max_pixels),
        on_mismatch=on_mismatch,
        overwrite=overwrite,
        drop_labels=drop_labels,
        verify_sources=verify_sources,
    )
    source = choose_source(
        {
            "dataset": dataset,
            "manifest": manifest,
            "folder": folder,
            "lerobot": lerobot,
            "ego_exo4d": ego_exo4d,
            "ego": ego,
            "exo": exo,
            "task": task,
            "scenario": scenario,
            "step": step,
            "split": split,
            "name": name,
            **(source_options or {}),
        }
    )
    videos = source.open(datasets_folder(datasets_dir), features, Stoppable(progress, stop))
    plan = make_plan(
        videos, features, parse_encoder(encoder or source.default_encoder, revision), options
    )
    return extract_plan(plan, cluster=cluster, progress=progress, stop=stop)


def extract_plan(
    plan: Plan,
    *,
    cluster: ClusterOptions | None = None,
    progress: Progress = NO_PROGRESS,
    stop: Stop = never,
) -> ExtractedFeatures:
    """Extract the missing and outdated videos of a plan and update the manifest.

    The other arguments and the return value are those of `extract_features`.
    """
    jobs = plan.jobs_to_extract()
    remove_abandoned(plan.folder.parent)
    for line in plan.reasons():
        LOGGER.info(line)
    if not jobs:
        return plan.finish([])
    if cluster is not None:
        return _extract_on_cluster(plan, jobs, cluster, progress, stop)
    encoder = _load(plan.encoder, plan.options, progress)
    plan.refuse_other_identity(feature_provenance(encoder).identity())
    return _collect(
        plan,
        jobs,
        lambda frames: Pipeline(encoder, plan.options, frames).run(jobs),
        Stoppable(progress, stop),
    )


def _collect(
    plan: Plan,
    jobs: Sequence[Job],
    extract: Callable[[Bar], Generator[VideoOutcome, None, None]],
    progress: Progress,
) -> ExtractedFeatures:
    """Collect the outcomes of all jobs with progress bars, and finish the plan."""
    counts = [
        job.label_count or estimated_frames(job.video.path, job.video.segment) for job in jobs
    ]
    total = sum(count or 0 for count in counts) if all(counts) else None
    outcomes = []
    started = time.monotonic()
    with (
        progress.bar("videos", unit="video", total=len(jobs)) as videos,
        progress.bar("frames", unit="frame", total=total, brief=True) as frames,
        closing(extract(frames)) as extracted,
    ):
        for outcome in extracted:
            outcomes.append(outcome)
            if outcome.failure is not None:
                LOGGER.warning(f"failed: {outcome.failure}")
            videos.advance(latest=outcome.video_id)
    return plan.finish(outcomes, time.monotonic() - started)


def measure_speed(plan: Plan, progress: Progress = NO_PROGRESS) -> float:
    """Measure how many frames per second the encoder processes on this machine, without decoding.

    The encoder is downloaded if necessary.
    """
    encoder = _load(plan.encoder, plan.options, progress)
    size = encoder.preprocessing.size
    # The first batch is slower.
    seconds = [_seconds_to_encode(encoder, SPEED_FRAMES, size) for _ in range(2)][-1]
    return SPEED_FRAMES / seconds


def _seconds_to_encode(encoder: FrameEncoder, frames: int, size: int) -> float:
    batch = torch.zeros(frames, 3, size, size, dtype=torch.uint8, device=encoder.device)
    started = time.monotonic()
    with torch.inference_mode():
        tokens, _ = encoder.encode(batch)
        tokens.cpu()  # waits for the device
    return time.monotonic() - started


def _load(name: EncoderName, options: ExtractionOptions, progress: Progress) -> FrameEncoder:
    encoder = load_encoder(name, resize=options.resize, device=options.device, progress=progress)
    if options.compile:
        encoder.module.compile(dynamic=False)
    return encoder


# --- extraction on a cluster


def _extract_on_cluster(
    plan: Plan, jobs: Sequence[Job], cluster: ClusterOptions, progress: Progress, stop: Stop
) -> ExtractedFeatures:
    """Extract videos on a Ray cluster.

    Nothing is written until all workers have loaded the same encoder. If a worker dies, its videos
    are retried one by one; a video fails after its worker has died three times.
    """
    # Workers need absolute paths, but not the descriptions of cached files.
    jobs = [
        replace(
            job,
            video=replace(job.video, path=job.video.path.absolute()),
            path=job.path.absolute(),
            cached=None,
        )
        for job in jobs
    ]
    name = plan.encoder
    options = replace(plan.options, cores=cluster.cpus_per_worker)
    video_of_each_folder = list({job.video.path.parent: job.video.path for job in jobs}.values())
    try:
        with RayWorkers(
            cluster, plan.folder, video_of_each_folder, tasks=len(jobs), stop=stop
        ) as workers:
            identity, *others = workers.call_all(
                lambda _: feature_provenance(_worker_encoder(name, options)).identity(), stop
            )
            for other in others:
                _refuse_difference(identity, other)
            plan.refuse_other_identity(identity)
            LOGGER.info(f"extracting with {pluralize(workers.count, 'worker')}")
            chunks = [
                ExtractVideos(name, options, identity, tuple(chunk))
                for chunk in split_jobs(jobs, workers.count)
            ]
            extract = partial(_extract_chunks, workers, chunks, stop)
            return _collect(plan, jobs, extract, Stoppable(progress, stop))
    finally:
        remove_abandoned(plan.folder.parent)  # files of killed workers


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

    def __call__(self, stop: Stop) -> list[VideoOutcome]:
        encoder = _worker_encoder(self.encoder, self.options)
        _refuse_difference(self.identity, feature_provenance(encoder).identity())
        with Stoppable(NO_PROGRESS, stop).bar("frames", unit="frame") as frames:
            return list(Pipeline(encoder, self.options, frames).run(self.jobs))

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


def _extract_chunks(
    workers: RayWorkers, chunks: Sequence[ExtractVideos], stop: Stop, frames: Bar
) -> Generator[VideoOutcome, None, None]:
    for chunk, outcomes, error in workers.run(chunks, stop=stop, split=ExtractVideos.split):
        if isinstance(error, ProcessLost):
            reason = (
                "its worker died three times. Check the available memory, or try without --cluster."
            )
            video = chunk.jobs[0].video
            outcomes = [VideoOutcome(video.id, failure=f"{video.path}: {reason}")]
        # For example, the disk is full, which would affect other videos, too.
        elif error is not None:
            raise error
        for outcome in outcomes:
            frames.advance(outcome.frames)
            yield outcome


@lru_cache(maxsize=1)
def _worker_encoder(name: EncoderName, options: ExtractionOptions) -> FrameEncoder:
    """Load an encoder once per worker process."""
    if name.is_imagenet:
        name = parse_encoder(name.id)  # The path of the bundled weights differs between machines.
    return _load(name, options, NO_PROGRESS)


def _refuse_difference(expected: Mapping[str, str], identity: Mapping[str, str]) -> None:
    if difference := identity_difference(identity, expected):
        raise ClusterError(
            f"workers differ in {difference}. Use the same software and hardware on all machines."
        )
