"""Bootstrap Your Own Views (Park et al., CVPR 2025), its section 3.

The paper's symbols: Z latents, Y reconstructions. The generators ask twice: what they yield first goes through the
encoder, what they yield then through the decoder.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from byov.train.cycle import cycle_loss
from byov.train.feature_store import CachedVideo
from byov.train.method_settings import ByovSettings
from byov.train.methods.base import Features, Losses, Method
from byov.train.networks import (
    Asking,
    Decoder,
    Seen,
    ToDecode,
    build_encoder,
    draw_visible,
    initialize,
    masked,
    side_by_side,
)
from byov.train.sampling import Batch, Sampler, any_two, ego_with_exo, part

Views = Sequence[Tensor]  # of the ego and of the exo clips


class Byov(Method):
    """Masked self-view and masked cross-view modeling of an ego and an exo clip of the same action."""

    settings: ByovSettings

    def __init__(self, width: int, settings: ByovSettings, training: dict[str, Any] | None = None) -> None:
        super().__init__(width, settings, training)
        self.encoder = build_encoder(width, settings.frames, settings)
        self.decoder = Decoder(
            width=width,
            latent=settings.latent,
            depth=settings.decoder_depth,
            heads=settings.heads,
            frames=settings.frames,
            position=settings.position,
        )
        self.apply(initialize)
        nn.init.normal_(self.decoder.mask_token, std=0.02)

    def sampler(self, videos: Sequence[CachedVideo]) -> Sampler:
        s = self.settings
        if s.pairs == "views":
            why = f"the {s.recipe} recipe pairs ego with exo videos (official: any two)"
            pick = ego_with_exo(videos, why)
        else:
            pick = any_two(videos)
        return Sampler(videos, pick, part(s.frames, s.crop), items=len(videos))

    def forward(self, clips: Batch, random: torch.Generator) -> Losses:
        """L = L_MSM + L_MCM, side by side; and, if they are on, cycles."""
        s = self.settings
        kept_self = [draw_visible(view, s.mask_self, random) for view in clips]
        kept_cross = [draw_visible(view, s.mask_cross, random) for view in clips]
        whole = [self.encoder.see(view) for view in clips]
        parts: dict[str, Asking] = {}
        if s.self_view:
            parts["self"] = self.self_view(clips, kept_self)
        if s.cross_view:
            parts["cross"] = self.cross_view(clips, kept_cross, whole)
        if s.cycle:
            parts["cycle"] = self.cycles(clips, whole)
        losses = side_by_side(self.encoder, self.decoder, parts)
        weights = {"self": 1.0, "cross": 1.0, "cycle": s.cycle}
        weighted = (weights[name] * loss for name, loss in losses.items())
        return {"loss": sum(weighted, start=clips[0].features.new_zeros(()))} | losses

    def self_view(self, clips: Batch, kept: Views) -> Asking:
        """Masked self-view modeling: both views, each from its own visible frames."""
        z = yield [self.encoder.see(*view) for view in zip(clips, kept, strict=True)]
        filled = [self.decoder.mask_filled(*view) for view in zip(clips, z, kept, strict=True)]
        y = yield [ToDecode(tokens, causal=self.settings.causal) for tokens in filled]
        return self.error(clips, kept, y)

    def cross_view(self, clips: Batch, kept: Views, whole: list[Seen]) -> Asking:
        """Masked cross-view modeling: both views, each from its own visible frames and all frames of the other."""
        ego, exo, *z = yield whole + [self.encoder.see(*view) for view in zip(clips, kept, strict=True)]
        filled = [self.decoder.mask_filled(*view) for view in zip(clips, z, kept, strict=True)]
        others = [self.decoder.placed(*view) for view in zip(reversed(clips), (exo, ego), strict=True)]
        y = yield [ToDecode(tokens, beside=other) for tokens, other in zip(filled, others, strict=True)]
        return self.error(clips, kept, y)

    def cycles(self, clips: Batch, whole: list[Seen]) -> Asking:
        """Beyond the paper: from each view to the other, and home."""
        z = yield whole
        yield []
        there, back = zip(z, (view.padding for view in clips), strict=True)
        prior = self.settings.order_prior
        return cycle_loss(*there, *back, prior) + cycle_loss(*back, *there, prior)

    def error(self, clips: Batch, kept: Views, y: Views) -> Tensor:
        """Mean squared error between X and Y over the frames of each view, summed over the views."""
        total = torch.zeros((), device=y[0].device)
        for view, visible, reconstructed in zip(clips, kept, y, strict=True):
            error = (reconstructed.float() - view.features).square().mean(dim=-1)  # (B, T)
            if self.settings.masked_only:
                removed = masked(visible, view.sampled)
                total = total + (error * removed).sum() / removed.sum().clamp(min=1)
            else:
                total = total + error.mean()
        return total

    def embed(self, features: Features) -> Tensor:
        return self.encoder.embed(self.prepare(features))
