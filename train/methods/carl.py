"""Contrastive action representations: frames of two crops of a video are as alike as they are near in time.

After Chen et al., "Frame-wise Action Representations for Long Videos via Sequence Contrastive Learning" (CVPR 2022).
"""

from collections.abc import Sequence
from math import ceil, log
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from byov.train.baseline_settings import CarlSettings
from byov.train.feature_store import CachedVideo
from byov.train.methods.base import BackboneMethod, Losses
from byov.train.networks import initialize
from byov.train.padded_frames import wide
from byov.train.sampling import Batch, Cut, Draw, Sampler, draw_rows, one

SMALL = 1e-6  # the weight of padding, and what keeps the logarithm of a probability finite: published code


class Carl(BackboneMethod):
    """Frames of two crops of a video; what is judged are the unit vectors before the projection."""

    settings: CarlSettings

    def __init__(self, width: int, settings: CarlSettings, training: dict[str, Any] | None = None) -> None:
        super().__init__(width, settings, training)
        latent = settings.latent
        self.projection = nn.Sequential(
            nn.Linear(latent, latent), nn.BatchNorm1d(latent), nn.ReLU(), nn.Linear(latent, latent)
        )
        self.projection.apply(initialize)

    @property
    def unit(self) -> bool:
        return True

    @property
    def needs_whole_steps(self) -> str:
        return "the BatchNorm of its projection sees all clips of a step together"

    def sampler(self, videos: Sequence[CachedVideo]) -> Sampler:
        return self.sampled(videos, one(videos), two_crops(self.settings.frames, self.settings.overlap))

    def forward(self, clips: Batch, random: torch.Generator) -> Losses:
        s = self.settings
        latents = torch.cat(self.backbone([clip.thinned(s.feature_dropout, random) for clip in clips], random))
        projected = self.projection(latents.flatten(0, 1)).unflatten(0, latents.shape[:2])
        first, second = F.normalize(wide(projected), dim=-1).chunk(2)
        loss = sequence_contrast(
            first,
            second,
            *(clip.frame for clip in clips),
            *(clip.repeated for clip in clips),
            variance=s.variance,
            temperature=s.temperature,
        )
        return {"loss": loss}


def two_crops(frames: int, overlap: float) -> Cut:
    """Twice so many frames of a part of one video, from as long as that to half as long again."""

    def cut(videos: Sequence[CachedVideo], random: np.random.Generator) -> list[Draw]:
        (video,) = videos
        usual = min(video.frames, frames)
        lengths = [min(video.frames, ceil(usual * random.uniform(1, 1.5))) for _ in range(2)]
        start = int(random.integers(video.frames - lengths[0] + 1))
        reach = int((1 - overlap) * usual)
        low, high = max(0, start - reach), min(video.frames - lengths[1], start + reach)
        starts = [start, int(random.integers(min(low, high), high + 1))]
        return [
            Draw(video, first, first + length, draw_rows(length, frames, random), min(length, frames))
            for first, length in zip(starts, lengths, strict=True)
        ]

    return cut


def sequence_contrast(
    first: Tensor,
    second: Tensor,
    frames_first: Tensor,
    frames_second: Tensor,
    padding_first: Tensor,
    padding_second: Tensor,
    *,
    variance: float = 10.0,
    temperature: float = 0.1,
    all_negatives: bool = False,
) -> Tensor:
    """(B, T, D) unit vectors of two crops of each video, (B, T) the frames' numbers → how far p is from q.

    For frame i of one crop and the frames j of the other: q_ij ∝ exp(-(a_i - b_j)² / 2 variance) and
    p_ij ∝ exp(z_i·z_j / temperature); sum_j q_ij (log q_ij - log(p_ij + 1e-6)). The mean over the frames i of both
    crops, then over the items. all_negatives: the p_ij of frame i add up to 1 over the frames of the whole batch, its
    own crop and itself too, and not over those of the other crop.

    Padding, (B, T), True: neither an i nor a target, but an exp(z_i·z_j / temperature) of both crops (all_negatives: of
    the whole batch) that counts 1e-6 in the sum that p is divided by.
    """
    with torch.autocast(first.device.type, enabled=False):
        z = wide(torch.stack([first, second]))  # (2, B, T, D)
        frames = torch.stack([frames_first, frames_second])
        padding = torch.stack([padding_first, padding_second])  # (2, B, T)
        columns, hidden = z.flip(0), padding.flip(0)[:, :, None]  # of the other crop

        scores = z @ columns.mT / temperature  # (2, B, T, T)
        light = log(SMALL) * padding.to(z.dtype)
        if all_negatives:
            summed = z @ z.flatten(0, 2).T / temperature + light.flatten()  # (2, B, T, 2 B T)
        else:
            own = (z @ z.mT / temperature + log(SMALL)).masked_fill(~padding[:, :, None], -torch.inf)
            summed = torch.cat([scores + light.flip(0)[:, :, None], own], dim=-1)  # (2, B, T, 2 T)
        found = (scores - summed.logsumexp(dim=-1, keepdim=True)).exp()  # p

        apart = (frames[..., None] - frames.flip(0)[:, :, None]).to(z.dtype)
        wanted = (-apart.square() / (2 * variance)).masked_fill(hidden, torch.finfo(z.dtype).min)
        target = wanted.softmax(dim=-1).masked_fill(hidden, 0)  # q
        costs = (torch.xlogy(target, target) - target * (found + SMALL).log()).sum(dim=-1)
        counted = ~padding
        return ((costs * counted).sum(dim=(0, 2)) / counted.sum(dim=(0, 2)).clamp(min=1)).mean()
