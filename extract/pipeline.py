"""Pipeline that decodes videos in threads, encodes frames in full batches across videos, merges
tokens, and writes one file per video.

The encoder always receives the same batch shape, and the tokens of a frame do not depend on the
other frames of its batch. The features of a video therefore depend only on that video, not on other
videos or on interruptions.
"""

import queue
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from byov.cache.digests import file_sha256, file_state, fingerprint, segment_digest
from byov.cache.features import FeatureWriter, Provenance
from byov.cache.layout import ratio_key
from byov.data.video import DECODER, FrameReader
from byov.device import torch_threads, usable_cores
from byov.errors import DatasetError, VideoError
from byov.extract.encoders import FrameEncoder
from byov.extract.plan import ExtractionOptions, Job, VideoOutcome
from byov.extract.token_merging import TokenMerger
from byov.progress import Bar
from byov.text import pluralize

MAX_DECODERS = 16
# A message from a decoder thread: frames of a video with their times; the arguments of
# `finish_video` once the video is fully decoded; or an exception.
Message = tuple[Job, tuple[Tensor, NDArray[np.float64]] | dict[str, Any] | Exception]


def decoder_threads(
    videos: int, decoders: int | None = None, cores: int | None = None
) -> tuple[int, int]:
    """Return the number of videos to decode in parallel and the threads per video, in total about
    one per core.
    """
    cores = min(cores or usable_cores(), MAX_DECODERS)
    workers = max(1, min(videos, decoders or cores))
    return workers, max(1, cores // workers)


def feature_provenance(
    encoder: FrameEncoder,
    *,
    video: str = "",
    view: str = "",
    source_name: str = "",
    source_bytes: int = 0,
    source_sha256: str = "",
    source_fingerprint: str = "",
) -> Provenance:
    """Describe features from an encoder; `identity()` of the result does not need a video."""
    return Provenance(
        video=video,
        view=view,
        source_name=source_name,
        source_bytes=source_bytes,
        source_sha256=source_sha256,
        source_fingerprint=source_fingerprint,
        encoder=encoder.name.id,
        encoder_revision=encoder.name.revision or "",
        encoder_sha256=encoder.sha256,
        preprocessing=encoder.preprocessing.describe(),
        compute_dtype=str(encoder.dtype).removeprefix("torch."),
        decoder=DECODER,
    )


# --- decoding


def _decoded(
    jobs: Sequence[Job], encoder: FrameEncoder, options: ExtractionOptions
) -> Generator[Message, None, None]:
    """Decode and preprocess videos in threads ahead of the encoder, in bounded memory.

    Messages of different videos are interleaved; those of one video are in order. FFmpeg runs
    without the GIL.
    """
    workers, threads_per_video = decoder_threads(len(jobs), options.decoders, options.cores)
    remaining = iter(jobs)  # shared by the threads
    # Buffer a few blocks per thread, so that a pause for writing does not stall decoding.
    messages: queue.Queue[Message] = queue.Queue(maxsize=4 * workers)
    stopped = threading.Event()
    # Digests are cached, because a file may contain many videos. If the state of a file changes, it
    # is read again.
    read_sha256 = lru_cache(maxsize=64)(lambda path, _state: file_sha256(path))

    def put(message: Message) -> None:
        while not stopped.is_set():
            with suppress(queue.Full):
                messages.put(message, timeout=0.2)
                return

    def work() -> None:
        torch.set_num_threads(1)  # applies only to this thread
        for job in remaining:
            try:
                for content in _decode(job, encoder, options, threads_per_video, read_sha256):
                    put((job, content))
                    if stopped.is_set():
                        return
            except Exception as error:
                put((job, error))

    try:
        for index in range(workers):
            threading.Thread(target=work, name=f"decoder-{index}", daemon=True).start()
        ended = 0
        while ended < len(jobs):
            message = messages.get()
            ended += not isinstance(message[1], tuple)
            yield message
    finally:
        stopped.set()


def _decode(
    job: Job,
    encoder: FrameEncoder,
    options: ExtractionOptions,
    threads: int,
    read_sha256: Callable[[Path, Any], str],
) -> Iterator[tuple[Tensor, NDArray[np.float64]] | dict[str, Any]]:
    """Yield the frames of a video, then the arguments of FeatureWriter.finish_video."""
    path = job.video.path
    labels = job.label_count
    fragment = job.video.segment.fragment
    state = file_state(path)
    sha256 = read_sha256(path, state)
    reader = FrameReader(path, segment=job.video.segment, threads=threads, policy=options.policy)
    frames = 0
    for block in reader.blocks():
        keep = len(block.pixels) if labels is None else max(labels - frames, 0)
        frames += len(block.pixels)
        if keep:
            pixels = torch.from_numpy(block.pixels[:keep])
            yield encoder.preprocessing.on_host(pixels, encoder.device), block.pts_seconds[:keep]
        elif options.on_mismatch == "trim":
            break
    if labels not in (None, frames) and options.on_mismatch == "error":
        raise VideoError(
            f"{path}: {pluralize(frames, 'frame')} but {pluralize(labels or 0, 'label')}. "
            "Re-export the labels or use --on-mismatch trim."
        )
    provenance = feature_provenance(
        encoder,
        video=job.video.id,
        view=job.video.view,
        source_name=f"{path.name}{fragment}",
        source_bytes=state[1],
        source_sha256=segment_digest(sha256, fragment),
        source_fingerprint=segment_digest(fingerprint(path), fragment),
    )
    if file_state(path) != state:
        raise DatasetError(f"{path}: changed while it was read. Run again once it is complete.")
    yield {
        "provenance": provenance,
        "fps": reader.fps,
        "truncated": reader.truncated,
        "corrupt_frames": reader.corrupt_frames,
    }


# --- encoding and writing


class Pipeline:
    """Encode frames in full batches, and finish a video once all its frames are encoded.

    Args:
        encoder: Frozen encoder.
        options: Options of the extraction.
        frames: Progress bar of encoded frames.
    """

    def __init__(self, encoder: FrameEncoder, options: ExtractionOptions, frames: Bar) -> None:
        self._encoder = encoder
        self._options = options
        self._frames = frames
        self._encoder_threads = torch.get_num_threads()
        batch_size = options.frames_per_batch(encoder.device.type)
        size = encoder.preprocessing.size
        # Use the channels-last layout of decoded frames, so that filling the batch is a plain copy.
        batch = torch.zeros(batch_size, size, size, 3, dtype=torch.uint8, device=encoder.device)
        self._batch = batch.permute(0, 3, 1, 2)
        self._owners: list[_OpenVideo] = []  # video of each frame in the filled part of the batch
        self._open: dict[str, _OpenVideo] = {}  # video id -> open video

    @torch.inference_mode()
    def run(self, jobs: Sequence[Job]) -> Generator[VideoOutcome, None, None]:
        """Extract jobs and yield the outcome of each as soon as it is known."""
        try:
            # Copying and merging are too small to parallelize: while the cores are busy decoding,
            # waiting for a second thread costs far more than it saves.
            with (
                torch_threads(1),
                closing(_decoded(jobs, self._encoder, self._options)) as decoded,
            ):
                for job, content in decoded:
                    if isinstance(content, Exception):
                        yield self._fail(job, content)
                    elif isinstance(content, tuple):
                        if job.video.id not in self._open:
                            self._open[job.video.id] = _OpenVideo(job)
                        yield from self._add_frames(self._open[job.video.id], *content)
                    elif job.video.id not in self._open:
                        yield self._fail(job, VideoError(f"{job.video.source}: no labeled frames"))
                    else:
                        self._open[job.video.id].facts = content
                        yield from self._advance(self._open[job.video.id])
                if self._owners:
                    yield from self._encode_batch()
        finally:
            for video in self._open.values():
                video.writer.close()  # removes the unfinished file

    def _add_frames(
        self, video: "_OpenVideo", images: Tensor, pts_seconds: NDArray[np.float64]
    ) -> Iterator[VideoOutcome]:
        images = self._encoder.preprocessing.on_device(images, self._encoder.device)
        video.pts_seconds.append(pts_seconds)
        video.pending += len(images)
        while len(images):
            filled = len(self._owners)
            part = images[: len(self._batch) - filled]
            self._batch[filled : filled + len(part)] = part
            self._owners += [video] * len(part)
            images = images[len(part) :]
            if len(self._owners) == len(self._batch):
                yield from self._encode_batch()

    def _encode_batch(self) -> Iterator[VideoOutcome]:
        """Encode the whole batch, even if it is not full, and distribute the tokens to their
        videos.
        """
        with torch_threads(self._encoder_threads):
            tokens, cls = self._encoder.encode(self._batch)
        rows: dict[_OpenVideo, list[int]] = {}
        for row, video in enumerate(self._owners):
            rows.setdefault(video, []).append(row)
        self._owners = []
        for video, own in rows.items():
            if self._open.get(video.job.video.id) is not video:
                continue  # the video failed after these frames were decoded
            self._frames.advance(len(own))
            yield from self._advance(video, tokens[own], None if cls is None else cls[own])

    def _advance(
        self, video: "_OpenVideo", tokens: Tensor | None = None, cls: Tensor | None = None
    ) -> Iterator[VideoOutcome]:
        """Write the next frames of a video, and finish the video if they are the last ones."""
        try:
            if tokens is not None:
                video.add_tokens(tokens, cls)
            if video.facts is not None and not video.pending:
                video.write(*video.merger.finish())
                video.writer.finish_video(**video.facts)
                del self._open[video.job.video.id]
                yield VideoOutcome(
                    video.job.video.id, video.writer.rows, video.job.path.stat().st_size
                )
        except VideoError as error:
            yield self._fail(video.job, error)

    def _fail(self, job: Job, error: Exception) -> VideoOutcome:
        video = self._open.pop(job.video.id, None)
        if video is not None:
            video.writer.close()
        reason = (
            str(error)
            if isinstance(error, DatasetError)
            else f"{job.video.source}: {type(error).__name__}: {error}"
        )
        return VideoOutcome(job.video.id, failure=reason)


class _OpenVideo:
    def __init__(self, job: Job) -> None:
        self.job = job
        self.pending = 0  # number of frames decoded but not yet encoded
        # Header values, known once the video is fully decoded.
        self.facts: dict[str, Any] | None = None
        self.pts_seconds: list[NDArray[np.float64]] = []
        self.writer = FeatureWriter(job.path)
        self.merger = TokenMerger(job.ratios)
        self._cls: list[NDArray[Any]] = []

    def add_tokens(self, tokens: Tensor, cls: Tensor | None) -> None:
        """Merge and write the next frames, given their tokens (T, N, D) and class tokens (T, D)."""
        self.pending -= len(tokens)
        if cls is not None:
            self._cls.append(_to_float16(cls))
        self.write(*self.merger.push(tokens))

    def write(self, merged_tokens: Tensor, order: Tensor) -> None:
        merged = _to_float16(merged_tokens)  # (T, R, D)
        if not np.isfinite(merged).all():
            raise VideoError(
                f"{self.job.video.source}: the encoder returned NaN or Inf near frame "
                f"{self.writer.rows}"
            )
        rows = {
            f"merged/{ratio_key(ratio)}": merged[:, index]
            for index, ratio in enumerate(self.job.ratios)
        }
        if self._cls:
            rows["cls"] = _pop_rows(self._cls, len(merged))
        rows |= {
            "order": order.cpu().numpy(),
            "pts_seconds": _pop_rows(self.pts_seconds, len(merged)),
        }
        self.writer.append(rows)


def _to_float16(values: Tensor) -> NDArray[Any]:
    return values.to(torch.float16).cpu().numpy()


def _pop_rows(parts: list[NDArray[Any]], count: int) -> NDArray[Any]:
    """Remove and return the first `count` rows of a list of arrays."""
    joined = np.concatenate(parts)
    parts[:] = [joined[count:]]
    return joined[:count]
