"""A whole run: load the encoder, extract what the plan says is missing."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from byov.data.video import OnTruncated, usable_cores
from byov.device import Device
from byov.errors import CacheError
from byov.extract.decode_ahead import DecodeAhead
from byov.extract.encoder_name import Resize
from byov.extract.encoders import load_encoder
from byov.extract.extraction import Extraction, Outcome, TokenEncoder
from byov.extract.plan import Job, OnMismatch, Plan
from byov.progress import SILENT, Progress

MOST_DECODERS = 16
CPU_BATCH, CUDA_BATCH = 32, 256


@dataclass(frozen=True)
class ExtractionOptions:
    """How to extract; what to extract is the plan's."""

    resize: Resize = "squash"
    device: Device = "auto"
    compile: bool = False
    batch_size: int | None = None  # None: CPU_BATCH or CUDA_BATCH
    decoders: int | None = None  # None: one per core
    on_truncated: OnTruncated = "error"
    on_mismatch: OnMismatch = "error"


def run_plan(plan: Plan, jobs: Sequence[Job], options: ExtractionOptions, progress: Progress = SILENT) -> Outcome:
    """Load the plan's encoder and extract the jobs."""
    encoder = load_encoder(plan.encoder, resize=options.resize, device=options.device, progress=progress)
    if options.compile:
        encoder.compile()
    return extract_jobs(encoder, plan, jobs, options, progress)


def extract_jobs(
    encoder: TokenEncoder, plan: Plan, jobs: Sequence[Job], options: ExtractionOptions, progress: Progress = SILENT
) -> Outcome:
    """Extract the jobs of the plan by its encoder, which is loaded."""
    _refuse_other_identity(plan, jobs, encoder)
    batch_size = options.batch_size or (CUDA_BATCH if encoder.device.type == "cuda" else CPU_BATCH)
    workers, threads = decoder_threads(len(jobs), options.decoders)
    decoded = DecodeAhead(
        jobs,
        prepare=lambda frames: encoder.preprocessing.on_host(frames, encoder.device),
        workers=workers,
        threads_per_video=threads,
        on_truncated=options.on_truncated,
        on_mismatch=options.on_mismatch,
    )
    started = time.monotonic()
    with (
        progress.bar("videos", unit="video", total=len(jobs)) as videos,
        progress.bar("frames", unit="frame", total=_frames(jobs), brief=True) as frames,
    ):
        outcome = Extraction(encoder, batch_size=batch_size, videos=videos, frames=frames).run(decoded)
    outcome.seconds = time.monotonic() - started
    return outcome


def _frames(jobs: Sequence[Job]) -> int | None:
    """How many frames there are to encode, where the labels tell."""
    counts = [job.label_count for job in jobs if job.label_count is not None]
    return sum(counts) if len(counts) == len(jobs) else None


def decoder_threads(videos: int, decoders: int | None = None) -> tuple[int, int]:
    """Videos decoded at once, and threads for each: about one thread per core in all."""
    cores = usable_cores()
    workers = max(1, min(videos, decoders or min(cores, MOST_DECODERS)))
    return workers, max(1, min(cores, MOST_DECODERS) // workers)


def _refuse_other_identity(plan: Plan, jobs: Sequence[Job], encoder: TokenEncoder) -> None:
    """Raise unless the files that stay in the cache are of the loaded encoder's identity."""
    ours = {
        "encoder": encoder.name.id,
        "revision": encoder.name.revision or "",
        "weights": encoder.sha256,
        "preprocessing": encoder.preprocessing.describe(),
        "compute type": str(encoder.dtype).removeprefix("torch."),
    }
    redone = {job.path for job in jobs}
    for job in plan.jobs:
        if job.header is None or job.path in redone:
            continue
        for what, found in job.header.provenance.identity().items():
            if found != ours[what]:
                device = "another --device, " if what == "compute type" else ""
                raise CacheError(
                    f"{job.path}: made with {what} {found!r}, this is {ours[what]!r}; "
                    f"use --overwrite to extract everything again, {device}or another --features-dir"
                )
