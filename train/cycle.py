"""Temporal cycle-consistency between two clips: there and back again, a frame should find itself.

After Dwibedi et al., "Temporal Cycle-Consistency Learning" (CVPR 2019), regression with a variance penalty.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

TEMPERATURE = 0.1
VARIANCE_WEIGHT = 0.1


def cycle_loss(
    there: Tensor,
    there_padding: Tensor | None,
    back: Tensor,
    back_padding: Tensor | None,
    order_prior: float | None = None,
) -> Tensor:
    """(B, T, D) and (B, S, D) latents → the mean cost of going from each frame of `there` to `back` and home.

    Each frame's soft nearest neighbor in the other clip looks for its own soft nearest neighbor at home; that
    neighbor's index, mu with variance var, should be the frame's own index t:
    ((mu - t)² / (var + 1) + 0.1 log(var + 1)) / T.

    Any one-to-one map between the clips is consistent, also one that runs backwards. order_prior: the way there is
    weighted by a Gaussian of this deviation around the same share of the other clip, which breaks that tie.

    Padding, (B, T) and (B, S), True: repeats of a last frame, which cannot be told from it. None is found, none costs.
    """
    with torch.autocast(there.device.type, enabled=False):  # bfloat16 is too coarse for the index of a frame
        there, back = F.normalize(there.float(), dim=-1), F.normalize(back.float(), dim=-1)
        there_frames, back_frames = _frames(there, there_padding), _frames(back, back_padding)  # (B, T), (B, S)
        similarity = there @ back.mT / TEMPERATURE  # (B, T, S)
        if order_prior is not None:
            apart = _shares(there_frames)[..., None] - _shares(back_frames)[:, None]
            similarity = similarity - apart.square() / (2 * order_prior**2)
        neighbors = _softmax(similarity, back_frames) @ back  # (B, T, D)
        returns = _softmax(neighbors @ there.mT / TEMPERATURE, there_frames)  # (B, T, T)
        index = torch.arange(there.shape[1], dtype=there.dtype, device=there.device)
        mean = returns @ index  # (B, T)
        variance = (returns * (index - mean[..., None]).square()).sum(dim=-1)
        cost = (mean - index).square() / (variance + 1) + VARIANCE_WEIGHT * torch.log1p(variance)
        counts = there_frames.sum(dim=-1)  # (B,)
        return ((cost * there_frames).sum(dim=-1) / counts.square()).mean()


def _frames(clips: Tensor, padding: Tensor | None) -> Tensor:
    """(B, T) True where a frame is one of its own."""
    if padding is None:
        return torch.ones(clips.shape[:2], dtype=torch.bool, device=clips.device)
    return ~padding


def _softmax(similarity: Tensor, frames: Tensor) -> Tensor:
    """(B, T, S) over S, none of it on padding."""
    return similarity.masked_fill(~frames[:, None], -torch.inf).softmax(dim=-1)


def _shares(frames: Tensor) -> Tensor:
    """(B, T) how far each frame is into its clip, from 0 to 1."""
    places = torch.arange(frames.shape[1], dtype=torch.float32, device=frames.device)
    return places / (frames.sum(dim=-1, keepdim=True) - 1).clamp(min=1)
