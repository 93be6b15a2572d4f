"""Clips of random frames, and their padding where they have none."""

from typing import Any

import torch
from torch import Tensor


def random_frames(*shape: int, seed: int = 0, dtype: Any = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def nowhere(clips: Tensor) -> Tensor:
    """(N, T) of (N, T, D): no frame is padding."""
    return torch.zeros(clips.shape[:2], dtype=torch.bool)
