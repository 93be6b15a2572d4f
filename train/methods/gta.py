"""Global temporal alignment (GTA): two videos are matched as wholes, in order, and from one to the other and back.

After Hadji et al., "Representation Learning via Global Temporal Alignment and Cycle-Consistency" (CVPR 2021).
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from byov.train.baseline_settings import GtaSettings
from byov.train.methods.ae2_alignment import SCALE
from byov.train.methods.base import AlignedClips, Losses
from byov.train.padded_frames import hide, mean_of_items, own_frame_cross_entropy, wide
from byov.train.sampling import Batch
from byov.train.soft_dtw import Minimum, ends, matching_costs, soft_dtw_tables


class Gta(AlignedClips):
    """Two clips are aligned both ways; what is judged are the unit vectors that the costs are made of."""

    settings: GtaSettings

    @property
    def unit(self) -> bool:
        return not self.settings.unnormalized

    def forward(self, clips: Batch, random: torch.Generator) -> Losses:
        s, z = self.settings, self.backbone(clips, random)
        total, cycle, alignment = gta_losses(
            *(F.normalize(wide(latents), dim=-1) if self.unit else latents for latents in z),
            *(clip.repeated for clip in clips),
            gamma=s.gamma,
            temperature=s.temperature,
            label_smoothing=s.smoothing,
            alignment_weight=s.path_weight,
            factor=SCALE if s.unnormalized else 1.0,
        )
        return {"loss": total, "cycle": cycle, "alignment": alignment}


def gta_losses(
    first: Tensor,
    second: Tensor,
    first_padding: Tensor,
    second_padding: Tensor,
    *,
    gamma: float = 0.1,
    temperature: float = 0.1,
    label_smoothing: float = 0.1,
    alignment_weight: float = 0.1,
    cycle: bool = True,
    minimum: Minimum = "weighted",
    factor: float = 1.0,
) -> tuple[Tensor, Tensor, Tensor]:
    """(B, T, D), (B, S, D), as published unit vectors → the loss, and its two parts: of the cycle, of the alignment.

    R(A,B) is the table of soft DTW between A and B, whose costs are normalized over the frames of A; its last cell is
    the alignment's cost. S(R) = softmax over the rows of -R, for each column; P = (S(R(A,B)) S(R(B,A)))ᵀ, (T, T), says
    where each frame of A returns to. Loss, a mean over the pairs, times `factor`:
    mean_i CE(softmax_k(P_ik), i; smoothed) + alignment_weight (R(A,B) + R(B,A) at their ends).

    P are probabilities, and the cross-entropy takes them as logits: so it was published, and so even a perfect cycle
    has its cost. cycle=False: R(A,B) at its end is all, without a weight.

    Padding, (B, T) and (B, S), True at the end of a clip: such frames have no weight in the costs, in S and in the
    softmax of P, do not count as i, and a table ends before them.
    """
    with torch.autocast(first.device.type, enabled=False):
        there = matching_costs(first, second, temperature, first_padding)  # (B, T, S)
        if not cycle:
            (table,) = soft_dtw_tables([there], gamma, minimum)
            alignment = factor * ends(table, first_padding, second_padding).mean()
            return alignment, torch.zeros_like(alignment), alignment
        back = matching_costs(second, first, temperature, second_padding)  # (B, S, T)
        there, back = soft_dtw_tables([there, back], gamma, minimum)
        returns = _over_rows(back, second_padding) @ _over_rows(there, first_padding)  # (B, T, T)
        own = own_frame_cross_entropy(returns, first_padding, label_smoothing)  # (B, T)
        of_cycle = factor * mean_of_items(own, ~first_padding)
        costs = ends(there, first_padding, second_padding) + ends(back, second_padding, first_padding)  # (B,)
        of_alignment = factor * alignment_weight * costs.mean()
    return of_cycle + of_alignment, of_cycle, of_alignment


def _over_rows(table: Tensor, padding: Tensor) -> Tensor:
    """(B, T, S) → S(R)ᵀ, (B, S, T): for each column how its weight is spread over the rows that are not padding."""
    return hide(-table.mT, padding).softmax(dim=-1)
