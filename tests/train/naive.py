"""Naive implementations of BYOV's losses (one network call per view and objective) and of soft DTW
(cell by cell).

Tests compare the optimized implementations with these; benchmarks/train.py measures the difference
in speed.
"""

import torch
from torch import Tensor

from byov.train.methods.base import Losses
from byov.train.methods.byov import Byov
from byov.train.networks import Group, draw_visible, local_attention_mask
from byov.train.sampling import Batch, Clips


def naive_losses(method: Byov, clips: Batch, generator: torch.Generator) -> Losses:
    """Compute the losses of `method` except the cycle loss, with the same masks for the same
    generator.
    """
    ego, exo = clips
    visible_self = [draw_visible(view, method.mask_self, generator) for view in clips]
    visible_cross = [draw_visible(view, method.mask_cross, generator) for view in clips]
    losses = {}
    if method.self_view:
        losses["self"] = sum(
            _self_view(method, *view) for view in zip(clips, visible_self, strict=True)
        )
    if method.cross_view:
        views = zip((ego, exo), (exo, ego), visible_cross, strict=True)
        losses["cross"] = sum(_cross_view(method, *view) for view in views)
    weights = {"self": 0.5 if method.masked_only else 1.0, "cross": 1.0}
    return {
        "loss": sum((weights[name] * loss for name, loss in losses.items()), torch.zeros(()))
    } | losses


def _self_view(method: Byov, view: Clips, visible: Tensor) -> Tensor:
    tokens = _mask_filled(method, view, visible, strict=method.causal == "strict")
    (decoded,) = method.decoder([tokens], [view.sampled], [method.causal != "none"])
    return _error(method, view, decoded, visible)


def _cross_view(method: Byov, own: Clips, other: Clips, visible: Tensor) -> Tensor:
    latents = _encode(
        method, other.features, _positions(method.encoder.positions, other), other.index
    )
    context = method.decoder.project(latents) + _positions(method.decoder.positions, other)
    tokens = torch.cat([_mask_filled(method, own, visible), context], dim=1)
    (decoded,) = method.decoder([tokens], [own.sampled], [False])
    return _error(method, own, decoded, visible)


def _mask_filled(method: Byov, view: Clips, visible: Tensor, *, strict: bool = False) -> Tensor:
    """Encode the visible frames of each clip and insert their latents between mask tokens.

    If `strict`, each frame is encoded together with earlier ones only, and token t holds frame t -
    1.
    """
    values = (view.features, _positions(method.encoder.positions, view), view.index)
    selected = (
        torch.stack([clip[rows] for clip, rows in zip(each, visible, strict=True)])
        for each in values
    )
    latents = _encode(method, *selected, causal=strict)
    tokens = method.decoder.mask_token.repeat(len(visible), view.sampled, 1)
    projected = method.decoder.project(latents)
    for clip, rows in enumerate(visible):
        tokens[clip, rows] = projected[clip]
    if strict:
        tokens = torch.cat(
            [method.decoder.mask_token.repeat(len(visible), 1, 1), tokens[:, :-1]], dim=1
        )
    return tokens + _positions(method.decoder.positions, view)


def _encode(
    method: Byov, features: Tensor, positions: Tensor, index: Tensor, *, causal: bool = False
) -> Tensor:
    """Encode frames (B, K, width) as latents (B, K, D)."""
    encoder = method.encoder
    groups = [Group(*index.shape, causal)]
    if encoder.attention_window is not None:
        groups = local_attention_mask(groups, index.flatten(), encoder.attention_window)
    x = encoder.embed_tokens(features.flatten(0, 1), positions.flatten(0, 1))
    for block in encoder.blocks:
        x = block(x, groups)
    return encoder.norm(x).view(*index.shape, x.shape[-1])


def _positions(positions: torch.nn.Module, view: Clips) -> Tensor:
    """Compute positional encodings (B, T, D) clip by clip."""
    clips = zip(view.index, view.length, strict=True)
    return torch.cat([positions(index[None], length[None]) for index, length in clips])


def _error(method: Byov, view: Clips, decoded: Tensor, visible: Tensor) -> Tensor:
    error = (decoded - view.features).square().mean(dim=-1)
    if not method.masked_only:
        return error.mean()
    masked = [
        frame
        for clip, rows in zip(error, visible, strict=True)
        for t, frame in enumerate(clip)
        if t not in rows
    ]
    return torch.stack(masked).mean() if masked else error.sum() * 0


def naive_soft_dtw(costs: Tensor, gamma: float) -> Tensor:
    """Compute soft DTW tables (N, T, S), in which a cell is its cost plus the soft minimum of the
    previous cells.
    """
    _, rows, columns = costs.shape
    table: dict[tuple[int, int], Tensor] = {}
    for i in range(rows):
        for j in range(columns):
            cells = [
                table[cell] for cell in ((i, j - 1), (i - 1, j - 1), (i - 1, j)) if cell in table
            ]
            table[i, j] = costs[:, i, j]
            if cells:
                before = torch.stack(cells)
                table[i, j] = table[i, j] + ((-before / gamma).softmax(dim=0) * before).sum(dim=0)
    return torch.stack(
        [torch.stack([table[i, j] for j in range(columns)], dim=-1) for i in range(rows)], dim=1
    )
