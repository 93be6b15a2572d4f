"""Live video: embed each frame as it arrives, and estimate progress and phase from the training
videos.
"""

import copy
import logging
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

import byov
from byov.apply.embedder import check_frames
from byov.apply.references import read_training_frames
from byov.errors import ApplyError
from byov.extract.token_merging import TokenMerger
from byov.records import UNLABELED

LOGGER = logging.getLogger(__name__)


class StreamedFrame(NamedTuple):
    """Result of `Stream.push` for one frame."""

    embedding: NDArray[np.float32]  # (D,)
    progress: float  # progress of the action, from 0 to 1
    phase: str | None  # None if the training videos have no labels


class Stream:
    """Stream of live video that shows one action. Create it with `Run.stream`.

    Each frame is embedded as the last of the newest `window` frames, without latency and at
    constant cost. Token merging compares a frame with the next one, so the newest frame uses the
    scores of the previous frame and is merged again when the next one arrives. Progress is the mean
    progress of the nearest training frames, and the phase is the most frequent one among them.
    """

    def __init__(self, run: "byov.Run", window: int | None = None) -> None:
        if window is not None and (not isinstance(window, int) or window < 2):
            raise ApplyError(f"window is {window!r}. Pass a number of frames, at least 2.")
        if not run.model.is_causal:
            LOGGER.warning(
                f"{run.name}: {run.record.title or run.record.recipe} was trained on whole videos, "
                "so it treats every frame as the end of the action. For live video, use byov-train "
                "--method timeline --online."
            )
        self._run = run
        self._encoder = run.frame_encoder()
        self._training = read_training_frames(run)
        entries = self._training.videos.videos.values()
        self.window = window or max(video.frames or 0 for video in entries)
        self.reset()

    def reset(self) -> None:
        """Start a new action."""
        self._merger = TokenMerger((self._run.record.ratio,))
        self._features = torch.empty(
            0, self._run.model.width, dtype=torch.float16, device=self._encoder.device
        )
        self._size: tuple[int, ...] | None = None

    @torch.inference_mode()
    def push(self, frame: NDArray[np.uint8]) -> StreamedFrame:
        """Embed the next frame, a uint8 RGB array (H, W, 3).

        Raises:
            ApplyError: If the array has the wrong type or shape, or its size differs from earlier
                frames.
        """
        frame = np.asarray(frame)
        check_frames(frame, "(H, W, 3)")
        if self._size not in (None, frame.shape):
            raise ApplyError(
                f"A frame of shape {frame.shape} follows frames of shape {self._size}. Resize it "
                "or call reset()."
            )
        self._size = frame.shape
        pixels = torch.from_numpy(np.ascontiguousarray(frame)[None]).to(self._encoder.device)
        tokens, _ = self._encoder.encode(self._encoder.preprocessing.resized(pixels))
        merged = self._merger.push(tokens)[0][:, 0].half()  # final features of the previous frame
        newest = copy.copy(self._merger).finish()[0][:, 0].half()
        self._features = torch.cat([self._features[: -len(merged) or None], merged, newest])[
            -self.window :
        ]
        embedding = self._run.embed(self._features)[-1]
        frames = self._training.frames
        nearest = frames.nearest(embedding[None])[1][0]
        labels = self._training.labels[nearest]
        counts = np.bincount(labels[labels != UNLABELED])
        phase = self._training.videos.phases[int(counts.argmax())] if len(counts) else None
        return StreamedFrame(embedding, float(frames.progress[nearest].mean()), phase)
