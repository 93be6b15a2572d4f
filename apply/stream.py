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
from byov.apply.arrays import VideoArrays, load_features
from byov.apply.embedder import check_frames
from byov.errors import ApplyError
from byov.evaluate.progress_error import NEIGHBORS, mean_phase_starts, reference_progress
from byov.extract.token_merging import TokenMerger
from byov.records import UNLABELED
from byov.train.progress import aligned_progress

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
        videos = run.embeddings("train")
        self._training = np.concatenate(list(videos.values()))
        self._square_norms = np.square(self._training).sum(axis=1)
        self._progress = training_progress(run, videos)
        self._labels = np.concatenate(
            [video.labels or (UNLABELED,) * (video.frames or 0) for video in videos.videos.values()]
        )
        self._phases = videos.phases
        self.window = window or max(video.frames or 0 for video in videos.videos.values())
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
        # Squared distances, up to a constant.
        distances = self._square_norms - 2 * self._training @ embedding
        nearest = np.argsort(distances, kind="stable")[:NEIGHBORS]
        labels = self._labels[nearest]
        counts = np.bincount(labels[labels != UNLABELED])
        phase = self._phases[int(counts.argmax())] if len(counts) else None
        return StreamedFrame(embedding, float(self._progress[nearest].mean()), phase)


def training_progress(run: "byov.Run", videos: VideoArrays) -> NDArray[np.float64]:
    """Return the progress of all training frames, based on their labels or, without labels, on
    aligning the videos.
    """
    entries = videos.videos
    labels = [video.labels for video in entries.values() if video.labels is not None]
    if labels:
        starts = mean_phase_starts(labels)
        return np.concatenate(
            [reference_progress(v.frames or 0, v.labels, starts) for v in entries.values()]
        )
    features = load_features(
        run.dataset,
        split="train",
        encoder=run.record.encoder,
        ratio=run.record.ratio,
        features_dir=run.features_dir,
    )
    views = [video.view for video in features.videos.values()]
    aligned = aligned_progress(list(features), views, features.__getitem__)
    progress = dict(zip(features, aligned, strict=True))
    return np.concatenate([progress[name].double().numpy() for name in entries])
