"""Resize and normalize decoded frames for a vision model, on the model's device.

`squash` stretches the whole frame to the model's square input. `crop` is CLIP's original
preprocessing: resize the short side to the model's input size and crop the center.
"""

from dataclasses import dataclass
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from byov.extract.encoder_names import Resize


@dataclass(frozen=True)
class Preprocessing:
    """Preprocessing of uint8 frames: resize (B, H, W, 3) to (B, 3, size, size), then normalize to
    floats.
    """

    resize: Resize
    size: int
    mean: tuple[float, float, float]
    std: tuple[float, float, float]

    def describe(self) -> str:
        """Return a line that identifies the preprocessing in the provenance of a feature file."""
        numbers = " ".join(f"{value:.6g}" for value in (*self.mean, *self.std))
        return f"{self.resize} {self.size} bicubic antialias, mean std {numbers}"

    def resized(self, frames: Tensor) -> Tensor:
        """Resize uint8 frames (B, H, W, 3) to uint8 images (B, 3, size, size)."""
        images = frames.permute(0, 3, 1, 2)
        height, width = images.shape[2:]
        if self.resize == "crop":
            # CLIP's processor rounds the long side down.
            long = int(self.size * max(height, width) / min(height, width))
            resized = (self.size, long) if height <= width else (long, self.size)
            rows, columns = (
                slice((side - self.size) // 2, (side + self.size) // 2) for side in resized
            )
            return _resample(images, *resized, rows, columns)
        if images.device.type == "cpu":
            # PyTorch's uint8 kernel is several times faster and differs from _resample by at most
            # two gray levels.
            return F.interpolate(
                images, size=(self.size, self.size), mode="bicubic", antialias=True
            )
        return _resample(images, self.size, self.size, slice(0, self.size), slice(0, self.size))

    def on_host(self, frames: Tensor, device: torch.device) -> Tensor:
        """Start preprocessing in a decoder thread: resize if the model is on the CPU; pin memory if
        it is on CUDA.
        """
        if device.type == "cpu":
            return self.resized(frames)
        return frames.pin_memory() if device.type == "cuda" else frames

    def on_device(self, frames: Tensor, device: torch.device) -> Tensor:
        """Finish preprocessing on the model's device; return uint8 images (B, 3, size, size)."""
        return (
            frames if device.type == "cpu" else self.resized(frames.to(device, non_blocking=True))
        )

    def normalized(self, images: Tensor, dtype: torch.dtype) -> Tensor:
        """Normalize uint8 images (B, 3, size, size) with the model's mean and standard
        deviation.
        """
        mean = torch.tensor(self.mean, device=images.device)[:, None, None]
        std = torch.tensor(self.std, device=images.device)[:, None, None]
        return ((images.float() / 255 - mean) / std).to(dtype)


def _resample(images: Tensor, height: int, width: int, rows: slice, columns: slice) -> Tensor:
    """Resize to (height, width) and crop to `rows` and `columns`. Bit-identical to Pillow, which
    resizes horizontally, then vertically, with 22-bit weights and rounding to bytes in each
    pass."""
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
def _banded_weights(
    length: int, new_length: int, start: int, stop: int
) -> list[tuple[int, int, Tensor]]:
    """Return the weights for resizing one axis as narrow matrices: for each block of 32 output
    pixels, the range of contributing input pixels and their weights (input pixels, output
    pixels)."""
    impulses = torch.eye(length, dtype=torch.float64)[None, None]
    weights = F.interpolate(impulses, size=(length, new_length), mode="bicubic", antialias=True)[
        0, 0
    ]
    weights = (weights * 2**22).round() / 2**22
    bands = []
    for first_new in range(start, stop, 32):
        columns = weights[:, first_new : min(first_new + 32, stop)]
        touched = columns.any(dim=1).nonzero()
        first = int(touched.min())
        end = int(touched.max()) + 1
        bands.append((first, end, columns[first:end].clone()))
    return bands
