"""CARL (Chen et al., CVPR 2022): frames from two crops of a video are more similar the closer they
are in time.
"""

from collections.abc import Sequence
from functools import partial
from math import ceil, log
from typing import Any, ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from byov.train.config import Backbone, FeatureDropout, Positive, Temperature
from byov.train.feature_store import CachedVideo
from byov.train.methods.base import BackboneMethod, BackboneMethodConfig, Losses
from byov.train.networks import at_least_float32, full_precision, initialize
from byov.train.sampling import Batch, Draw, Sampler, draw_rows, pick_one

SMALL = 1e-6  # weight of padding, and constant added to probabilities, as in the published code


class CarlConfig(BackboneMethodConfig):
    """CARL options. Defaults are from the published code unless noted."""

    summary = "sequence contrastive loss between two crops of a video."
    table_name = "CARL"

    name: Literal["carl"] = "carl"
    variance: Positive = Field(
        10.0, description="Variance of the target distribution, in squared frames."
    )
    temperature: Temperature = 0.1
    # Our choice; image augmentation is impossible with cached features.
    feature_dropout: FeatureDropout = 0.0
    backbone: Backbone = "transformer"

    NO_CROP = "carl draws its own crops"
    TRAINING: ClassVar[dict[str, Any]] = BackboneMethodConfig.TRAINING | {
        "frames": 80,
        "schedule": "cosine",
        "clip_grad": 10.0,
    }
    # Short videos are padded.
    DATASETS: ClassVar[dict[str, dict[str, Any]]] = {"tennis_forehand": {"frames": 80}}


class Carl(BackboneMethod):
    """Sequence contrastive loss between two crops.

    Embeddings are normalized and taken before the projection head. `variance` and `temperature` are
    arguments of `sequence_contrastive_loss`.
    """

    config_class = CarlConfig
    unit_norm = True
    needs_whole_batch = "the BatchNorm layer of its projection head needs the whole batch"

    def __init__(
        self,
        width: int,
        *,
        latent: int,
        variance: float,
        temperature: float,
        feature_dropout: float,
        **options: Any,
    ) -> None:
        super().__init__(width, latent=latent, **options)
        self.loss = partial(sequence_contrastive_loss, variance=variance, temperature=temperature)
        self.feature_dropout = feature_dropout
        self.projection = build_projection(latent)

    def sampler(self, videos: Sequence[CachedVideo]) -> Sampler:
        pick = pick_one(videos)
        return Sampler(
            videos, lambda rng: draw_two_crops(pick(rng), self.frames, rng), self.backbone.context
        )

    def forward(self, clips: Batch, generator: torch.Generator) -> Losses:
        dropped = [clip.feature_dropout(self.feature_dropout, generator) for clip in clips]
        latents = torch.cat(self.backbone(dropped, generator))
        projected = self.projection(latents.flatten(0, 1)).unflatten(0, latents.shape[:2])
        z = torch.stack(F.normalize(at_least_float32(projected), dim=-1).chunk(2))  # (2, B, T, D)
        loss = self.loss(
            z,
            torch.stack([clip.frame for clip in clips]),
            torch.stack([clip.padding for clip in clips]),
        )
        return {"loss": loss}


def build_projection(width: int) -> nn.Module:
    """Build the projection head, which is used only in training."""
    head = nn.Sequential(
        nn.Linear(width, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, width)
    )
    return head.apply(initialize)


def draw_two_crops(video: CachedVideo, frames: int, rng: np.random.Generator) -> list[Draw]:
    """Draw frames from two overlapping parts of a video, each 1 to 1.5 times as long as a clip."""
    length = min(video.frames, frames)
    lengths = [min(video.frames, ceil(length * rng.uniform(1, 1.5))) for _ in range(2)]
    start = int(rng.integers(video.frames - lengths[0] + 1))
    reach = int((1 - 0.2) * length)  # the crops overlap by 20% of a clip, as in the published code
    low = max(0, start - reach)
    high = min(video.frames - lengths[1], start + reach)
    starts = [start, int(rng.integers(min(low, high), high + 1))]
    return [
        Draw(video, first, first + length, draw_rows(length, frames, rng), min(length, frames))
        for first, length in zip(starts, lengths, strict=True)
    ]


@full_precision
def sequence_contrastive_loss(
    z: Tensor, frames: Tensor, padding: Tensor, *, variance: float = 10.0, temperature: float = 0.1
) -> Tensor:
    """Sequence contrastive loss between two crops: the KL divergence of predictions p from targets
    q.

    For frame i of one crop and frames j of the other, q_ij ∝ exp(-(a_i - b_j)² / 2 variance) and
    p_ij ∝ exp(z_i·z_j / temperature). The loss Σ_j q_ij (log q_ij - log(p_ij + 1e-6)) is averaged
    over the frames i of both crops, then over the items.

    Shapes: unit vectors z (2, B, T, D), frame indices a and b within the video (2, B, T), padding
    (2, B, T). Padded frames have no loss and q = 0, but enter the denominator of p with weight
    1e-6, as in the published code.
    """
    other_padding = padding.flip(0)[:, :, None]

    logits = z @ z.flip(0).mT / temperature  # (2, B, T, T)
    own = (z @ z.mT / temperature + log(SMALL)).masked_fill(~padding[:, :, None], -torch.inf)
    # (2, B, T, 2 T).
    weighted = torch.cat([logits + log(SMALL) * other_padding.to(z.dtype), own], dim=-1)
    p = (logits - weighted.logsumexp(dim=-1, keepdim=True)).exp()

    apart = (frames[..., None] - frames.flip(0)[:, :, None]).to(z.dtype)
    target_logits = (-apart.square() / (2 * variance)).masked_fill(
        other_padding, torch.finfo(z.dtype).min
    )
    q = target_logits.softmax(dim=-1).masked_fill(other_padding, 0)
    costs = (torch.xlogy(q, q) - q * (p + SMALL).log()).sum(dim=-1)
    return ((costs * ~padding).sum(dim=(0, 2)) / (~padding).sum(dim=(0, 2)).clamp(min=1)).mean()
