"""The timeline: frames of different videos are alike if they stand at the same share of their videos.

Every training video shows the action once, from its start to its end. So a frame's share of its whole video is a
rough label of how far the action is, and a random part of the video, which is all that the encoder sees, hides it.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from byov.train.autoencoder import build_encoder, initialise
from byov.train.clips import Batch, Clips
from byov.train.feature_store import CachedVideo
from byov.train.method_settings import TimelineSettings
from byov.train.methods.method import Losses, Method
from byov.train.sampling import Sampler, part, several


class Timeline(Method):
    """Groups of clips of different videos; views are not told apart: another view is another video."""

    settings: TimelineSettings

    def __init__(self, width: int, settings: TimelineSettings, training: dict[str, Any] | None = None) -> None:
        super().__init__(width, settings, training)
        self.encoder = build_encoder(width, settings.frames, settings)
        self.apply(initialise)

    def sampler(self, videos: Sequence[CachedVideo]) -> Sampler:
        s = self.settings
        pick = several(videos, s.clips)
        return Sampler(videos, pick, part(s.frames, s.crop, s.whole), items=-(-len(videos) // s.clips))

    def forward(self, clips: Batch, random: torch.Generator) -> Losses:
        """Each frame finds the frames of its place: in each other clip of its group, and among all of them."""
        s = self.settings
        latents = self.encoder([self.encoder.see(self._thinned(clip, random)) for clip in clips])
        z = F.normalize(torch.stack(latents, dim=1).float(), dim=-1)  # (B, clips, T, D)
        places = torch.stack([clip.share_of_video for clip in clips], dim=1)  # (B, clips, T)
        padding = torch.stack([clip.repeated for clip in clips], dim=1)
        in_each, among_all = place_losses(z, places, padding, sigma=s.sigma, temperature=s.temperature)
        return {"loss": in_each + among_all, "each": in_each, "all": among_all}

    def embed(self, features: Tensor) -> Tensor:
        return F.normalize(self.encoder.embed(self.prepare(features)), dim=-1)

    def _thinned(self, clip: Clips, random: torch.Generator) -> Clips:
        """The clip with some values of its features dropped."""
        share = self.settings.feature_dropout
        kept = clip.rand(*clip.features.shape[1:], random=random) >= share
        return replace(clip, features=clip.features * kept / (1 - share))


def place_losses(
    z: Tensor, places: Tensor, padding: Tensor, *, sigma: float, temperature: float
) -> tuple[Tensor, Tensor]:
    """(B, C, T, D) unit vectors of the frames of C clips, (B, C, T) their places from 0 to 1 → two cross-entropies.

    For frame i and the frames j of another clip: target q_ij ∝ exp(-(s_i - s_j)² / 2 sigma²) against p_ij ∝
    exp(z_i·z_j / temperature); the mean over all i and other clips of an item, then over the items. Then the same with
    all frames of all other clips as the j. Padding, True: neither an i nor a j.
    """
    batch, clips, frames = places.shape
    with torch.autocast(z.device.type, enabled=False):
        rows, columns = z.flatten(1, 2), z.flatten(1, 2).mT  # (B, C T, D), (B, D, C T)
        found = (rows @ columns / temperature).view(batch, clips, frames, clips, frames)
        apart = places[:, :, :, None, None] - places[:, None, None]
        wanted = -apart.square() / (2 * sigma**2)  # (B, C, T, C, T)
        hidden = padding[:, None, None].expand_as(found)
        own = torch.eye(clips, dtype=torch.bool, device=z.device)[:, None, :, None]
        counted = ~(padding[:, :, :, None] | own[..., 0])  # (B, C, T, C)
        in_each = _cross_entropy(wanted, found, hidden)
        among_all = _cross_entropy(wanted.flatten(3), found.flatten(3), (hidden | own).flatten(3))
    return _mean(in_each, counted), _mean(among_all, ~padding)


def _cross_entropy(wanted: Tensor, found: Tensor, hidden: Tensor) -> Tensor:
    """(..., T) logits of the target and of the prediction → (...), over what is not hidden."""
    target = wanted.masked_fill(hidden, -torch.inf).softmax(dim=-1)
    logarithm = found.masked_fill(hidden, -torch.inf).log_softmax(dim=-1)
    return -(target * logarithm.masked_fill(hidden, 0)).sum(dim=-1)


def _mean(values: Tensor, counted: Tensor) -> Tensor:
    """(B, ...) → the mean over what counts of each item, then over the items, however much of one is padding."""
    return ((values * counted).flatten(1).sum(dim=1) / counted.flatten(1).sum(dim=1)).mean()
