"""Time-contrastive networks (Sermanet et al., ICRA 2018): embed frames of the same moment close
together.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from byov.train import sampling
from byov.train.config import LARGEST, WHOLE_VIDEO, NonNegative, SamplingConfig
from byov.train.feature_store import CachedVideo
from byov.train.methods.base import (
    BackboneMethod,
    BackboneMethodConfig,
    Losses,
    hide_padding,
    mean_over_items,
)
from byov.train.networks import at_least_float32, full_precision
from byov.train.sampling import Batch, Draw, Sampler, draw_part, draw_rows

# single-view triplets: maximum distance of positives in frames, from the TCN authors' code.
POSITIVE_RADIUS = 6
# single-view triplets: negatives are farther apart than this, as in the TCN authors' code.
NEGATIVE_RADIUS = 12


View = Literal["single", "multi", "unpaired"]
TcnLoss = Literal["npairs", "triplet"]


class TcnConfig(BackboneMethodConfig):
    summary = "time-contrastive networks; --tcn multi needs synchronized video pairs."
    table_name = "TCN"

    name: Literal["tcn"] = "tcn"
    tcn: View = Field(
        "single",
        description="Positive for a frame: a slightly earlier frame, the same instant in the other "
        "view, or the same normalized time in any video of the other view.",
    )
    # n-pairs is used in the TCC authors' code and in the TCN authors' published settings
    tcn_loss: TcnLoss = Field("npairs", description="N-pairs or semi-hard triplet loss.")
    # default margin from the TCN authors' code
    margin: NonNegative = Field(
        0.2, description="Margin of the hinge loss (ae2-alignment) or triplet loss (tcn)."
    )

    VARIANTS: ClassVar[dict[str, dict[Any, str]]] = {
        "tcn": {"single": "single-view", "multi": "multi-view", "unpaired": "unpaired multi-view"},
        "tcn_loss": {"triplet": "triplets"},
    }

    @property
    def label(self) -> str:
        return f"tcn-{self.tcn}"

    @classmethod
    def defaults(cls, dataset: str, given: Mapping[str, Any]) -> dict[str, Any]:
        usual = super().defaults(dataset, given)
        if given.get("tcn", "single") == "single" and given.get("tcn_loss") == "triplet":
            usual["frames"] = 36  # default in the TCN authors' code
        return usual

    def check_sampling(self, sampling: SamplingConfig) -> None:
        if self.tcn != "single" and sampling.crop != WHOLE_VIDEO:
            raise ValueError(f"--tcn {self.tcn} compares whole videos; omit --crop")
        apart = NEGATIVE_RADIUS + 1
        if (self.tcn, self.tcn_loss) == ("single", "triplet") and sampling.frames <= apart:
            raise ValueError(
                f"single-view triplets need two frames {apart} apart; use --frames {apart + 1} or "
                "more"
            )


class Tcn(BackboneMethod):
    """N-pairs or triplet loss on frames of one video, or of an ego and an exo video.

    `tcn` is "single" (view), "multi" (synchronized views) or "unpaired" (views); `tcn_loss` is
    "npairs" or "triplet", with a margin.
    """

    config_class = TcnConfig

    def __init__(
        self, width: int, *, tcn: View, tcn_loss: TcnLoss, margin: float, **options: Any
    ) -> None:
        super().__init__(width, **options)
        self.view = tcn
        self.uses_triplets = tcn_loss == "triplet"
        self.margin = margin
        self.unit_norm = self.uses_triplets

    def sampler(self, videos: Sequence[CachedVideo]) -> Sampler:
        if self.view == "single":
            pick_video = sampling.pick_one(videos)
            draw = draw_consecutive if self.uses_triplets else draw_earlier
            return Sampler(
                videos,
                lambda rng: draw(pick_video(rng), self.frames, self.crop, rng),
                self.backbone.context,
            )
        if self.view == "multi":
            pick = sampling.pick_synchronized(
                videos, "--tcn multi needs them (--tcn unpaired does not)"
            )
        else:
            pick = sampling.pick_views(
                videos, "--tcn unpaired needs both views (--tcn single does not)"
            )
        # As in the TCN authors' code, all frames come from a part of at most 580 frames.
        span = 580 if self.view == "multi" else LARGEST
        return Sampler(
            videos,
            lambda rng: draw_same_times(*pick(rng), self.frames, span, rng),
            self.backbone.context,
        )

    def forward(self, clips: Batch, generator: torch.Generator) -> Losses:
        z = self.backbone(clips, generator)
        if not self.uses_triplets:
            (anchors, positives) = z
            labels = None
            if self.view != "single":  # the view of each anchor is random
                labels = clips[1].index
                swap = (clips[0].rand(clips[0].sampled, generator=generator) < 0.5)[..., None]
                anchors, positives = (
                    torch.where(swap, positives, anchors),
                    torch.where(swap, anchors, positives),
                )
            return {"loss": npairs(anchors, positives, clips[0].padding, labels=labels)}
        if self.view == "single":
            times = clips[0].frame
            radii = (POSITIVE_RADIUS, NEGATIVE_RADIUS)
        else:  # ego frames that map to the same frame of a short exo video count as one moment
            times = clips[1].index.repeat(1, 2)
            radii = (0, 0)
        padding = torch.cat([clip.padding for clip in clips], dim=1)
        unit = F.normalize(at_least_float32(torch.cat(z, dim=1)), dim=-1)
        pairs = positive_and_negative(times, *radii)
        return {"loss": semi_hard_triplets(unit, *pairs, padding, margin=self.margin)}


def draw_earlier(
    video: CachedVideo, frames: int, crop: tuple[float, float], rng: np.random.Generator
) -> list[Draw]:
    """Draw anchors and, for each of them, a positive up to 5 frames earlier in the clip, as in the
    TCC authors' code.
    """
    anchors = sampling.draw_clip(video, frames, crop, rng)
    earlier = anchors.rows - rng.integers(1, 6, len(anchors.rows))
    return [anchors, replace(anchors, rows=np.maximum(earlier, 0))]


def draw_consecutive(
    video: CachedVideo, frames: int, crop: tuple[float, float], rng: np.random.Generator
) -> list[Draw]:
    """Draw consecutive frames from a random part of a video."""
    first, end = draw_part(video, crop, rng)
    start = int(rng.integers(max(1, end - first - frames + 1)))
    rows = np.minimum(start + np.arange(frames), end - first - 1)
    return [Draw(video, first, end, rows, min(frames, end - first))]


def draw_same_times(
    ego: CachedVideo, exo: CachedVideo, frames: int, span: int, rng: np.random.Generator
) -> list[Draw]:
    """Draw ego frames from up to `span` consecutive frames, and the exo frames at the same
    normalized times.
    """
    length = min(ego.frames, span)
    start = int(rng.integers(ego.frames - length + 1))
    sampled = min(length, frames)
    chosen = start + np.concatenate([[0, length - 1], draw_rows(length, frames, rng)])
    first, last, *rows = sampling.same_time_frames(chosen, ego, exo)
    return [
        Draw(ego, start, start + length, chosen[2:] - start, sampled),
        Draw(exo, first, last + 1, np.array(rows) - first, sampled),
    ]


@full_precision
def npairs(
    anchors: Tensor,
    positives: Tensor,
    padding: Tensor,
    *,
    regularization: float = 0.002,  # value in the TCC authors' code
    labels: Tensor | None = None,
) -> Tensor:
    """N-pairs loss: cross-entropy of matching each anchor to its positive among all positives of
    the item.

    mean_i CE(softmax_j x_i·y_j, i) + regularization / 4 (mean_i ‖x_i‖² + mean_i ‖y_i‖²), averaged
    over the items.

    Shapes: anchors x and positives y (B, n, D), padding (B, n), labels (B, n). Target probability
    is split equally between positives with the same label. Padded pairs are ignored.
    """
    x, y = (side.masked_fill(padding[..., None], 0) for side in (anchors, positives))
    log_probabilities = hide_padding(x @ y.mT, padding).log_softmax(dim=-1)  # (B, n, n)
    if labels is None:
        own = log_probabilities.diagonal(dim1=1, dim2=2)  # (B, n)
    else:
        shared = (labels[:, :, None] == labels[:, None]) & ~padding[:, None]
        own = (log_probabilities * shared).sum(dim=-1) / shared.sum(dim=-1).clamp(min=1)
    squared_norms = x.square().sum(dim=-1) + y.square().sum(dim=-1)
    return mean_over_items(regularization / 4 * squared_norms - own, ~padding)


def positive_and_negative(
    times: Tensor, positive_radius: int, negative_radius: int
) -> tuple[Tensor, Tensor]:
    """Return masks (B, n, n) of frame pairs at most positive_radius apart, and more than
    negative_radius apart.
    """
    apart = (times[:, :, None] - times[:, None]).abs()  # (B, n, n)
    itself = torch.eye(times.shape[1], dtype=torch.bool, device=times.device)
    return (apart <= positive_radius) & ~itself, apart > negative_radius


@full_precision
def semi_hard_triplets(
    embeddings: Tensor, positive: Tensor, negative: Tensor, padding: Tensor, *, margin: float = 0.2
) -> Tensor:
    """Semi-hard triplet loss.

    With d_ij = ‖z_i - z_j‖², the loss of a positive pair (i, j) is max(0, margin + d_ij - d_ik),
    where k is the nearest of i's negatives that is farther from i than j, or the farthest negative
    if there is none. It is averaged over the positive pairs whose anchor i has a negative (0 if
    there are none), then over the items.

    Shapes: unit vectors z (B, n, D), masks of positive and negative pairs (B, n, n), padding (B,
    n), which is ignored.
    """
    z = embeddings.masked_fill(padding[..., None], 0)
    squares = z.square().sum(dim=-1)
    distances = squares[:, :, None] + squares[:, None] - 2 * z @ z.mT  # (B, n, n)
    excluded = padding[:, :, None] | padding[:, None]
    negative = negative & ~excluded
    count = negative.sum(dim=-1, keepdim=True)  # (B, n, 1)
    counted = positive & ~excluded & (count > 0)
    ordered, _ = distances.masked_fill(~negative, torch.inf).sort(dim=-1)
    farther = torch.searchsorted(ordered.detach(), distances.detach(), right=True)
    nearest = ordered.gather(-1, farther.minimum((count - 1).clamp(min=0)))
    return mean_over_items(F.relu(margin + distances - nearest), counted)
