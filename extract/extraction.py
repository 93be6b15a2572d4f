"""The extraction: decoded frames → resize → encode in full batches across videos → merge → write.

The encoder always sees the same batch shape, and a frame's tokens do not depend on its neighbours in the batch; so what
a video's file holds depends on that video alone, not on what else was extracted with it or on an earlier interruption.
"""

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from byov.cache.features import FeatureWriter, Provenance
from byov.data.video import DECODER
from byov.errors import DatasetError, VideoError
from byov.extract.decode_ahead import Event, PreparedFrames, SourceFile
from byov.extract.encoder_name import EncoderName
from byov.extract.encoders import Shape
from byov.extract.plan import Job
from byov.extract.preprocess import Preprocessing
from byov.extract.token_merging import MergedFrames, TokenMerger
from byov.progress import Bar

LOGGER = logging.getLogger(__name__)


class TokenEncoder(Protocol):
    """What the extraction needs of a frame encoder."""

    name: EncoderName
    sha256: str
    shape: Shape
    preprocessing: Preprocessing
    device: torch.device
    dtype: torch.dtype

    def encode(self, images: Tensor) -> tuple[Tensor, Tensor | None]: ...


@dataclass
class Outcome:
    """What became of the jobs so far."""

    videos: int = 0
    frames: int = 0
    written_bytes: int = 0
    seconds: float = 0.0
    failures: dict[str, str] = field(default_factory=dict)  # video id → reason


class Extraction:
    """Turns decoder events into cache files.

    A video that cannot be read is recorded as a failure and the others go on; an error in writing stops the run.
    """

    def __init__(self, encoder: TokenEncoder, *, batch_size: int, videos: Bar, frames: Bar) -> None:
        self.outcome = Outcome()
        self._encoder, self._videos_done, self._frames_done = encoder, videos, frames
        self._encoder_threads = torch.get_num_threads()
        size = encoder.preprocessing.size
        # Colours innermost, as frames come from the decoder: filling the batch is then a plain copy.
        self._batch = torch.zeros(batch_size, size, size, 3, dtype=torch.uint8, device=encoder.device).permute(
            0, 3, 1, 2
        )
        self._owners: list[_OpenVideo] = []  # whose frame stands at each place of the batch, as far as it is filled
        self._open: dict[str, _OpenVideo] = {}  # by video id

    @torch.inference_mode()
    def run(self, events: Iterable[Event]) -> Outcome:
        try:
            # Copying and merging are too small to share out: waiting for a second thread, on cores that are busy
            # decoding, costs many times what it saves.
            with _torch_threads(1):
                for event in events:
                    self._handle(event)
                if self._owners:
                    self._run_batch()
        finally:
            self.close()
        return self.outcome

    def close(self) -> None:
        """Drop what is unfinished; nothing of it stays on disk."""
        for video in self._open.values():
            video.writer.close()
        self._open.clear()

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
        self.outcome.videos += 1
        self.outcome.frames += frames
        self.outcome.written_bytes += video.job.path.stat().st_size
        self._videos_done.advance(latest=video.job.video.id)

    def _fail(self, job: Job, error: Exception) -> None:
        video = self._open.pop(job.video.id, None)
        if video is not None:
            video.writer.close()
        reason = str(error) if isinstance(error, DatasetError) else f"{job.video.path}: {type(error).__name__}: {error}"
        self.outcome.failures[job.video.id] = reason
        LOGGER.warning(f"failed: {reason}")
        self._videos_done.advance(latest=job.video.id)


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
        self.writer.finish(provenance, fps=source.fps, truncated=source.truncated)
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
