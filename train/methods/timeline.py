"""Timeline: frames of different videos are alike if they are at the same normalized time.

Every training video shows the action once, from start to end, so normalized time is a rough label of progress. The
encoder sees a random part of the video, which hides that label.
"""

from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from byov.train.feature_store import CachedVideo
from byov.train.methods.base import BackboneMethod, BackboneMethodSettings, Losses, mean_over_items
from byov.train.networks import at_least_float32
from byov.train.sampling import Batch, Draw, Sampler, draw_clip, pick_several
from byov.train.settings import (
    LARGEST,
    WHOLE_VIDEO,
    Backbone,
    BatchSize,
    Crop,
    Depth,
    Epochs,
    FeatureDropout,
    Fraction,
    Heads,
    LearningRate,
    Optimizer,
    Position,
    PositionIn,
    Positive,
    Schedule,
    Select,
    Standardize,
    Temperature,
    Warmup,
    WeightDecay,
)


class TimelineSettings(BackboneMethodSettings):
    """Ours; all defaults were chosen on the demo's val split (docs/training.md)."""

    summary = "frames at the same normalized time of their videos are alike; each video must show the action once."
    name = "Timeline"

    method: Literal["timeline"] = "timeline"
    clips: int = Field(8, ge=2, le=LARGEST, description="Clips of different videos per item, half of them ego.")
    whole: Fraction = Field(0.3, description="Probability that a clip is the whole video instead of a part.")
    sigma: Positive = Field(0.08, description="Standard deviation of the target in normalized time.")
    temperature: Temperature = 0.1
    feature_dropout: FeatureDropout = 0.3
    backbone: Backbone = "encoder"
    depth: Depth = 6
    heads: Heads = 8
    position: Position = "share"
    position_in: PositionIn = "latent"
    crop: Crop = (0.3, 1.0)
    standardize: Standardize = "video"
    optimizer: Optimizer = "adamw"
    epochs: Epochs = 100
    batch_size: BatchSize = 1
    lr: LearningRate = 6e-4
    weight_decay: WeightDecay = 0.05
    warmup: Warmup = 10.0
    schedule: Schedule = "cosine"
    select: Select = "both"


class Timeline(BackboneMethod):
    """Groups of clips of different videos; another view counts as another video."""

    settings_class = TimelineSettings
    settings: TimelineSettings

    @property
    def unit_norm(self) -> bool:
        return True

    def sampler(self, videos: Sequence[CachedVideo]) -> Sampler:
        s, pick = self.settings, pick_several(videos, self.settings.clips)

        def draw_one(video: CachedVideo, rng: np.random.Generator) -> Draw:
            crop = WHOLE_VIDEO if s.whole and rng.random() < s.whole else s.crop
            return draw_clip(video, s.frames, crop, rng)

        items = -(-len(videos) // s.clips)
        return self.build_sampler(videos, lambda rng: [draw_one(video, rng) for video in pick(rng)], items)

    def forward(self, clips: Batch, generator: torch.Generator) -> Losses:
        s = self.settings
        latents = self.backbone([clip.feature_dropout(s.feature_dropout, generator) for clip in clips], generator)
        z = F.normalize(at_least_float32(torch.stack(latents, dim=1)), dim=-1)  # (B, C, T, D)
        times = torch.stack([clip.normalized_time for clip in clips], dim=1)  # (B, C, T)
        padding = torch.stack([clip.padding for clip in clips], dim=1)
        per_clip, all_clips = timeline_losses(z, times, padding, sigma=s.sigma, temperature=s.temperature)
        return {"loss": per_clip + all_clips, "each": per_clip, "all": all_clips}


def timeline_losses(
    z: Tensor, times: Tensor, padding: Tensor, *, sigma: float, temperature: float
) -> tuple[Tensor, Tensor]:
    """Cross-entropy of finding the frames at the same time, in each other clip and among all other clips.

    For frame i and the frames j of another clip: target q_ij ∝ exp(-(t_i - t_j)² / 2 sigma²), prediction
    p_ij ∝ exp(z_i·z_j / temperature). The mean over all i and other clips of an item, then over the items.

    Shapes: unit vectors z (B, C, T, D) of C clips, normalized times t (B, C, T), padding (B, C, T). Padded frames are
    neither an i nor a j.
    """
    batch, clips, frames = times.shape
    with torch.autocast(z.device.type, enabled=False):
        rows, columns = z.flatten(1, 2), z.flatten(1, 2).mT  # (B, C T, D), (B, D, C T)
        logits = (rows @ columns / temperature).view(batch, clips, frames, clips, frames)
        apart = times[:, :, :, None, None] - times[:, None, None]
        targets = -apart.square() / (2 * sigma**2)  # (B, C, T, C, T)
        hidden = padding[:, None, None].expand_as(logits)
        own = torch.eye(clips, dtype=torch.bool, device=z.device)[:, None, :, None]
        counted = ~(padding[:, :, :, None] | own[..., 0])  # (B, C, T, C)
        per_clip = _cross_entropy(targets, logits, hidden)
        all_clips = _cross_entropy(targets.flatten(3), logits.flatten(3), (hidden | own).flatten(3))
    return mean_over_items(per_clip, counted), mean_over_items(all_clips, ~padding)


def _cross_entropy(targets: Tensor, logits: Tensor, hidden: Tensor) -> Tensor:
    """Cross-entropy over the last dimension of two sets of logits, without what is hidden."""
    target = targets.masked_fill(hidden, -torch.inf).softmax(dim=-1)
    log_probabilities = logits.masked_fill(hidden, -torch.inf).log_softmax(dim=-1)
    return -(target * log_probabilities.masked_fill(hidden, 0)).sum(dim=-1)
