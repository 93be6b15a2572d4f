"""AE2's alignment loss (Xue and Grauman, NeurIPS 2023), without its object-centric encoder.

Two videos should align in order, and align worse if one of them is reversed.
"""

from functools import partial
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from byov.train.config import NonNegative, Positive, SamplingConfig, Size, Temperature
from byov.train.methods.base import Losses, PairMethod, PairMethodConfig
from byov.train.networks import take_frames
from byov.train.sampling import Batch
from byov.train.soft_dtw import final_costs, matching_costs, soft_dtw_tables

SCALE = 0.01  # scale of all alignment costs, as in the published code


class Ae2AlignmentConfig(PairMethodConfig):
    """AE2 alignment options. Defaults are from the published scripts."""

    summary = "AE2's alignment loss, without its object-centric encoder."
    table_name = "AE2 alignment loss, no object encoder"

    name: Literal["ae2-alignment"] = "ae2-alignment"
    contrastive: bool = Field(
        True, description="Add a hinge loss that requires reversed clips to align worse."
    )
    subset: Size = Field(
        30,
        description="Frames per clip in the subset that is also aligned on its own and reversed.",
    )
    reversed_weight: NonNegative = Field(
        1.0, description="Weight of the hinge loss for reversed clips."
    )
    margin: NonNegative = Field(
        0.0, description="Margin of the hinge loss (ae2-alignment) or triplet loss (tcn)."
    )
    halves: bool = Field(False, description="Use only a random half of the subset.")
    temperature: Temperature = 0.1
    gamma: Positive = Field(0.1, description="Smoothing parameter of soft DTW.")

    TRAINING: ClassVar[dict[str, Any]] = PairMethodConfig.TRAINING | {"lr": 5e-5}
    VARIANTS: ClassVar[dict[str, dict[Any, str]]] = {"contrastive": {False: "not contrastive"}}
    DATASETS: ClassVar[dict[str, dict[str, Any]]] = {
        "pour_milk": {"contrastive": False, "lr": 1e-4},
        "pour_liquid": {"subset": 16, "reversed_weight": 2.0, "halves": True},
        "tennis_forehand": {"subset": 10, "reversed_weight": 4.0},
    }

    def check_sampling(self, sampling: SamplingConfig) -> None:
        if self.contrastive and self.subset > sampling.frames:
            raise ValueError(
                f"--subset {self.subset} exceeds --frames {sampling.frames}; lower --subset or "
                "raise --frames"
            )


class Ae2Alignment(PairMethod):
    """AE2's alignment loss on two clips and on random subsets of their frames (AE2 selects them by
    detected boxes).

    Args:
        width: Width of the input features.
        contrastive: Whether reversed clips must align worse.
        subset: Frames per clip in the subset.
        halves: Whether to use only a random half of the subset.
        reversed_weight, margin, gamma, temperature: See `ae2_losses`.
        **options: Arguments of `PairMethod`.
    """

    config_class = Ae2AlignmentConfig

    def __init__(
        self,
        width: int,
        *,
        contrastive: bool,
        subset: int,
        halves: bool,
        reversed_weight: float,
        margin: float,
        gamma: float,
        temperature: float,
        **options: Any,
    ) -> None:
        super().__init__(width, **options)
        self.contrastive = contrastive
        self.subset = subset
        self.halves = halves
        self.losses = partial(
            ae2_losses,
            hinge_weight=reversed_weight,
            margin=margin,
            gamma=gamma,
            temperature=temperature,
        )

    def forward(self, clips: Batch, generator: torch.Generator) -> Losses:
        (first, second) = self.backbone(clips, generator)
        subsets = self.draw_subsets(clips, generator) if self.contrastive else None
        alignment, hinge = self.losses(first, second, clips[0].padding, clips[1].padding, subsets)
        return {"loss": alignment + hinge, "alignment": alignment, "reversed": hinge}

    def draw_subsets(self, clips: Batch, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Draw sorted frame indices (B, K) of each clip, which include padding only if there are
        too few frames.
        """
        orders = [
            (clip.rand(clip.sampled, generator=generator) + clip.padding).argsort(dim=1)
            for clip in clips
        ]
        first, second = (order[:, : self.subset].sort(dim=1).values for order in orders)
        if self.halves:
            later = clips[0].rand(generator=generator) < 0.5  # use the same half of both clips
            first = take_half(first, later)
            second = take_half(second, later)
        return first, second


def ae2_losses(
    first: Tensor,
    second: Tensor,
    first_padding: Tensor,
    second_padding: Tensor,
    subsets: tuple[Tensor, Tensor] | None,
    *,
    hinge_weight: float = 1.0,
    margin: float = 0.0,
    gamma: float = 0.1,
    temperature: float = 0.1,
) -> tuple[Tensor, Tensor]:
    """Compute AE2's alignment loss and hinge loss; their sum is minimized.

    R is the soft DTW cost; A' and B' are subsets of the frames of A and B. With s = 0.01, the
    losses are the means of

        (s R(A,B) + s R(A',B')) / 2 and hinge_weight max(0, s R(A',B') - s R(A', reversed B') +
        margin).

    Shapes: A (B, T, D), B (B, S, D), trailing padding (B, T) and (B, S), sorted subsets (B, K)
    each. Without subsets, the alignment loss is s R(A,B) and the hinge loss is 0. Padded frames are
    not aligned.
    """
    costs = [matching_costs(first, second, temperature, first_padding)]
    if subsets is None:
        (table,) = soft_dtw_tables(costs, gamma)
        alignment = (SCALE * final_costs(table, first_padding, second_padding)).mean()
        return alignment, torch.zeros_like(alignment)
    own, own_padding = _subset(first, first_padding, subsets[0])  # (B, K, D), (B, K)
    other, other_padding = _subset(second, second_padding, subsets[1])
    in_order = matching_costs(own, other, temperature, own_padding)  # (B, K, K)
    index = torch.arange(in_order.shape[2], device=in_order.device)
    # (B, K).
    reversed_index = torch.where(
        other_padding, index, (~other_padding).sum(dim=1, keepdim=True) - 1 - index
    )
    reversed_costs = in_order.gather(2, reversed_index[:, None].expand_as(in_order))
    tables = soft_dtw_tables([*costs, in_order, reversed_costs], gamma)
    whole = SCALE * final_costs(tables[0], first_padding, second_padding)  # (B,)
    forward, backward = (
        SCALE * final_costs(table, own_padding, other_padding) for table in tables[1:]
    )
    alignment = (whole + forward).mean() / 2
    return alignment, hinge_weight * (forward - backward + margin).clamp(min=0).mean()


def take_half(subset: Tensor, later: Tensor) -> Tensor:
    """Return the first half of (B, K) frames, or the second half where `later`, (B,), is True; at
    least one frame.

    Useful for actions that end as they began: reversed, the whole action looks much the same, but a
    half does not.
    """
    count = max(1, subset.shape[1] // 2)
    return torch.where(later[:, None], subset[:, -count:], subset[:, :count])


def _subset(clips: Tensor, padding: Tensor, frames: Tensor) -> tuple[Tensor, Tensor]:
    """Select frames (B, K) and their padding; the first selected frame never counts as padding."""
    is_later = torch.arange(frames.shape[1], device=frames.device) > 0
    return take_frames(clips, frames), padding.gather(1, frames) & is_later
