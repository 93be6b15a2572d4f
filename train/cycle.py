"""Temporal cycle-consistency between two clips: there and back again, a frame should find itself.

After Dwibedi et al., "Temporal Cycle-Consistency Learning" (CVPR 2019), regression with a variance penalty.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

TEMPERATURE = 0.1
VARIANCE_WEIGHT = 0.1


def cycle_loss(there: Tensor, back: Tensor, order_prior: float | None = None) -> Tensor:
    """(B, T, D) and (B, S, D) latents → the mean cost of going from each frame of `there` to `back` and home.

    Each frame's soft nearest neighbour in the other clip looks for its own soft nearest neighbour at home; that
    neighbour's index, mu with variance var, should be the frame's own index t:
    ((mu - t)² / (var + 1) + 0.1 log(var + 1)) / T.

    Any one-to-one map between the clips is consistent, also one that runs backwards. order_prior: the way there is
    weighted by a Gaussian of this deviation around the same share of the other clip, which breaks that tie.
    """
    with torch.autocast(there.device.type, enabled=False):  # bfloat16 is too coarse for the index of a frame
        there, back = F.normalize(there.float(), dim=-1), F.normalize(back.float(), dim=-1)
        similarity = there @ back.mT / TEMPERATURE  # (B, T, S)
        if order_prior is not None:
            similarity = similarity - _distance_in_share(there, back).square() / (2 * order_prior**2)
        neighbours = similarity.softmax(dim=-1) @ back  # (B, T, D)
        returns = (neighbours @ there.mT / TEMPERATURE).softmax(dim=-1)  # (B, T, T)
        index = torch.arange(there.shape[1], dtype=there.dtype, device=there.device)
        mean = returns @ index  # (B, T)
        variance = (returns * (index - mean[..., None]).square()).sum(dim=-1)
        cost = (mean - index).square() / (variance + 1) + VARIANCE_WEIGHT * torch.log1p(variance)
        return cost.mean() / there.shape[1]


def _distance_in_share(there: Tensor, back: Tensor) -> Tensor:
    """(T, S) how far apart two frames are, each as a share of its own clip."""
    shares = [torch.linspace(0, 1, clip.shape[1], device=clip.device) for clip in (there, back)]
    return shares[0][:, None] - shares[1]
