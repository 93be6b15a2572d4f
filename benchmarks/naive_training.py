"""BYOV's training step written down plainly: one call of the encoder and of the decoder per view and objective.

The tests hold the method's forward against it, and the benchmark measures what joining the calls saves.
"""

import torch
from torch import Tensor

from byov.train.methods.base import Losses
from byov.train.methods.byov import Byov
from byov.train.networks import Seen, ToDecode, draw_visible
from byov.train.sampling import Batch, Clips


def naive_losses(method: Byov, clips: Batch, random: torch.Generator) -> Losses:
    """The losses of `method`, which draws the same masks from the same generator; without cycles."""
    ego, exo = clips
    kept = {
        (ratio, name): draw_visible(view, getattr(method.settings, ratio), random)
        for ratio in ("mask_self", "mask_cross")
        for name, view in (("ego", ego), ("exo", exo))
    }
    losses = {}
    if method.settings.self_view:
        losses["self"] = _self_view(method, ego, kept["mask_self", "ego"]) + _self_view(
            method, exo, kept["mask_self", "exo"]
        )
    if method.settings.cross_view:
        losses["cross"] = _cross_view(method, ego, exo, kept["mask_cross", "ego"]) + _cross_view(
            method, exo, ego, kept["mask_cross", "exo"]
        )
    return {"loss": sum(losses.values(), torch.zeros(()))} | losses


def _self_view(method: Byov, view: Clips, kept: Tensor) -> Tensor:
    tokens = _mask_filled(method, view, kept)
    (decoded,) = method.decoder([ToDecode(tokens, causal=method.settings.causal)])
    return _error(method, view, decoded, kept)


def _cross_view(method: Byov, own: Clips, other: Clips, kept: Tensor) -> Tensor:
    positions = _positions(method.encoder.positions, other)
    (latents,) = method.encoder([Seen(other.features, positions, other.index)])
    context = method.decoder.project(latents) + _positions(method.decoder.positions, other)
    (decoded,) = method.decoder([ToDecode(_mask_filled(method, own, kept), beside=context)])
    return _error(method, own, decoded, kept)


def _mask_filled(method: Byov, view: Clips, kept: Tensor) -> Tensor:
    """Encode what is visible of each clip, and put it back frame by frame."""
    given = (view.features, _positions(method.encoder.positions, view), view.index)
    visible = (torch.stack([clip[rows] for clip, rows in zip(values, kept, strict=True)]) for values in given)
    (latents,) = method.encoder([Seen(*visible)])
    tokens = method.decoder.mask_token.repeat(len(kept), view.sampled, 1)
    projected = method.decoder.project(latents)
    for clip, rows in enumerate(kept):
        tokens[clip, rows] = projected[clip]
    return tokens + _positions(method.decoder.positions, view)


def _positions(positions: torch.nn.Module, view: Clips) -> Tensor:
    """(B, T, D) of every clip by itself."""
    clips = zip(view.index, view.length, strict=True)
    return torch.cat([positions(index[None], length[None]) for index, length in clips])


def _error(method: Byov, view: Clips, decoded: Tensor, kept: Tensor) -> Tensor:
    error = (decoded - view.features).square().mean(dim=-1)
    if not method.settings.masked_only:
        return error.mean()
    hidden = [
        error[clip, frame]
        for clip in range(len(error))
        for frame in range(view.sampled)
        if frame not in kept[clip].tolist()
    ]
    return torch.stack(hidden).mean() if hidden else error.sum() * 0
