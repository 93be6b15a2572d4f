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

from byov.train import settings as shared
from byov.train.feature_store import CachedVideo
from byov.train.methods.base import BackboneMethod, BackboneMethodSettings, Losses, mean_over_items
from byov.train.networks import at_least_float32, full_precision
from byov.train.sampling import Batch, Draw, Sampler, draw_clip, pick_several


class TimelineSettings(BackboneMethodSettings):
    """Ours; all defaults were chosen on the demo's val split (docs/methods.md)."""

    summary = "frames at the same normalized time of their videos are alike; each video must show the action once."
    name = "Timeline"

    method: Literal["timeline"] = "timeline"
    clips: int = Field(8, ge=2, le=shared.LARGEST, description="Clips of different videos per item, half of them ego.")
    whole: shared.Fraction = Field(0.3, description="Probability that a clip is the whole video instead of a part.")
    sigma: shared.Positive = Field(0.08, description="Standard deviation of the target in normalized time.")
    temperature: shared.Temperature = 0.1
    feature_dropout: shared.FeatureDropout = 0.3
    backbone: shared.Backbone = "encoder"
    depth: shared.Depth = 6
    heads: shared.Heads = 8
    position: shared.Position = "share"
    position_in: shared.PositionIn = "latent"
    crop: shared.Crop = (0.3, 1.0)
    standardize: shared.Standardize = "video"
    optimizer: shared.Optimizer = "adamw"
    epochs: shared.Epochs = 100
    batch_size: shared.BatchSize = 1
    lr: shared.LearningRate = 6e-4
    weight_decay: shared.WeightDecay = 0.05
    warmup: shared.Warmup = 10.0
    schedule: shared.Schedule = "cosine"
    select: shared.Select = "both"


class Timeline(BackboneMethod):
    """Contrast between clips of different videos, regardless of their views."""

    settings_class = TimelineSettings
    settings: TimelineSettings
    unit_norm = True

    def sampler(self, videos: Sequence[CachedVideo]) -> Sampler:
        s, pick = self.settings, pick_several(videos, self.settings.clips)

        def draw_item(rng: np.random.Generator) -> list[Draw]:
            draws = []
            for video in pick(rng):
                crop = shared.WHOLE_VIDEO if s.whole and rng.random() < s.whole else s.crop
                draws.append(draw_clip(video, s.frames, crop, rng))
            return draws

        return Sampler(videos, draw_item, self.backbone.context, videos_per_item=s.clips)

    def forward(self, clips: Batch, generator: torch.Generator) -> Losses:
        s = self.settings
        latents = self.backbone([clip.feature_dropout(s.feature_dropout, generator) for clip in clips], generator)
        z = F.normalize(at_least_float32(torch.stack(latents, dim=1)), dim=-1)  # (B, C, T, D)
        times = torch.stack([clip.normalized_time for clip in clips], dim=1)  # (B, C, T)
        padding = torch.stack([clip.padding for clip in clips], dim=1)
        per_clip, all_clips = timeline_losses(z, times, padding, sigma=s.sigma, temperature=s.temperature)
        return {"loss": per_clip + all_clips, "each": per_clip, "all": all_clips}


@full_precision
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
    rows, columns = z.flatten(1, 2), z.flatten(1, 2).mT  # (B, C T, D), (B, D, C T)
    logits = (rows @ columns / temperature).view(batch, clips, frames, clips, frames)
    apart = times[:, :, :, None, None] - times[:, None, None]
    target_logits = -apart.square() / (2 * sigma**2)  # (B, C, T, C, T)
    hidden = padding[:, None, None].expand_as(logits)
    own = torch.eye(clips, dtype=torch.bool, device=z.device)[:, None, :, None]
    counted = ~(padding[:, :, :, None] | own[..., 0])  # (B, C, T, C)
    per_clip = soft_cross_entropy(logits, target_logits, hidden)
    all_clips = soft_cross_entropy(logits.flatten(3), target_logits.flatten(3), (hidden | own).flatten(3))
    return mean_over_items(per_clip, counted), mean_over_items(all_clips, ~padding)


def soft_cross_entropy(logits: Tensor, target_logits: Tensor, hidden: Tensor) -> Tensor:
    """Cross-entropy of softmax(logits) with the target softmax(target_logits).

    Shapes: logits, target logits and hidden (..., n), result (...). Hidden entries have probability 0 in both.
    """
    target = target_logits.masked_fill(hidden, -torch.inf).softmax(dim=-1)
    log_probabilities = logits.masked_fill(hidden, -torch.inf).log_softmax(dim=-1)
    return -(target * log_probabilities.masked_fill(hidden, 0)).sum(dim=-1)
