"""Timeline: pull together frames of different videos that show the same progress of the action.

Progress labels come from aligning the training videos of each view (train/progress.py), without
annotations. Training clips are random parts of videos, so that progress cannot be inferred from the
position in the clip. A second term, CARL's loss, compares two parts of the same video.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar, Literal, Self

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field, model_validator
from torch import Tensor

from byov.train.config import (
    LARGEST,
    WHOLE_VIDEO,
    Backbone,
    Depth,
    FeatureDropout,
    Fraction,
    Heads,
    NonNegative,
    Position,
    PositionIn,
    Positive,
    Temperature,
)
from byov.train.feature_store import CachedVideo
from byov.train.methods.base import (
    BackboneMethod,
    BackboneMethodConfig,
    Losses,
    ReadFeatures,
    mean_over_items,
)
from byov.train.methods.carl import build_projection, sequence_contrastive_loss
from byov.train.networks import at_least_float32, full_precision
from byov.train.progress import aligned_progress
from byov.train.sampling import Batch, Draw, Sampler, draw_clip, pick_several

ProgressLabels = Literal["aligned", "linear"]


class TimelineConfig(BackboneMethodConfig):
    """Timeline options. Defaults were chosen on val splits (docs/methods.md)."""

    summary = (
        "similar embeddings for frames at the same progress of the action; each video must "
        "show the action once."
    )
    table_name = "Timeline"
    VARIANTS: ClassVar[dict[str, dict[Any, str]]] = {"online": {True: "online"}}

    name: Literal["timeline"] = "timeline"
    progress_labels: ProgressLabels = Field(
        "aligned",
        description="Progress labels of the training frames: from aligning the videos with each "
        "other (aligned), or normalized time (linear).",
    )
    label_weight: NonNegative = Field(
        0.3, description="Weight of the losses based on progress labels."
    )
    intra_weight: NonNegative = Field(
        1.0, description="Weight of the contrastive loss within a video."
    )
    clips: int = Field(
        8,
        ge=4,
        le=LARGEST,
        description="Clips per item: two from each video; half of the videos are ego.",
    )
    whole: Fraction = Field(
        0.3, description="Probability that a clip is the whole video instead of a part."
    )
    online: bool = Field(
        False, description="Embed each frame using only the frames up to it, for live video."
    )
    sigma: Positive = Field(
        0.05, description="Standard deviation of the target distribution over progress."
    )
    variance: Positive = Field(
        10.0, description="Variance of the target distribution, in squared frames."
    )
    temperature: Temperature = 0.1
    feature_dropout: FeatureDropout = 0.3
    backbone: Backbone = "transformer"
    depth: Depth = 6
    heads: Heads = 8
    position: Position = "normalized"
    position_in: PositionIn = "latent"

    TRAINING: ClassVar[dict[str, Any]] = {
        "frames": 64,
        "crop": (0.3, 1.0),
        "standardize": "video",
        "optimizer": "adamw",
        "epochs": 40,
        "lr": 1e-3,
        "weight_decay": 0.05,
        "warmup": 5.0,
        "schedule": "cosine",
        "select": "last",
    }

    @model_validator(mode="after")
    def _two_parts_per_video(self) -> Self:
        if self.clips % 2:
            raise ValueError(
                f"clips is {self.clips}; it must be even, because each video has two clips"
            )
        if self.online and self.backbone != "transformer":
            raise ValueError(
                f"--online needs the transformer backbone; the backbone is {self.backbone}"
            )
        return self


class Timeline(BackboneMethod):
    """Contrastive losses between clips of different videos, regardless of view, and between two
    clips of each video.

    Args:
        width: Width of the input features.
        latent: Width of the embeddings.
        progress_labels: "aligned" or "linear"; see `start_training`.
        label_weight: Weight of the losses based on progress labels.
        intra_weight: Weight of the contrastive loss within a video.
        clips: Clips per item, two from each video.
        whole: Probability that a clip is the whole video.
        online: Whether each frame is embedded using only the frames up to it.
        sigma, variance, temperature: See `timeline_losses` and `sequence_contrastive_loss`.
        feature_dropout: Dropout rate of the input features.
        **options: Arguments of `BackboneMethod`.
    """

    config_class = TimelineConfig
    unit_norm = True
    needs_whole_batch = "its BatchNorm layers need the whole batch"

    def __init__(
        self,
        width: int,
        *,
        latent: int,
        progress_labels: ProgressLabels,
        label_weight: float,
        intra_weight: float,
        clips: int,
        whole: float,
        online: bool,
        sigma: float,
        variance: float,
        temperature: float,
        feature_dropout: float,
        **options: Any,
    ) -> None:
        super().__init__(width, latent=latent, causal=online, **options)
        self.aligns = progress_labels == "aligned"
        self.label_weight = label_weight
        self.intra_weight = intra_weight
        self.clips = clips
        self.whole = whole
        self.standardizes_online = online and self.standardization == "video"
        self.label_losses = partial(timeline_losses, sigma=sigma, temperature=temperature)
        self.intra_loss = partial(
            sequence_contrastive_loss, variance=variance, temperature=temperature
        )
        self.feature_dropout = feature_dropout
        self.projection = build_projection(latent)
        self.progress: Tensor
        # (num_videos, max_frames).
        self.register_buffer("progress", torch.empty(0, 0), persistent=False)

    def standardize(self, features: Tensor) -> Tensor:
        if self.standardizes_online:
            return running_standardize(features)
        return super().standardize(features)

    def training_state(self) -> dict[str, Tensor]:
        return {"progress": self.progress}

    def start_training(
        self, videos: Sequence[CachedVideo], read: ReadFeatures, seed: int = 0
    ) -> None:
        """Compute the progress labels of the training videos: by aligning them ("aligned"), or
        normalized time ("linear").
        """
        super().start_training(videos, read, seed)
        if self.aligns:
            labels = aligned_progress(videos, [video.view for video in videos], read, seed)
        else:
            labels = [torch.linspace(0, 1, video.frames) for video in videos]
        padded = torch.nn.utils.rnn.pad_sequence(labels, batch_first=True)
        self.progress = padded.to(self.progress.device)

    def sampler(self, videos: Sequence[CachedVideo]) -> Sampler:
        pick = pick_several(videos, self.clips // 2)

        def draw_item(rng: np.random.Generator) -> list[Draw]:
            return [
                draw_clip(
                    video, self.frames, WHOLE_VIDEO if rng.random() < self.whole else self.crop, rng
                )
                for video in 2 * pick(rng)
            ]

        return Sampler(videos, draw_item, self.backbone.context, videos_per_item=self.clips // 2)

    def forward(self, clips: Batch, generator: torch.Generator) -> Losses:
        dropped = [clip.feature_dropout(self.feature_dropout, generator) for clip in clips]
        # (B, C, T, D).
        latents = at_least_float32(torch.stack(self.backbone(dropped, generator), dim=1))
        frames = torch.stack([clip.frame for clip in clips], dim=1)  # (B, C, T)
        padding = torch.stack([clip.padding for clip in clips], dim=1)
        progress = torch.stack(
            [self.progress[clip.video[:, None], clip.frame] for clip in clips], dim=1
        )
        z = F.normalize(latents, dim=-1)
        each, every = self.label_losses(z, progress, padding)
        projected = F.normalize(self.projection(latents.flatten(0, 2)).view(latents.shape), dim=-1)
        # Clips c and c + C/2 come from the same video.
        parts = (torch.stack(x.chunk(2, dim=1)).flatten(1, 2) for x in (projected, frames, padding))
        intra = self.intra_loss(*parts)
        loss = self.label_weight * (each + every) + self.intra_weight * intra
        return {"loss": loss, "each": each, "all": every, "intra": intra}


def running_standardize(features: Tensor) -> Tensor:
    """Standardize each frame of (T, width) features by the mean and standard deviation of the
    frames up to it.
    """
    x = features - features[0]  # reduces rounding errors
    count = torch.arange(1, x.shape[0] + 1, device=x.device)[:, None]
    mean = x.cumsum(dim=0) / count
    variance = (x.square().cumsum(dim=0) / count - mean.square()).clamp(min=0)
    return (x - mean) / (variance.sqrt() + 0.01)  # avoids division by zero in the first frames


@full_precision
def timeline_losses(
    z: Tensor, progress: Tensor, padding: Tensor, *, sigma: float, temperature: float
) -> tuple[Tensor, Tensor]:
    """Cross-entropy of matching frames at the same progress, within each clip and across all clips
    of other videos.

    For frame i and frames j in clips of other videos, the target is q_ij ∝ exp(-(s_i - s_j)² / 2
    sigma²) and the prediction p_ij ∝ exp(z_i·z_j / temperature). Both losses are averaged over the
    frames of an item, then over items.

    Shapes: unit vectors z (B, C, T, D), progress s (B, C, T), padding (B, C, T). Clips c and c +
    C/2 come from the same video. Padded frames are ignored.
    """
    batch, clips, frames = progress.shape
    rows = z.flatten(1, 2)
    columns = z.flatten(1, 2).mT  # (B, C T, D), (B, D, C T)
    logits = (rows @ columns / temperature).view(batch, clips, frames, clips, frames)
    apart = progress[:, :, :, None, None] - progress[:, None, None]
    target_logits = -apart.square() / (2 * sigma**2)  # (B, C, T, C, T)
    hidden = padding[:, None, None].expand_as(logits)
    video = torch.arange(clips, device=z.device) % (clips // 2)
    same = (video[:, None] == video)[:, None, :, None]  # (C, 1, C, 1)
    counted = ~(padding[:, :, :, None] | same[..., 0])  # (B, C, T, C)
    each = soft_cross_entropy(logits, target_logits, hidden)
    every = soft_cross_entropy(
        logits.flatten(3), target_logits.flatten(3), (hidden | same).flatten(3)
    )
    return mean_over_items(each, counted), mean_over_items(every, ~padding)


def soft_cross_entropy(logits: Tensor, target_logits: Tensor, hidden: Tensor) -> Tensor:
    """Cross-entropy of the prediction softmax(logits) relative to the target
    softmax(target_logits).

    Shapes: logits, target logits and hidden (..., n), result (...). Hidden entries have probability
    0 in both.
    """
    target = target_logits.masked_fill(hidden, -torch.inf).softmax(dim=-1)
    log_probabilities = logits.masked_fill(hidden, -torch.inf).log_softmax(dim=-1)
    return -(target * log_probabilities.masked_fill(hidden, 0)).sum(dim=-1)
