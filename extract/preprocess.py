"""From decoded frames to what the vision model takes: one size, normalized. Runs where the model runs.

`squash` stretches the whole frame to the model's square; `crop` is CLIP's own preparation: the short side to the
model's size, then the middle square.
"""

from dataclasses import dataclass
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from byov.extract.encoder_names import Resize


@dataclass(frozen=True)
class Preprocessing:
    """Frames (B, H, W, 3) uint8 of any size → (B, 3, size, size) uint8 → normalized float."""

    resize: Resize
    size: int
    mean: tuple[float, float, float]
    std: tuple[float, float, float]

    def describe(self) -> str:
        """One line that tells two preparations apart; part of a cache file's provenance."""
        numbers = " ".join(f"{value:.6g}" for value in (*self.mean, *self.std))
        return f"{self.resize} {self.size} bicubic antialias, mean std {numbers}"

    def resized(self, frames: Tensor) -> Tensor:
        """(B, H, W, 3) uint8 → (B, 3, size, size) uint8."""
        images = frames.permute(0, 3, 1, 2)
        if self.resize == "squash":
            return _squash(images, self.size)
        height, width = _short_side_to(self.size, images.shape[2], images.shape[3])
        return _resample(images, height, width, _middle(height, self.size), _middle(width, self.size))

    def on_host(self, frames: Tensor, device: torch.device) -> Tensor:
        """What the decoding threads do to (B, H, W, 3) uint8: for a model on the CPU, the resizing."""
        if device.type == "cpu":
            return self.resized(frames)
        return frames.pin_memory() if device.type == "cuda" else frames

    def on_device(self, frames: Tensor, device: torch.device) -> Tensor:
        """The rest of the way to (B, 3, size, size) uint8, where the model is."""
        return frames if device.type == "cpu" else self.resized(frames.to(device, non_blocking=True))

    def normalized(self, images: Tensor, dtype: torch.dtype) -> Tensor:
        """(B, 3, size, size) uint8 → the same in the model's dtype, with the model's mean and deviation."""
        mean = torch.tensor(self.mean, device=images.device)[:, None, None]
        std = torch.tensor(self.std, device=images.device)[:, None, None]
        return ((images.float() / 255 - mean) / std).to(dtype)


def _short_side_to(size: int, height: int, width: int) -> tuple[int, int]:
    """The frame's size once its short side is `size`; the long side is rounded down, as in CLIP's processor."""
    short, long = min(height, width), max(height, width)
    scaled = int(size * long / short)
    return (size, scaled) if height <= width else (scaled, size)


def _middle(length: int, size: int) -> slice:
    first = (length - size) // 2
    return slice(first, first + size)


def _squash(images: Tensor, size: int) -> Tensor:
    """(B, 3, H, W) uint8 → (B, 3, size, size) uint8."""
    if images.device.type == "cpu":
        # PyTorch's own code for bytes is several times faster, and within two gray levels of what follows.
        return F.interpolate(images, size=(size, size), mode="bicubic", antialias=True)
    return _resample(images, size, size, slice(0, size), slice(0, size))


def _resample(images: Tensor, height: int, width: int, rows: slice, columns: slice) -> Tensor:
    """Resize to (height, width) and keep a part, gray level for gray level as Pillow does it: first across, then down,
    each pass with weights of 22 bits and rounded to bytes."""
    across = _resample_last_axis(images, width, columns)
    return _resample_last_axis(across.mT, height, rows).mT


def _resample_last_axis(images: Tensor, length: int, kept: slice) -> Tensor:
    exact = torch.float32 if images.device.type == "mps" else torch.float64  # MPS has no float64
    source = images.contiguous().to(exact)
    pieces = [
        source[..., first:end] @ weights.to(images.device, exact)
        for first, end, weights in _banded_weights(images.shape[-1], length, kept.start, kept.stop)
    ]
    return torch.cat(pieces, dim=-1).add_(0.5).floor_().clamp_(0, 255).to(torch.uint8)


@lru_cache(maxsize=64)
def _banded_weights(length: int, new_length: int, start: int, stop: int) -> list[tuple[int, int, Tensor]]:
    """The resizing of one axis as products of narrow matrices: for 32 new pixels at a time, the range of old pixels
    that they look at and the weights (old pixels, new pixels)."""
    impulses = torch.eye(length, dtype=torch.float64)[None, None]
    weights = F.interpolate(impulses, size=(length, new_length), mode="bicubic", antialias=True)[0, 0]
    weights = (weights * 2**22).round() / 2**22
    bands = []
    for first_new in range(start, stop, 32):
        columns = weights[:, first_new : min(first_new + 32, stop)]
        touched = columns.any(dim=1).nonzero()
        first, end = int(touched.min()), int(touched.max()) + 1
        bands.append((first, end, columns[first:end].clone()))
    return bands
