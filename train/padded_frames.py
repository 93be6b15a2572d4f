"""What the losses over frames have in common where some frames are padding: repeats that are neither found nor cost."""

import torch
from torch import Tensor


def wide(values: Tensor) -> Tensor:
    """In float32, or wider if they are."""
    return values.to(torch.promote_types(values.dtype, torch.float32))


def hide(logits: Tensor, padding: Tensor) -> Tensor:
    """(N, ..., T) of which (N, T) padding is no part of a softmax over T, unless there is nothing else."""
    between = (1,) * (logits.dim() - padding.dim())
    return logits.masked_fill(padding.view(len(padding), *between, -1), torch.finfo(logits.dtype).min)


def mean_of_items(values: Tensor, counted: Tensor) -> Tensor:
    """(N, ...) → the mean over what counts of each item, 0 if nothing does, then over the items."""
    return ((values * counted).flatten(1).sum(dim=1) / counted.flatten(1).sum(dim=1).clamp(min=1)).mean()


def own_frame_cross_entropy(logits: Tensor, padding: Tensor, smoothing: float) -> Tensor:
    """(N, T, T) → (N, T): -Σ_k q_ik log softmax_k(logits_ik), q_ik = (1 - smoothing) [i = k] + smoothing / T.

    Padding, (N, T): no k, and not counted in T.
    """
    logarithms = hide(logits, padding).log_softmax(dim=-1).masked_fill(padding[:, None], 0)
    frames = (~padding).sum(dim=1, keepdim=True)
    own, others = logarithms.diagonal(dim1=1, dim2=2), logarithms.sum(dim=-1) / frames
    return -((1 - smoothing) * own + smoothing * others)
