"""Temporal cycle-consistency (Dwibedi et al., CVPR 2019), as published.

The cycle term of BYOV's `cycle` recipe is a different loss.
"""

from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from byov.train.config import NonNegative, Temperature
from byov.train.methods.base import (
    Losses,
    PairMethod,
    PairMethodConfig,
    hide_padding,
    mean_over_items,
    own_frame_cross_entropy,
)
from byov.train.networks import full_precision
from byov.train.sampling import Batch

CycleLoss = Literal["variance", "mse", "classification"]

# A standard deviation of 1% of the video is less than the distance between two sampled frames. The
# published code has no lower bound, so the loss of a hard match, which has variance 0, is infinite
# if wrong and NaN if right.
MIN_VARIANCE = 1e-4


class TccConfig(PairMethodConfig):
    summary = "temporal cycle-consistency."
    table_name = "TCC"

    name: Literal["tcc"] = "tcc"
    # The defaults of these three settings are from the published code.
    tcc_loss: CycleLoss = Field("variance", description="Loss for the end points of cycles.")
    temperature: Temperature = 0.1
    variance_weight: NonNegative = Field(0.001, description="Weight of the log-variance term.")

    VARIANTS: ClassVar[dict[str, dict[Any, str]]] = {
        "tcc_loss": {"mse": "mse", "classification": "classification"}
    }


class Tcc(PairMethod):
    """Temporal cycle-consistency between two clips, in both directions.

    `tcc_loss`, `temperature` and `variance_weight` are arguments of `tcc_loss`.
    """

    config_class = TccConfig

    def __init__(
        self,
        width: int,
        *,
        tcc_loss: CycleLoss,
        temperature: float,
        variance_weight: float,
        **options: Any,
    ) -> None:
        super().__init__(width, **options)
        self.tcc_loss = tcc_loss
        self.temperature = temperature
        self.variance_weight = variance_weight

    def forward(self, clips: Batch, generator: torch.Generator) -> Losses:
        z = self.backbone(clips, generator)
        there, back = (
            tcc_loss(
                z[home],
                z[away],
                clips[home].frame / clips[home].video_length[:, None],
                clips[home].padding,
                clips[away].padding,
                loss=self.tcc_loss,
                temperature=self.temperature,
                variance_weight=self.variance_weight,
            )
            for home, away in ((0, 1), (1, 0))
        )
        return {"loss": (there + back) / 2}


@full_precision
def tcc_loss(
    home: Tensor,
    away: Tensor,
    times: Tensor,
    home_padding: Tensor,
    away_padding: Tensor,
    *,
    loss: CycleLoss = "variance",
    temperature: float = 0.1,
    variance_weight: float = 0.001,
    label_smoothing: float = 0.1,  # value in the published code
) -> Tensor:
    """Mean loss over the cycles from each frame of `home` to `away` and back.

    With s(x, y) = -‖x - y‖² / (D temperature): ũ_i = Σ_j softmax_j(s(u_i, v_j)) v_j and β_i =
    softmax_k(s(ũ_i, u_k)). With μ_i = Σ_k β_ik t_k and var_i = Σ_k β_ik (t_k - μ_i)², the loss of
    frame i is

    - "variance": (t_i - μ_i)² / var_i + variance_weight log var_i, where var_i is at least 1e-4;
    - "mse": (t_i - μ_i)²;
    - "classification": the cross-entropy of β_i with frame i, with label smoothing.

    Shapes: u (N, T, D), v (N, S, D), times t from 0 to 1 (N, T), paddings (N, T) and (N, S). Padded
    frames are never matched and have no loss.
    """
    times = times.to(home.dtype)
    # float32 cannot resolve differences between points far from the origin.
    origin = home[:, :1].detach()
    home = home - origin
    away = away - origin
    # (N, T, S).
    there = hide_padding(_logits(home, away, temperature), away_padding).softmax(dim=-1)
    logits = _logits(there @ away, home, temperature)  # (N, T, T)
    if loss == "classification":
        return mean_over_items(
            own_frame_cross_entropy(logits, home_padding, label_smoothing), ~home_padding
        )
    back = hide_padding(logits, home_padding).softmax(dim=-1)
    mean = (back @ times[..., None]).squeeze(-1)  # (N, T)
    error = (times - mean).square()
    if loss == "mse":
        return mean_over_items(error, ~home_padding)
    variance = (
        (back * (times[:, None] - mean[..., None]).square()).sum(dim=-1).clamp(min=MIN_VARIANCE)
    )
    return mean_over_items(error / variance + variance_weight * variance.log(), ~home_padding)


def _logits(rows: Tensor, columns: Tensor, temperature: float) -> Tensor:
    """Compute (N, T, S) logits from scaled squared distances, omitting -‖row‖², which is constant
    in each row.
    """
    products = 2 * (rows @ columns.mT) - columns.square().sum(dim=-1)[:, None]
    return products / (rows.shape[-1] * temperature)
