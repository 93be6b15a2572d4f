"""Bootstrap Your Own Views (Park et al., CVPR 2025), section 3.4 and what follows; beyond the paper, cycles.

The symbols are the paper's: X frame features, Z latents, Y reconstructions; g the encoder, h the decoder.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from byov.train.autoencoder import Decoder, ToDecode, build_encoder, initialise
from byov.train.clips import Batch
from byov.train.cycle import cycle_loss
from byov.train.feature_store import CachedVideo
from byov.train.masking import draw_visible, masked
from byov.train.method_settings import ByovSettings
from byov.train.methods.method import Losses, Method
from byov.train.sampling import Sampler, any_two, ego_with_exo, part

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
        self.apply(initialise)
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
        """L = L_MSM + L_MCM. Each network runs once, over all that the two ask of it."""
        s = self.settings
        kept_self = [draw_visible(view, s.mask_self, random) for view in clips]
        kept_cross = [draw_visible(view, s.mask_cross, random) for view in clips]
        z, z_self, z_cross = self.encoder(
            [self.encoder.see(view) for view in clips if s.cross_view or s.cycle],
            [self.encoder.see(*visible) for visible in zip(clips, kept_self, strict=True) if s.self_view],
            [self.encoder.see(*visible) for visible in zip(clips, kept_cross, strict=True) if s.cross_view],
        )
        y_self, y_cross = self.decoder(
            self.self_view(clips, kept_self, z_self) if s.self_view else [],
            self.cross_view(clips, kept_cross, z_cross, z) if s.cross_view else [],
        )
        losses: Losses = {}
        if s.self_view:
            losses["self"] = self.error(clips, kept_self, y_self)
        if s.cross_view:
            losses["cross"] = self.error(clips, kept_cross, y_cross)
        total = sum(losses.values(), torch.zeros((), device=clips[0].features.device))
        if s.cycle:
            losses["cycle"] = self.cycle(clips, z)
            total = total + s.cycle * losses["cycle"]
        return {"loss": total} | losses

    def self_view(self, clips: Batch, kept: Views, z: Views) -> list[ToDecode]:
        """MSM: to each view its own visible frames, mask-filled; the decoder is causal."""
        ego, exo = (self.decoder.mask_filled(*view) for view in zip(clips, kept, z, strict=True))
        return [ToDecode(tokens, own=tokens.shape[1], causal=self.settings.causal) for tokens in (ego, exo)]

    def cross_view(self, clips: Batch, kept: Views, z: Views, z_whole: Views) -> list[ToDecode]:
        """MCM: to each view its own visible frames, mask-filled, and behind them all frames of the other view."""
        ego, exo = (self.decoder.mask_filled(*view) for view in zip(clips, kept, z, strict=True))
        whole_ego, whole_exo = (self.decoder.whole(*view) for view in zip(clips, z_whole, strict=True))
        return [
            ToDecode(torch.cat([own, other], dim=1), own=own.shape[1])
            for own, other in ((ego, whole_exo), (exo, whole_ego))
        ]

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

    def cycle(self, clips: Batch, z: Views) -> Tensor:
        """From each view to the other and home."""
        there, back = zip(z, (view.padding for view in clips), strict=True)
        prior = self.settings.order_prior
        return cycle_loss(*there, *back, prior) + cycle_loss(*back, *there, prior)

    def embed(self, features: Tensor) -> Tensor:
        return self.encoder.embed(self.prepare(features))
