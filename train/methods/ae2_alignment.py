"""The alignment loss of AE2: two videos match in order, and worse if one of them runs backwards.

After Xue and Grauman, "Learning Fine-grained View-Invariant Representations from Unpaired Ego-Exo Videos via Temporal
Alignment" (NeurIPS 2023): its loss, without its encoder of hands and objects.
"""

import torch
from torch import Tensor

from byov.train.baseline_settings import Ae2AlignmentSettings
from byov.train.methods.base import AlignedClips, Losses
from byov.train.sampling import Batch, Clips
from byov.train.soft_dtw import Minimum, ends, matching_costs, soft_dtw_tables

SCALE = 0.01  # of all costs of paths


class Ae2Alignment(AlignedClips):
    """Two clips, and some frames of each, which AE2 chooses by its boxes and this by chance."""

    settings: Ae2AlignmentSettings

    def forward(self, clips: Batch, random: torch.Generator) -> Losses:
        s, (first, second) = self.settings, self.backbone(clips, random)
        total, alignment, hinge = ae2_losses(
            first,
            second,
            clips[0].repeated,
            clips[1].repeated,
            self.positions(clips, random) if s.contrastive else None,
            hinge_weight=s.reversed_weight,
            margin=s.margin,
            gamma=s.gamma,
            temperature=s.temperature,
        )
        return {"loss": total, "alignment": alignment, "reversed": hinge}

    def positions(self, clips: Batch, random: torch.Generator) -> tuple[Tensor, Tensor]:
        """(B, K) of each clip: in order, and padding only where there are not enough frames."""
        first, second = (self.some(clip, random) for clip in clips)
        if self.settings.halves:
            later = clips[0].rand(random=random) < 0.5  # the same half of both
            first, second = half_of(first, later), half_of(second, later)
        return first, second

    def some(self, clip: Clips, random: torch.Generator) -> Tensor:
        order = (clip.rand(clip.sampled, random=random) + clip.repeated).argsort(dim=1)
        return order[:, : self.settings.subset].sort(dim=1).values


def ae2_losses(
    first: Tensor,
    second: Tensor,
    first_padding: Tensor,
    second_padding: Tensor,
    positions: tuple[Tensor, Tensor] | None,
    *,
    hinge_weight: float = 1.0,
    margin: float = 0.0,
    gamma: float = 0.1,
    temperature: float = 0.1,
    minimum: Minimum = "weighted",
) -> tuple[Tensor, Tensor, Tensor]:
    """(B, T, D), (B, S, D) → the loss, and its two parts: of the alignment, and of the hinge, weighted.

    R(A,B) is the cost of soft DTW between A and B; A', B' are the frames of A and B at `positions`, two of (B, K), in
    order. With s = 0.01, each of the two a mean over the pairs:
    (s R(A,B) + s R(A',B')) / 2 + hinge_weight max(0, s R(A',B') - s R(A', reversed B') + margin).
    positions=None: s R(A,B) is all.

    Padding, (B, T) and (B, S), True at the end of a clip: no frame to align. B' is reversed without its padding.
    """
    costs = [matching_costs(first, second, temperature, first_padding)]
    paddings = [(first_padding, second_padding)]
    if positions is not None:
        own, own_padding = _frames_at(positions[0], first, first_padding)  # (B, K, D), (B, K)
        other, other_padding = _frames_at(positions[1], second, second_padding)
        in_order = matching_costs(own, other, temperature, own_padding)  # (B, K, K)
        costs += [in_order, _columns(in_order, _reversed(other_padding))]
        paddings += [(own_padding, other_padding)] * 2
    tables = soft_dtw_tables(costs, gamma, minimum)
    whole, *parts = (SCALE * ends(table, *padding) for table, padding in zip(tables, paddings, strict=True))  # (B,)
    if not parts:
        alignment, hinge = whole.mean(), torch.zeros_like(whole.mean())
    else:
        forwards, backwards = parts
        alignment = (whole + forwards).mean() / 2
        hinge = hinge_weight * (forwards - backwards + margin).clamp(min=0).mean()
    return alignment + hinge, alignment, hinge


def half_of(positions: Tensor, later: Tensor) -> Tensor:
    """(B, K) → (B, K // 2), of one the one: the first or, where `later`, (B,), is True, the last ones.

    For actions that end as they began: the whole looks much the same backwards, a half does not.
    """
    count = max(1, positions.shape[1] // 2)
    return torch.where(later[:, None], positions[:, -count:], positions[:, :count])


def _frames_at(positions: Tensor, clips: Tensor, padding: Tensor) -> tuple[Tensor, Tensor]:
    """(B, K) of (B, T, D) and (B, T) → (B, K, D) and (B, K); the first is a frame even if all are padding."""
    frames = clips.gather(1, positions[..., None].expand(-1, -1, clips.shape[2]))
    is_first = torch.arange(positions.shape[1], device=positions.device) == 0
    return frames, padding.gather(1, positions) & ~is_first


def _reversed(padding: Tensor) -> Tensor:
    """(B, K) → (B, K): the numbers of the frames from the last that is no padding to the first, then of the padding."""
    places = torch.arange(padding.shape[1], device=padding.device)
    return torch.where(padding, places, (~padding).sum(dim=1, keepdim=True) - 1 - places)


def _columns(table: Tensor, order: Tensor) -> Tensor:
    """(B, K, K) with its columns in the order (B, K)."""
    return table.gather(2, order[:, None].expand_as(table))
