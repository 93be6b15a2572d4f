"""Global temporal alignment (Hadji et al., CVPR 2021): soft DTW between two videos, with a
cycle-consistency loss.
"""

from functools import partial
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from byov.train.config import Positive, Temperature
from byov.train.methods.base import (
    Losses,
    PairMethod,
    PairMethodConfig,
    hide_padding,
    mean_over_items,
    own_frame_cross_entropy,
)
from byov.train.networks import at_least_float32, full_precision
from byov.train.sampling import Batch
from byov.train.soft_dtw import final_costs, matching_costs, soft_dtw_tables


class GtaConfig(PairMethodConfig):
    summary = "global temporal alignment with soft dynamic time warping."
    table_name = "GTA"

    name: Literal["gta"] = "gta"
    # False as in the original code; AE2's code corresponds to True
    unnormalized: bool = Field(
        False, description="Use AE2's variant: raw embeddings, loss scaled by 0.01."
    )
    # The defaults of these two settings are from the published code.
    temperature: Temperature = 0.1
    gamma: Positive = Field(0.1, description="Smoothing parameter of soft DTW.")

    VARIANTS: ClassVar[dict[str, dict[Any, str]]] = {"unnormalized": {True: "unnormalized"}}


class Gta(PairMethod):
    """Global temporal alignment of two clips, in both directions.

    `gamma` and `temperature` are arguments of `gta_losses`. `unnormalized` selects AE2's variant,
    with raw embeddings and scaled losses.
    """

    config_class = GtaConfig

    def __init__(
        self, width: int, *, unnormalized: bool, temperature: float, gamma: float, **options: Any
    ) -> None:
        super().__init__(width, **options)
        self.unit_norm = not unnormalized
        scale = 0.01 if unnormalized else 1.0  # 0.01 as in AE2's code
        self.losses = partial(gta_losses, gamma=gamma, temperature=temperature, scale=scale)

    def forward(self, clips: Batch, generator: torch.Generator) -> Losses:
        z = self.backbone(clips, generator)
        if self.unit_norm:
            z = [F.normalize(at_least_float32(latents), dim=-1) for latents in z]
        cycle, alignment = self.losses(*z, *(clip.padding for clip in clips))
        return {"loss": cycle + alignment, "cycle": cycle, "alignment": alignment}


@full_precision
def gta_losses(
    first: Tensor,
    second: Tensor,
    first_padding: Tensor,
    second_padding: Tensor,
    *,
    gamma: float = 0.1,
    temperature: float = 0.1,
    label_smoothing: float = 0.1,  # value in the published code
    alignment_weight: float = 0.1,  # value in the published code
    scale: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """Compute GTA's cycle loss and alignment loss; their sum is minimized.

    R(A,B) is the soft DTW table of A and B with matching costs normalized over the frames of A; its
    last cell is the alignment cost. S(R) is the softmax of -R over its rows. P = (S(R(A,B))
    S(R(B,A)))ᵀ, (T, T), contains the probabilities that frame i of A returns to frame k. The losses
    are the batch means of

        mean_i CE(softmax_k(P_ik), i; smoothed) and alignment_weight (last cell of R(A,B) + last
        cell of R(B,A)).

    The cross-entropy takes the probabilities P as logits, as published, so even a perfect cycle has
    a nonzero loss.

    Shapes: A (B, T, D), B (B, S, D), trailing padding (B, T) and (B, S). Padded frames are ignored.
    """
    there = matching_costs(first, second, temperature, first_padding)  # (B, T, S)
    back = matching_costs(second, first, temperature, second_padding)  # (B, S, T)
    there, back = soft_dtw_tables([there, back], gamma)
    # (B, T, T).
    returns = _softmax_over_rows(back, second_padding) @ _softmax_over_rows(there, first_padding)
    own = own_frame_cross_entropy(returns, first_padding, label_smoothing)  # (B, T)
    costs = final_costs(there, first_padding, second_padding) + final_costs(
        back, second_padding, first_padding
    )
    return scale * mean_over_items(own, ~first_padding), scale * alignment_weight * costs.mean()


def _softmax_over_rows(table: Tensor, padding: Tensor) -> Tensor:
    """Compute the transposed softmax (B, S, T) of negated tables (B, T, S) over the rows that are
    not padding.
    """
    return hide_padding(-table.mT, padding).softmax(dim=-1)
