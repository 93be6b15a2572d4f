"""Where a frame stands in its clip, as a fixed sine-cosine vector."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from byov.train.settings import Position

BASE = 10000.0


def sincos(places: Tensor, width: int) -> Tensor:
    """(..., T) places on the time axis → (..., T, width): sines in the first half of the channels, then cosines."""
    precision = torch.float32 if places.device.type == "mps" else torch.float64  # which MPS does not have
    frequencies = BASE ** (-torch.arange(width // 2, dtype=precision, device=places.device) / (width / 2))
    angles = places.to(precision)[..., None] * frequencies
    return torch.cat([angles.sin(), angles.cos()], dim=-1).float()


class Positions(nn.Module):
    """Vectors to add to the frames of a clip.

    interpolated: a table of `frames` rows, stretched or squeezed to as many frames as were sampled.
    share: the frame's share of its clip, on the same scale; the same however many frames of the clip are sampled.
    index: the frame's own number, counted from the clip's first frame.
    none: zeros.
    """

    table: Tensor

    def __init__(self, frames: int, width: int, mode: Position) -> None:
        super().__init__()
        self.width, self.mode = width, mode
        self.register_buffer("table", sincos(torch.arange(frames), width), persistent=False)

    def forward(self, index: Tensor, length: Tensor) -> Tensor:
        """(B, T) number of each frame in its clip, (B,) the clips' lengths → (B, T, width), or (1, T, width) where all
        clips have the same."""
        sampled = index.shape[-1]
        if self.mode == "index":
            return sincos(index, self.width)
        if self.mode == "share":
            return sincos(index / (length - 1).clamp(min=1)[:, None] * (len(self.table) - 1), self.width)
        if self.mode == "none":
            return self.table.new_zeros(1, sampled, self.width)
        if sampled == len(self.table):
            return self.table[None]
        return F.interpolate(self.table.T[None], size=sampled, mode="linear").transpose(1, 2)
