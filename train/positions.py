"""Where a frame stands in its video, as a fixed sine-cosine vector."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from byov.train.settings import Position

BASE = 10000.0


def sincos(frame_index: Tensor, width: int) -> Tensor:
    """(..., T) frame indices → (..., T, width): sines in the first half of the channels, cosines in the second."""
    precision = torch.float32 if frame_index.device.type == "mps" else torch.float64  # which MPS does not have
    frequencies = BASE ** (-torch.arange(width // 2, dtype=precision, device=frame_index.device) / (width / 2))
    angles = frame_index.to(precision)[..., None] * frequencies
    return torch.cat([angles.sin(), angles.cos()], dim=-1).float()


class Positions(nn.Module):
    """Vectors to add to the frames of a clip.

    interpolated: a table of `frames` rows, stretched or squeezed to the clip's length: a frame's share of the clip.
    index: the frame's own number, counted from the clip's first frame.
    none: zeros.
    """

    table: Tensor

    def __init__(self, frames: int, width: int, mode: Position) -> None:
        super().__init__()
        self.width, self.mode = width, mode
        self.register_buffer("table", sincos(torch.arange(frames), width), persistent=False)

    def forward(self, frame_index: Tensor) -> Tensor:
        """(B, T) number of each frame in its clip → (B, T, width), or (1, T, width) where all clips have the same."""
        length = frame_index.shape[-1]
        if self.mode == "index":
            return sincos(frame_index, self.width)
        if self.mode == "none":
            return self.table.new_zeros(1, length, self.width)
        if length == len(self.table):
            return self.table[None]
        return F.interpolate(self.table.T[None], size=length, mode="linear").transpose(1, 2)
