"""Random masks: which frames stay visible, and how the others are filled in."""

from math import floor

import torch
from torch import Tensor

from byov.train.clips import Clips


def visible_count(frames: int, ratio: float) -> int:
    """How many of the frames stay visible at a masking ratio; rounded down, but not for a rounding error's sake."""
    return floor(frames * (1 - ratio) + 1e-6)


def draw_visible(clips: Clips, ratio: float, random: torch.Generator) -> Tensor:
    """(B, K) which of the sampled frames stay visible, in temporal order; another random choice for each clip."""
    shuffled = clips.rand(clips.sampled, random=random).argsort(dim=1)
    return shuffled[:, : visible_count(clips.sampled, ratio)].sort(dim=1).values


def take(frames: Tensor, kept: Tensor) -> Tensor:
    """(B, T, D) frames, (B, K) indices → (B, K, D)."""
    return frames.gather(1, kept[:, :, None].expand(-1, -1, frames.shape[-1]))


def fill(visible: Tensor, kept: Tensor, frames: int, mask_token: Tensor) -> Tensor:
    """Put (B, K, D) visible tokens back to their places among T frames; the others become the mask token."""
    filled = mask_token.to(visible.dtype).expand(len(visible), frames, -1)
    return filled.scatter(1, kept[:, :, None].expand(-1, -1, visible.shape[-1]), visible)


def masked(kept: Tensor, frames: int) -> Tensor:
    """(B, T): True where a frame was removed."""
    return torch.ones(len(kept), frames, dtype=torch.bool, device=kept.device).scatter(1, kept, False)
