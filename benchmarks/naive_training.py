"""The training step written down plainly: one call of the encoder and of the decoder per view and objective.

The tests hold the trainer's joined step against it, and the benchmark measures what joining saves.
"""

import torch
from torch import Tensor

from byov.train.autoencoder import Autoencoder
from byov.train.objective import MaskedEgoExo, draw_visible
from byov.train.sampling import Clips


def naive_losses(
    objective: MaskedEgoExo, model: Autoencoder, ego: Clips, exo: Clips, generator: torch.Generator
) -> dict[str, Tensor]:
    """The losses of `objective`, which draws the same masks from the same generator."""
    kept = {
        (ratio, name): draw_visible(len(view.frames), view.length, getattr(objective.settings, ratio), generator)
        for ratio in ("mask_self", "mask_cross")
        for name, view in (("ego", ego), ("exo", exo))
    }
    losses = {}
    if objective.settings.self_view:
        losses["self"] = _self_view(objective, model, ego, kept["mask_self", "ego"]) + _self_view(
            objective, model, exo, kept["mask_self", "exo"]
        )
    if objective.settings.cross_view:
        losses["cross"] = _cross_view(objective, model, ego, exo, kept["mask_cross", "ego"]) + _cross_view(
            objective, model, exo, ego, kept["mask_cross", "exo"]
        )
    return {"loss": sum(losses.values(), torch.zeros(()))} | losses


def _self_view(objective: MaskedEgoExo, model: Autoencoder, view: Clips, kept: Tensor) -> Tensor:
    tokens = _mask_filled(model, view, kept)
    (decoded,) = model.decoder([tokens], [objective.settings.causal])
    return _error(objective, view, model.decoder.reconstruct(decoded), kept)


def _cross_view(objective: MaskedEgoExo, model: Autoencoder, own: Clips, other: Clips, kept: Tensor) -> Tensor:
    (latents,) = model.encoder([model.encoder.place(other.frames, other.index)], [other.index])
    context = model.decoder.place(model.decoder.project(latents), other.index)
    tokens = torch.cat([_mask_filled(model, own, kept), context], dim=1)
    (decoded,) = model.decoder([tokens], [False])
    return _error(objective, own, model.decoder.reconstruct(decoded)[:, : own.length], kept)


def _mask_filled(model: Autoencoder, view: Clips, kept: Tensor) -> Tensor:
    """Encode what is visible of each clip, and put it back frame by frame."""
    placed = model.encoder.place(view.frames, view.index)
    visible = torch.stack([clip[rows] for clip, rows in zip(placed, kept, strict=True)])
    index = torch.stack([clip[rows] for clip, rows in zip(view.index, kept, strict=True)])
    (latents,) = model.encoder([visible], [index])
    tokens = model.decoder.mask_token.repeat(len(kept), view.length, 1)
    projected = model.decoder.project(latents)
    for clip, rows in enumerate(kept):
        tokens[clip, rows] = projected[clip]
    return model.decoder.place(tokens, view.index)


def _error(objective: MaskedEgoExo, view: Clips, frames_hat: Tensor, kept: Tensor) -> Tensor:
    error = (frames_hat - view.frames).square().mean(dim=-1)
    if not objective.settings.masked_only:
        return error.mean()
    hidden = [
        error[clip, frame]
        for clip in range(len(error))
        for frame in range(view.length)
        if frame not in kept[clip].tolist()
    ]
    return torch.stack(hidden).mean() if hidden else error.sum() * 0
