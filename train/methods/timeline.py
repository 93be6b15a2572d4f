"""The timeline: frames of different videos are alike if they stand at the same share of their videos.

Every training video shows the action once, from its start to its end. So a frame's share of its whole video is a
rough label of how far the action is, and a random part of the video, which is all that the encoder sees, hides it.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from byov.train.feature_store import CachedVideo
from byov.train.method_settings import TimelineSettings
from byov.train.methods.base import BackboneMethod, Losses
from byov.train.padded_frames import mean_of_items, wide
from byov.train.sampling import Batch, Sampler, part, several


class Timeline(BackboneMethod):
    """Groups of clips of different videos; views are not told apart: another view is another video."""

    settings: TimelineSettings

    @property
    def unit(self) -> bool:
        return True

    def sampler(self, videos: Sequence[CachedVideo]) -> Sampler:
        s = self.settings
        pick = several(videos, s.clips)
        return self.sampled(videos, pick, part(s.frames, s.crop, s.whole), items=-(-len(videos) // s.clips))

    def forward(self, clips: Batch, random: torch.Generator) -> Losses:
        """Each frame finds the frames of its place: in each other clip of its group, and among all of them."""
        s = self.settings
        latents = self.backbone([clip.thinned(s.feature_dropout, random) for clip in clips], random)
        z = F.normalize(wide(torch.stack(latents, dim=1)), dim=-1)  # (B, clips, T, D)
        places = torch.stack([clip.share_of_video for clip in clips], dim=1)  # (B, clips, T)
        padding = torch.stack([clip.repeated for clip in clips], dim=1)
        in_each, among_all = place_losses(z, places, padding, sigma=s.sigma, temperature=s.temperature)
        return {"loss": in_each + among_all, "each": in_each, "all": among_all}


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
    return mean_of_items(in_each, counted), mean_of_items(among_all, ~padding)


def _cross_entropy(wanted: Tensor, found: Tensor, hidden: Tensor) -> Tensor:
    """(..., T) logits of the target and of the prediction → (...), over what is not hidden."""
    target = wanted.masked_fill(hidden, -torch.inf).softmax(dim=-1)
    logarithm = found.masked_fill(hidden, -torch.inf).log_softmax(dim=-1)
    return -(target * logarithm.masked_fill(hidden, 0)).sum(dim=-1)
