"""A whole run: load the encoder, extract what the plan says is missing."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from byov.cache.errors import CacheError
from byov.data.video import OnTruncated, usable_cores
from byov.extract.decode_ahead import DecodeAhead
from byov.extract.encoder_name import Device, Resize
from byov.extract.encoders import FrameEncoder, load_encoder
from byov.extract.pipeline import Extraction, Outcome
from byov.extract.plan import Job, OnMismatch, Plan
from byov.extract.progress import Bars

MOST_DECODERS = 16
CPU_BATCH, CUDA_BATCH = 32, 256


@dataclass(frozen=True)
class Settings:
    """How to extract; what to extract is the plan's."""

    resize: Resize = "squash"
    device: Device = "auto"
    compile: bool = False
    batch_size: int | None = None  # None: CPU_BATCH or CUDA_BATCH
    decoders: int | None = None  # None: one per core
    on_truncated: OnTruncated = "error"
    on_mismatch: OnMismatch = "error"


def run_plan(plan: Plan, jobs: Sequence[Job], settings: Settings) -> Outcome:
    """Load the plan's encoder and extract the jobs."""
    return extract_jobs(
        load_encoder(plan.encoder, resize=settings.resize, device=settings.device), plan, jobs, settings
    )


def extract_jobs(encoder: FrameEncoder, plan: Plan, jobs: Sequence[Job], settings: Settings) -> Outcome:
    """Extract the jobs of the plan by its encoder."""
    _refuse_other_recipe(plan, jobs, encoder)
    if settings.compile:
        encoder.compile()
    batch_size = settings.batch_size or (CUDA_BATCH if encoder.device.type == "cuda" else CPU_BATCH)
    workers, threads = decoder_threads(len(jobs), settings.decoders)
    decoded = DecodeAhead(
        jobs,
        prepare=lambda frames: encoder.preprocessing.on_host(frames, encoder.device),
        workers=workers,
        threads_per_video=threads,
        on_truncated=settings.on_truncated,
        on_mismatch=settings.on_mismatch,
    )
    started = time.monotonic()
    with Bars(list(jobs)) as bars:
        outcome = Extraction(encoder, batch_size=batch_size, progress=bars).run(decoded)
    outcome.seconds = time.monotonic() - started
    return outcome


def decoder_threads(videos: int, decoders: int | None = None) -> tuple[int, int]:
    """Videos decoded at once, and threads for each: about one thread per core in all."""
    cores = usable_cores()
    workers = max(1, min(videos, decoders or min(cores, MOST_DECODERS)))
    return workers, max(1, min(cores, MOST_DECODERS) // workers)


def _refuse_other_recipe(plan: Plan, jobs: Sequence[Job], encoder: FrameEncoder) -> None:
    """Now that the weights are here: do the files that stay in the cache come from the same?"""
    ours = recipe(encoder)
    redone = {job.path for job in jobs}
    for job in plan.jobs:
        if job.header is None or job.path in redone:
            continue
        for what, found in job.header.provenance.recipe().items():
            if found != ours[what]:
                raise CacheError(
                    f"{job.path}: made with {what} {found!r}, this is {ours[what]!r}; "
                    "use --overwrite to extract everything again, or another --features-dir"
                )


def recipe(encoder: FrameEncoder) -> dict[str, str]:
    """As Provenance.recipe, of an encoder that is loaded."""
    return {
        "encoder": encoder.name.id,
        "revision": encoder.name.revision or "",
        "weights": encoder.sha256,
        "preprocessing": encoder.preprocessing.describe(),
    }
