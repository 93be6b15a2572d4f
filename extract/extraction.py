"""The extraction: decoded frames → resize → encode in full batches across videos → merge → write.

The encoder always sees the same batch shape, and a frame's tokens do not depend on its neighbors in the batch; so what
a video's file holds depends on that video alone, not on what else was extracted with it or on an earlier interruption.
"""

import logging
import time
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from byov.cache.features import FeatureWriter, Provenance
from byov.data.video import DECODER, STRICT, DecodingPolicy, estimated_frames
from byov.device import Device, usable_cores
from byov.errors import CacheError, DatasetError, VideoError
from byov.extract.decode_ahead import DecodeAhead, Event, PreparedFrames, SourceFile
from byov.extract.encoder_names import EncoderName, Resize
from byov.extract.encoders import Shape, load_encoder
from byov.extract.plan import Job, OnMismatch, Plan
from byov.extract.preprocess import Preprocessing
from byov.extract.token_merging import MergedFrames, TokenMerger
from byov.progress import NO_PROGRESS, Bar, Progress

LOGGER = logging.getLogger(__name__)
MOST_DECODERS = 16
CPU_BATCH, CUDA_BATCH = 32, 256


class TokenEncoder(Protocol):
    """What the extraction needs of a frame encoder."""

    name: EncoderName
    sha256: str
    shape: Shape
    preprocessing: Preprocessing
    device: torch.device
    dtype: torch.dtype

    def encode(self, images: Tensor) -> tuple[Tensor, Tensor | None]: ...


@dataclass(frozen=True)
class ExtractionOptions:
    """How to extract; what to extract is the plan's."""

    resize: Resize = "squash"
    device: Device = "auto"
    compile: bool = False
    batch_size: int | None = None  # None: CPU_BATCH or CUDA_BATCH
    decoders: int | None = None  # None: one per core
    policy: DecodingPolicy = STRICT
    on_mismatch: OnMismatch = "error"
    cores: int | None = None  # None: all that this process may use


@dataclass(frozen=True)
class VideoOutcome:
    """What became of a video: a file, or a failure."""

    video_id: str
    frames: int = 0
    written_bytes: int = 0
    failure: str | None = None


@dataclass
class Outcome:
    """What became of the jobs so far."""

    videos: int = 0
    frames: int = 0
    written_bytes: int = 0
    seconds: float = 0.0
    failures: dict[str, str] = field(default_factory=dict)  # video id → reason

    def add(self, video: VideoOutcome) -> None:
        if video.failure is not None:
            self.failures[video.video_id] = video.failure
            LOGGER.warning(f"failed: {video.failure}")
            return
        self.videos += 1
        self.frames += video.frames
        self.written_bytes += video.written_bytes


def run_plan(plan: Plan, jobs: Sequence[Job], options: ExtractionOptions, progress: Progress = NO_PROGRESS) -> Outcome:
    """Load the plan's encoder and extract the jobs."""
    encoder = load_encoder(plan.encoder, resize=options.resize, device=options.device, progress=progress)
    if options.compile:
        encoder.compile()
    return extract_jobs(encoder, plan, jobs, options, progress)


def extract_jobs(
    encoder: TokenEncoder, plan: Plan, jobs: Sequence[Job], options: ExtractionOptions, progress: Progress = NO_PROGRESS
) -> Outcome:
    """Extract the jobs of the plan by its encoder, which is loaded."""
    refuse_other_identity(plan, jobs, encoder_identity(encoder))
    outcome, started = Outcome(), time.monotonic()
    with (
        job_bars(jobs, progress) as (videos, frames),
        closing(extracted_videos(encoder, jobs, options, frames)) as extracted,
    ):
        for video in extracted:
            outcome.add(video)
            videos.advance(latest=video.video_id)
    outcome.seconds = time.monotonic() - started
    return outcome


def extracted_videos(
    encoder: TokenEncoder, jobs: Sequence[Job], options: ExtractionOptions, frames: Bar
) -> Generator[VideoOutcome, None, None]:
    """Extract the jobs; what became of each, as soon as it is known."""
    batch_size = options.batch_size or (CUDA_BATCH if encoder.device.type == "cuda" else CPU_BATCH)
    workers, threads = decoder_threads(len(jobs), options.decoders, options.cores)
    decoded = DecodeAhead(
        jobs,
        prepare=lambda frames: encoder.preprocessing.on_host(frames, encoder.device),
        workers=workers,
        threads_per_video=threads,
        policy=options.policy,
        on_mismatch=options.on_mismatch,
    )
    return Extraction(encoder, batch_size=batch_size, frames=frames).run(decoded)


@contextmanager
def job_bars(jobs: Sequence[Job], progress: Progress) -> Iterator[tuple[Bar, Bar]]:
    """Bars of the videos and of their frames."""
    with (
        progress.bar("videos", unit="video", total=len(jobs)) as videos,
        progress.bar("frames", unit="frame", total=_frames(jobs), brief=True) as frames,
    ):
        yield videos, frames


def _frames(jobs: Sequence[Job]) -> int | None:
    """How many frames there are to encode, as the labels tell or else the headers; None if a video does not say."""
    total = 0
    for job in jobs:
        frames = estimated_frames(job.video.path) if job.label_count is None else job.label_count
        if frames is None:
            return None
        total += frames
    return total


def decoder_threads(videos: int, decoders: int | None = None, cores: int | None = None) -> tuple[int, int]:
    """Videos decoded at once, and threads for each: about one thread per core in all."""
    cores = cores or usable_cores()
    workers = max(1, min(videos, decoders or min(cores, MOST_DECODERS)))
    return workers, max(1, min(cores, MOST_DECODERS) // workers)


def encoder_identity(encoder: TokenEncoder) -> dict[str, str]:
    """What a file that it makes says of it: Provenance.identity."""
    return {
        "encoder": encoder.name.id,
        "revision": encoder.name.revision or "",
        "weights": encoder.sha256,
        "preprocessing": encoder.preprocessing.describe(),
        "compute type": str(encoder.dtype).removeprefix("torch."),
    }


def refuse_other_identity(plan: Plan, jobs: Sequence[Job], ours: Mapping[str, str]) -> None:
    """Raise unless the files that stay in the cache are of this identity."""
    redone = {job.video.id for job in jobs}
    for job in plan.jobs:
        if job.identity is None or job.video.id in redone:
            continue
        for what, found in job.identity.items():
            if found != ours[what]:
                device = "another --device, " if what == "compute type" else ""
                raise CacheError(
                    f"{job.path}: made with {what} {found!r}, this is {ours[what]!r}; "
                    f"use --overwrite to extract everything again, {device}or another --features-dir"
                )


class Extraction:
    """Turns decoder events into cache files.

    A video that cannot be read is recorded as a failure and the others go on; an error in writing stops the run.
    """

    def __init__(self, encoder: TokenEncoder, *, batch_size: int, frames: Bar) -> None:
        self._encoder, self._frames_done = encoder, frames
        self._done: list[VideoOutcome] = []  # what is still to be told
        self._encoder_threads = torch.get_num_threads()
        size = encoder.preprocessing.size
        # Colors innermost, as frames come from the decoder: filling the batch is then a plain copy.
        self._batch = torch.zeros(batch_size, size, size, 3, dtype=torch.uint8, device=encoder.device).permute(
            0, 3, 1, 2
        )
        self._owners: list[_OpenVideo] = []  # whose frame stands at each place of the batch, as far as it is filled
        self._open: dict[str, _OpenVideo] = {}  # by video id

    @torch.inference_mode()
    def run(self, events: Iterable[Event]) -> Generator[VideoOutcome, None, None]:
        """What becomes of each video, as soon as it is known."""
        try:
            # Copying and merging are too small to share out: waiting for a second thread, on cores that are busy
            # decoding, costs many times what it saves.
            with _torch_threads(1):
                for event in events:
                    self._handle(event)
                    yield from self._take_done()
                if self._owners:
                    self._run_batch()
                    yield from self._take_done()
        finally:
            self.close()

    def close(self) -> None:
        """Drop what is unfinished; nothing of it stays on disk."""
        for video in self._open.values():
            video.writer.close()
        self._open.clear()

    def _take_done(self) -> list[VideoOutcome]:
        done, self._done = self._done, []
        return done

    def _handle(self, event: Event) -> None:
        video = self._open.get(event.job.video.id)
        if event.frames is not None:
            if video is None:
                video = self._open[event.job.video.id] = _OpenVideo(event.job, self._encoder.shape)
            self._add_frames(video, event.frames)
        elif event.failed is not None:
            self._fail(event.job, event.failed)
        elif video is None:
            self._fail(event.job, VideoError(f"{event.job.video.path}: no frames to keep"))
        else:
            video.source = event.finished
            self._finish_if_complete(video)

    def _add_frames(self, video: "_OpenVideo", frames: PreparedFrames) -> None:
        images = self._encoder.preprocessing.on_device(frames.images, self._encoder.device)
        video.pts_seconds.append(frames.pts_seconds)
        video.waiting += len(images)
        while len(images):
            filled = len(self._owners)
            fitting = images[: len(self._batch) - filled]
            self._batch[filled : filled + len(fitting)] = fitting
            self._owners += [video] * len(fitting)
            images = images[len(fitting) :]
            if len(self._owners) == len(self._batch):
                self._run_batch()

    def _run_batch(self) -> None:
        """Encode the batch, whole even where its end is not filled, and hand each video its frames."""
        with _torch_threads(self._encoder_threads):
            tokens, cls = self._encoder.encode(self._batch)
        places: dict[_OpenVideo, list[int]] = {}
        for place, video in enumerate(self._owners):
            places.setdefault(video, []).append(place)
        self._owners = []
        for video, mine in places.items():
            if self._open.get(video.job.video.id) is not video:
                continue  # it failed after these frames were decoded
            try:
                video.push(tokens[mine], None if cls is None else cls[mine])
            except VideoError as error:
                self._fail(video.job, error)
                continue
            self._frames_done.advance(len(mine))
            self._finish_if_complete(video)

    def _finish_if_complete(self, video: "_OpenVideo") -> None:
        if video.source is None or video.waiting:
            return
        try:
            frames = video.finish(self._encoder, video.source)
        except VideoError as error:
            self._fail(video.job, error)
            return
        del self._open[video.job.video.id]
        self._done.append(VideoOutcome(video.job.video.id, frames, video.job.path.stat().st_size))

    def _fail(self, job: Job, error: Exception) -> None:
        video = self._open.pop(job.video.id, None)
        if video is not None:
            video.writer.close()
        reason = str(error) if isinstance(error, DatasetError) else f"{job.video.path}: {type(error).__name__}: {error}"
        self._done.append(VideoOutcome(job.video.id, failure=reason))


class _OpenVideo:
    """A video on its way into its file."""

    def __init__(self, job: Job, shape: Shape) -> None:
        self.job = job
        self.waiting = 0  # frames decoded and not yet encoded
        self.source: SourceFile | None = None  # known once the video is decoded to its end
        self.pts_seconds: list[NDArray[np.float64]] = []
        self.writer = FeatureWriter(job.path, job.ratios, shape.tokens, shape.width, has_cls=shape.has_cls)
        self._merger = TokenMerger(job.ratios)
        self._cls: list[NDArray[Any]] = []

    def push(self, tokens: Tensor, cls: Tensor | None) -> None:
        """The next frames' tokens (T, N, D) and class tokens (T, D)."""
        self.waiting -= len(tokens)
        if cls is not None:
            self._cls.append(_stored(cls))
        self._write(self._merger.push(tokens))

    def finish(self, encoder: TokenEncoder, source: SourceFile) -> int:
        """Write the last frame and give the file its name; returns the number of frames."""
        self._write(self._merger.finish())
        provenance = Provenance(
            encoder=encoder.name.id,
            encoder_revision=encoder.name.revision or "",
            encoder_sha256=encoder.sha256,
            preprocessing=encoder.preprocessing.describe(),
            compute_dtype=str(encoder.dtype).removeprefix("torch."),
            decoder=DECODER,
            source_name=self.job.video.path.name,
            source_bytes=source.bytes,
            source_sha256=source.sha256,
            source_fingerprint=source.fingerprint,
        )
        self.writer.finish(provenance, fps=source.fps, truncated=source.truncated, corrupt_frames=source.corrupt_frames)
        return self.writer.frames

    def _write(self, frames: MergedFrames) -> None:
        merged = _stored(frames.merged)  # (T, R, D)
        if not np.isfinite(merged).all():
            raise VideoError(f"{self.job.video.path}: the encoder gave NaN or Inf near frame {self.writer.frames}")
        order = frames.order.cpu().numpy()
        cls = _take(self._cls, len(frames)) if self._cls else None
        by_ratio = {ratio: merged[:, index] for index, ratio in enumerate(self.job.ratios)}
        self.writer.append(by_ratio, order, cls, _take(self.pts_seconds, len(frames)))


@contextmanager
def _torch_threads(count: int) -> Iterator[None]:
    """How many threads this thread's calls into PyTorch may use."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _stored(values: Tensor) -> NDArray[Any]:
    return values.to(torch.float16).cpu().numpy()


def _take(parts: list[NDArray[Any]], count: int) -> NDArray[Any]:
    """Remove the first rows of a list of arrays."""
    joined = np.concatenate(parts)
    parts[:] = [joined[count:]]
    return joined[:count]
