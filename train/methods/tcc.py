"""Temporal cycle-consistency (TCC): a frame looks for itself by way of another video.

After Dwibedi et al., "Temporal Cycle-Consistency Learning" (CVPR 2019), as it was published: BYOV's own cycles
(train/cycle.py) are another loss.
"""

from typing import Literal

import torch
from torch import Tensor

from byov.train.baseline_settings import TccSettings
from byov.train.methods.base import AlignedClips, Losses
from byov.train.padded_frames import hide, mean_of_items, own_frame_cross_entropy, wide
from byov.train.sampling import Batch, Clips

CycleLoss = Literal["variance", "mse", "classification"]
Similarity = Literal["l2", "dot"]

# Of times from 0 to 1: a deviation of a hundredth of the video, less than what lies between two sampled frames. Nothing
# is gained by a sharper return; to a single frame, of variance 0, it would cost infinitely much if wrong, and be 0 / 0
# if right. The published code has no bound.
LEAST_VARIANCE = 1e-4


class Tcc(AlignedClips):
    """Cycles from each of two clips to the other and home."""

    settings: TccSettings

    def forward(self, clips: Batch, random: torch.Generator) -> Losses:
        first, second = zip(self.backbone(clips, random), clips, strict=True)
        return {"loss": (self.cycle(*first, *second) + self.cycle(*second, *first)) / 2}

    def cycle(self, home: Tensor, home_clip: Clips, away: Tensor, away_clip: Clips) -> Tensor:
        s = self.settings
        return cycle_back(
            home,
            away,
            home_clip.frame / home_clip.video_length[:, None],
            home_clip.repeated,
            away_clip.repeated,
            loss=s.tcc_loss,
            similarity=s.similarity,
            temperature=s.temperature,
            variance_weight=s.variance_weight,
            label_smoothing=s.smoothing,
        )


def cycle_back(
    home: Tensor,
    away: Tensor,
    times: Tensor,
    home_padding: Tensor,
    away_padding: Tensor,
    *,
    loss: CycleLoss = "variance",
    similarity: Similarity = "l2",
    temperature: float = 0.1,
    variance_weight: float = 0.001,
    label_smoothing: float = 0.1,
) -> Tensor:
    """(N, T, D), (N, S, D) → the mean cost of going from each frame of `home` to `away` and back; one direction.

    With s(x, y) = -‖x - y‖² / (D temperature), or x·y / (D temperature) for "dot": ũ_i = Σ_j softmax_j(s(u_i, v_j)) v_j
    and β_i = softmax_k(s(ũ_i, u_k)). With the times t, (N, T) from 0 to 1, μ_i = Σ_k β_ik t_k and
    var_i = Σ_k β_ik (t_k - μ_i)², a frame costs
    - "variance": (t_i - μ_i)² / var_i + variance_weight log var_i, var_i at least 1e-4;
    - "mse": (t_i - μ_i)²;
    - "classification": the cross-entropy of β_i with frame i, smoothed over all frames of the clip.

    Padding, (N, T) and (N, S), True: such a frame neither goes nor is found. Float32 or wider, also under autocast.
    """
    with torch.autocast(home.device.type, enabled=False):
        home, away = wide(home), wide(away)
        times = times.to(home.dtype)
        if similarity == "l2":  # far from the origin, little of the distances would be left in float32
            origin = home[:, :1].detach()
            home, away = home - origin, away - origin
        there = hide(_logits(home, away, similarity, temperature), away_padding).softmax(dim=-1)  # (N, T, S)
        logits = _logits(there @ away, home, similarity, temperature)  # (N, T, T)
        if loss == "classification":
            return mean_of_items(own_frame_cross_entropy(logits, home_padding, label_smoothing), ~home_padding)
        back = hide(logits, home_padding).softmax(dim=-1)
        mean = (back @ times[..., None]).squeeze(-1)  # (N, T)
        error = (times - mean).square()
        if loss == "mse":
            return mean_of_items(error, ~home_padding)
        variance = (back * (times[:, None] - mean[..., None]).square()).sum(dim=-1).clamp(min=LEAST_VARIANCE)
        return mean_of_items(error / variance + variance_weight * variance.log(), ~home_padding)


def _logits(rows: Tensor, columns: Tensor, similarity: Similarity, temperature: float) -> Tensor:
    """(N, T, D), (N, S, D) → (N, T, S) whose softmax over S is that of the similarity.

    -‖x - y‖² = 2 x·y - ‖y‖² - ‖x‖², of which the last is the same for all of a row.
    """
    products = rows @ columns.mT
    if similarity == "l2":
        products = 2 * products - columns.square().sum(dim=-1)[:, None]
    return products / (rows.shape[-1] * temperature)
