"""Clips: what an objective learns from."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Clips:
    """B clips of T frames, sampled from their videos."""

    frames: Tensor  # (B, T, width)
    index: Tensor  # (B, T) number of each frame, counted from the first that could have been sampled
    padding: Tensor | None = None  # (B, T) True where a short video repeats its last frame; None: nowhere

    def to(self, device: torch.device) -> "Clips":
        frames, index, padding = (
            None if tensor is None else tensor.to(device, non_blocking=True)
            for tensor in (self.frames, self.index, self.padding)
        )
        assert frames is not None
        assert index is not None
        return Clips(frames, index, padding)

    @property
    def length(self) -> int:
        return self.frames.shape[1]
