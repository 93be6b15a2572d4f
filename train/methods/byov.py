"""Bootstrap Your Own Views (Park et al., CVPR 2025).

Equation numbers refer to the paper. X denotes frame features, Z latents and Y reconstructions.
"""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal, Self

import torch
import torch.nn.functional as F
from pydantic import Field, model_validator
from torch import Tensor, nn

from byov.train.config import (
    EncoderConfig,
    Fraction,
    MethodConfig,
    NonNegative,
    Norm,
    Pairs,
    Position,
    PositionIn,
    Positive,
)
from byov.train.feature_store import CachedVideo
from byov.train.methods.base import Features, Losses, Method, hide_padding
from byov.train.networks import (
    Decoder,
    Encoder,
    draw_visible,
    full_precision,
    initialize,
    masked_frames,
)
from byov.train.sampling import Batch, Sampler, draw_pair

TEMPERATURE = 0.1  # our choice
# Changes to the context of cross-view modeling. They do not change the loss of a model that ignores
# the other view.
CONTEXT_CHANGES: dict[str, Callable[[Tensor], Tensor]] = {
    "other": lambda latents: latents.roll(1, dims=0),  # another video's latents
    "reversed": lambda latents: latents.flip(1),
    "mean": lambda latents: latents.mean(dim=1, keepdim=True).expand_as(latents),
}


Causal = Literal["none", "decoder", "strict"]
CrossLoss = Literal["masked", "bottleneck"]


class ByovConfig(EncoderConfig, MethodConfig):
    summary = "masked self-view and cross-view modeling, as in the paper."
    table_name = "BYOV"

    name: Literal["byov"] = "byov"
    recipe: Literal["paper", "official", "cycle", "bottleneck"] = Field(
        "paper",
        description="Defaults from the paper, from its published code, with a cycle-consistency "
        "loss, or with a cross-view bottleneck.",
    )
    size: Literal["paper", "small"] = Field(
        "paper",
        description="Defaults for the paper's model, or for one that trains on a CPU in minutes.",
    )
    # Paper, sec. 4.2.
    decoder_depth: int = Field(4, ge=1, le=256, description="Number of decoder blocks.")
    self_view: bool = Field(True, description="Masked self-view modeling.")  # paper, sec. 3.3
    cross_view: bool = Field(True, description="Masked cross-view modeling.")  # paper, sec. 3.4
    causal: Causal = Field(  # paper, sec. 3.3
        "decoder",
        description="Causal attention in self-view modeling: none; in the decoder; or in encoder "
        "and decoder, so that each frame is reconstructed only from earlier ones.",
    )
    # defaults of both masking ratios: paper, sec. 4.2
    mask_self: Fraction = Field(0.4, description="Fraction of frames masked in self-view modeling.")
    mask_cross: Fraction = Field(
        0.8, description="Fraction of frames masked in cross-view modeling."
    )
    masked_only: bool = False  # paper, eq. 4 and 8: the loss covers all frames
    skip_first: bool = False  # the published code samples the first frame only from short videos
    pairs: Pairs = "views"  # paper, sec. 3: an ego and an exo video
    # The remaining settings are our additions and not in the paper.
    cross_loss: CrossLoss = Field(
        "masked",
        description="Cross-view loss: the paper's, or reconstruction of each view from matching "
        "frames of the other view only.",
    )
    time_prior: Positive = Field(
        0.1,
        description="Standard deviation, in normalized time, of the bottleneck's prior on matching "
        "frames.",
    )
    cycle: NonNegative = Field(0.0, description="Weight of the temporal cycle-consistency loss.")
    order_prior: float | None = Field(
        None,
        gt=0,
        description="Standard deviation, in normalized time, of a prior that favors matches in "
        "temporal order.",
    )

    PRESETS: ClassVar[dict[str, dict[str, dict[str, Any]]]] = {
        "recipe": {
            "paper": {},
            "official": {"pairs": "any", "norm": "before", "masked_only": True, "skip_first": True},
            "cycle": {"standardize": "video", "crop": (0.5, 1.0), "cycle": 5.0},
            # our choice, based on the val splits of simulated datasets (docs/methods.md)
            "bottleneck": {"cross_loss": "bottleneck", "position": "none", "standardize": "dataset"}
            | {"steps": 1500, "batch_size": 4, "lr": 1e-3, "schedule": "cosine", "select": "last"},
        },
        "size": {
            "paper": {},
            # our choice: raw features are learned slowly, and the score of an early model is that
            # of its initialization
            "small": {"latent": 128, "depth": 4, "decoder_depth": 2, "heads": 8}
            | {"standardize": "dataset", "select": "last"}
            | {"steps": 1500, "batch_size": 4, "lr": 1e-3, "schedule": "cosine"},
        },
    }
    DATASETS: ClassVar[dict[str, dict[str, Any]]] = {
        "break_eggs": {"batch_size": 4},  # value in the published code
    }
    VARIANTS: ClassVar[dict[str, dict[Any, str]]] = {
        "recipe": {recipe: recipe for recipe in PRESETS["recipe"]},
        "size": {"small": "small"},
    }

    @property
    def label(self) -> str:
        return self.recipe if self.size == "paper" else f"{self.recipe}-{self.size}"

    @model_validator(mode="after")
    def _has_a_loss(self) -> Self:
        masks = self.self_view * self.mask_self + self.cross_view * self.mask_cross
        problems = {
            "--order-prior needs the cycle-consistency loss; set a weight with --cycle": (
                self.order_prior is not None and not self.cycle
            ),
            "no loss is enabled: --no-self and --no-cross without --cycle": (
                not (self.self_view or self.cross_view or self.cycle)
            ),
            "--cross-loss bottleneck is a loss of cross-view modeling; omit --no-cross": (
                self.cross_loss == "bottleneck" and not self.cross_view
            ),
            "no loss is enabled: the loss covers only masked frames, but none is masked": (
                self.masked_only and not masks and not self.cycle
            ),
        }
        for message, applies in problems.items():
            if applies:
                raise ValueError(message)
        return self


class Byov(Method):
    """Masked self-view modeling (MSM) and masked cross-view modeling (MCM) with an ego and an exo
    clip.

    Args:
        width: Width of the input features.
        latent: Width of the latents (even).
        depth, heads, position, position_in, norm, attention_window: See `Encoder`.
        decoder_depth: Number of decoder blocks.
        self_view: Whether to use MSM.
        cross_view: Whether to use MCM.
        causal: Causal attention in MSM: "none", "decoder" or "strict" (encoder and decoder).
        mask_self: Fraction of frames masked in MSM.
        mask_cross: Fraction of frames masked in MCM.
        masked_only: Whether the losses cover only masked frames.
        skip_first: Whether to leave out the first frame of a clip.
        pairs: "views" (an ego and an exo video) or "any".
        cross_loss: "masked" (MCM) or "bottleneck" (`CrossViewBottleneck`).
        time_prior: Standard deviation of the bottleneck's prior, in normalized time.
        cycle: Weight of the cycle-consistency loss.
        order_prior: Standard deviation, in normalized time, of the prior of the cycle term.
            None disables the prior.
        **sampling: Arguments of `Method`.
    """

    config_class = ByovConfig

    def __init__(
        self,
        width: int,
        *,
        latent: int,
        depth: int,
        heads: int,
        decoder_depth: int,
        position: Position,
        position_in: PositionIn,
        norm: Norm,
        attention_window: int | None,
        self_view: bool,
        cross_view: bool,
        causal: Causal,
        mask_self: float,
        mask_cross: float,
        masked_only: bool,
        skip_first: bool,
        pairs: Pairs,
        cross_loss: CrossLoss,
        time_prior: float,
        cycle: float,
        order_prior: float | None,
        **sampling: Any,
    ) -> None:
        super().__init__(width, **sampling)
        self.self_view = self_view
        self.cross_view = cross_view
        self.causal = causal
        self.mask_self = mask_self
        self.mask_cross = mask_cross
        self.masked_only = masked_only
        self.skip_first = skip_first
        self.pairs = pairs
        self.cycle = cycle
        self.order_prior = order_prior
        self.encoder = Encoder(
            width=width,
            latent=latent,
            depth=depth,
            heads=heads,
            frames=self.frames,
            position=position,
            position_in=position_in,
            norm=norm,
            attention_window=attention_window,
        )
        self.decoder = Decoder(
            width=width,
            latent=latent,
            depth=decoder_depth,
            heads=heads,
            frames=self.frames,
            position=position,
        )
        self.is_causal = self.encoder.is_causal
        self.apply(initialize)
        nn.init.normal_(self.decoder.mask_token, std=0.02)
        self.bottleneck = None
        if cross_loss == "bottleneck":
            self.bottleneck = CrossViewBottleneck(width, latent, time_prior)

    def sampler(self, videos: Sequence[CachedVideo]) -> Sampler:
        return Sampler(
            videos,
            draw_pair(videos, self.pairs, self.frames, self.crop, skip_first=self.skip_first),
        )

    def forward(
        self,
        clips: Batch,
        generator: torch.Generator,
        change_context: Callable[[Tensor], Tensor] | None = None,
    ) -> Losses:
        """Compute the losses of a batch.

        `change_context`, if given, replaces the latents (B, T, D) in which a view sees the other
        (see `diagnose`).
        """
        (ego, exo) = clips
        visible_msm = [draw_visible(view, self.mask_self, generator) for view in clips]
        visible_mcm = [draw_visible(view, self.mask_cross, generator) for view in clips]

        # Encode all frames of both views (eq. 5), and the visible frames of MSM (eq. 3) and MCM
        # (eq. 6), in one pass.
        full = [None, None] if self.cross_view or self.cycle else []
        msm = visible_msm if self.self_view else []
        mcm = visible_mcm if self.cross_view and self.bottleneck is None else []
        causal = [False] * len(full) + [self.causal == "strict"] * len(msm) + [False] * len(mcm)
        visible = [*full, *msm, *mcm]
        z = self.encoder(clips * (len(visible) // 2), visible=visible, causal=causal)
        z_full = z[: len(full)]
        z_msm = z[len(full) : len(full) + len(msm)]
        z_mcm = z[len(full) + len(msm) :]
        contexts = (
            z_full if change_context is None else [change_context(latents) for latents in z_full]
        )

        # Decode the MSM tokens (eq. 4), and the MCM tokens with the other view as context (eq. 7),
        # in one pass.
        tokens = []
        strict = self.causal == "strict"
        if msm:
            tokens += [
                self.decoder.tokens(*view, shifted=strict)
                for view in zip(clips, z_msm, msm, strict=True)
            ]
        if mcm:
            own = [self.decoder.tokens(*view) for view in zip(clips, z_mcm, mcm, strict=True)]
            context = [self.decoder.tokens(exo, contexts[1]), self.decoder.tokens(ego, contexts[0])]
            tokens += [torch.cat(views, dim=1) for views in zip(own, context, strict=True)]
        frames = [ego.sampled, exo.sampled] * (len(tokens) // 2)
        decoder_causal = [self.causal != "none"] * len(msm) + [False] * len(mcm)
        y = self.decoder(tokens, frames, decoder_causal) if tokens else []

        losses = {}
        if self.self_view:
            losses["self"] = self.reconstruction_loss(clips, visible_msm, y[:2])  # eq. 4
        if self.cross_view:
            y_cross = (
                y[-2:] if self.bottleneck is None else self.bottleneck(clips, z_full, contexts)
            )
            losses["cross"] = self.reconstruction_loss(clips, visible_mcm, y_cross)  # eq. 8
        if self.cycle:
            there = (z_full[0], ego.padding)
            back = (z_full[1], exo.padding)
            losses["cycle"] = cycle_loss(*there, *back, self.order_prior) + cycle_loss(
                *back, *there, self.order_prior
            )
        # The published code averages MSM over the masked frames of both views, instead of summing
        # over the views.
        weights = {"self": 0.5 if self.masked_only else 1.0, "cross": 1.0, "cycle": self.cycle}
        weighted = (weights[name] * loss for name, loss in losses.items())
        return {"loss": sum(weighted, start=ego.features.new_zeros(()))} | losses  # eq. 9

    def reconstruction_loss(
        self, clips: Batch, visible: Sequence[Tensor], y: Sequence[Tensor]
    ) -> Tensor:
        """Mean squared error between X and Y over the frames of a view, summed over the views (eq.
        4 and 8).
        """
        total = torch.zeros((), device=y[0].device)
        for view, view_visible, reconstructed in zip(clips, visible, y, strict=True):
            error = (reconstructed.float() - view.features).square().mean(dim=-1)  # (B, T)
            if self.masked_only:
                masked = masked_frames(view_visible, view.sampled)
                total = total + (error * masked).sum() / masked.sum().clamp(min=1)
            else:
                total = total + error.mean()
        return total

    @torch.no_grad()
    def diagnose(self, clips: Batch, generator: torch.Generator) -> dict[str, float]:
        """Return the losses of a batch, also with changed contexts, and those of trivial
        predictors.

        Keys: "self" and "cross"; "cross/<change>" for each of CONTEXT_CHANGES;
        "trivial/<predictor>" for predicting the mean frame of the batch, of the view, or of the
        video.
        """
        state = generator.get_state()
        losses = {
            name: loss.item()
            for name, loss in self(clips, generator).items()
            if name in ("self", "cross")
        }
        if "cross" in losses:
            for name, change in CONTEXT_CHANGES.items():
                losses[f"cross/{name}"] = self(clips, generator.set_state(state), change)[
                    "cross"
                ].item()
        # (B, 1, width) mean frame of each video.
        means = [masked_mean(view.features, ~view.padding) for view in clips]
        predictions = {
            "constant": [torch.stack(means).mean(dim=(0, 1))] * len(means),
            "view": [mean.mean(dim=0) for mean in means],
            "video": means,
        }
        for name, predicted in predictions.items():
            losses[f"trivial/{name}"] = sum(
                (view.features - mean).square().mean().item()
                for view, mean in zip(clips, predicted, strict=True)
            )
        return losses

    def embed(self, features: Features) -> Tensor:
        z = self.encoder.embed(self.prepare(features))
        return z if self.bottleneck is None else F.normalize(z, dim=-1)


class CrossViewBottleneck(nn.Module):
    """Decoder that reaches the other view only through attention between latents.

    The view and the mean features of the clip tell the decoder what the camera sees on average, so
    the retrieved latents only have to tell how far the action has progressed.

    Args:
        width: Width of the features.
        latent: Width of the latents.
        prior: Standard deviation, in normalized time, of the prior on corresponding frames.
    """

    def __init__(self, width: int, latent: int, prior: float) -> None:
        super().__init__()
        self.prior = prior
        self.view = nn.Parameter(torch.empty(2, latent))
        self.appearance = nn.Linear(width, latent)
        self.head = nn.Sequential(
            nn.LayerNorm(latent),
            nn.Linear(latent, 2 * latent),
            nn.GELU(),
            nn.Linear(2 * latent, width),
        )
        self.apply(initialize)
        nn.init.normal_(self.view, std=0.02)

    def forward(
        self, clips: Batch, latents: Sequence[Tensor], contexts: Sequence[Tensor]
    ) -> list[Tensor]:
        """Reconstruct the features (B, T, width) of both views.

        Args:
            clips: Clips of the ego and the exo view.
            latents: Latents (B, T, D) of each view, from which the queries are computed.
            contexts: Latents (B, T, D) of each view, which the other view retrieves; normally the
                same.
        """
        reconstructed = []
        for own, other in ((0, 1), (1, 0)):
            retrieved = retrieve(
                latents[own],
                contexts[other],
                clips[own].normalized_time,
                clips[other].normalized_time,
                clips[other].padding,
                self.prior,
            )
            mean = masked_mean(clips[own].features, ~clips[own].padding)  # (B, 1, width)
            reconstructed.append(self.head(retrieved + self.view[own] + self.appearance(mean)))
        return reconstructed


@full_precision
def retrieve(
    queries: Tensor,
    keys: Tensor,
    query_times: Tensor,
    key_times: Tensor,
    padding: Tensor,
    prior: float,
) -> Tensor:
    """Average the unit latents of the other view, weighted by similarity and by a prior on
    normalized time.

    For frame i of one view and frames j of the other,

        r_i = sqrt(D) Σ_j a_ij z_j,   a_ij = softmax_j(z_i·z_j / 0.1 - (s_i - s_j)² / (2 prior²)).

    Without the prior, a reversed matching would be as good as the correct one.

    Shapes: latents (B, T, D) and (B, S, D), normalized times s (B, T) and (B, S), padding (B, S),
    result (B, T, D).
    """
    queries = F.normalize(queries, dim=-1)
    keys = F.normalize(keys, dim=-1)
    apart = query_times[:, :, None] - key_times[:, None]  # (B, T, S)
    logits = queries @ keys.mT / TEMPERATURE - apart.square() / (2 * prior**2)
    weights = logits.masked_fill(padding[:, None], -torch.inf).softmax(dim=-1)
    retrieved: Tensor = weights @ keys * keys.shape[-1] ** 0.5
    return retrieved


def masked_mean(values: Tensor, counted: Tensor) -> Tensor:
    """Return the mean (B, 1, D) over the counted frames of values (B, T, D)."""
    weights = counted[..., None].to(values.dtype)
    return (values * weights).sum(dim=1, keepdim=True) / weights.sum(dim=1, keepdim=True)


@full_precision  # bfloat16 is too coarse for frame indices
def cycle_loss(
    home: Tensor,
    home_padding: Tensor,
    away: Tensor,
    away_padding: Tensor,
    order_prior: float | None = None,
) -> Tensor:
    """Temporal cycle-consistency loss, after Dwibedi et al. (CVPR 2019): regression with a variance
    penalty.

    Each frame's soft nearest neighbor in the other clip is matched back to the first clip. If the
    index of the match has mean mu and variance var, the loss of frame t of T is ((mu - t)² / (var +
    1) + 0.1 log(var + 1)) / T. `order_prior` is the standard deviation, in normalized time, of a
    Gaussian that weights the forward match. Without it, an alignment that reverses time is as
    consistent as one that preserves it.

    Shapes: latents (B, T, D) and (B, S, D), padding (B, T) and (B, S). Padded frames are never
    matched and have no loss.
    """
    home = F.normalize(home, dim=-1)
    away = F.normalize(away, dim=-1)
    similarity = home @ away.mT / TEMPERATURE  # (B, T, S)
    if order_prior is not None:
        apart = normalized_rank(home_padding)[..., None] - normalized_rank(away_padding)[:, None]
        similarity = similarity - apart.square() / (2 * order_prior**2)
    neighbors = hide_padding(similarity, away_padding).softmax(dim=-1) @ away  # (B, T, D)
    # (B, T, T).
    returns = hide_padding(neighbors @ home.mT / TEMPERATURE, home_padding).softmax(dim=-1)
    index = torch.arange(home.shape[1], dtype=home.dtype, device=home.device)
    mean = returns @ index  # (B, T)
    variance = (returns * (index - mean[..., None]).square()).sum(dim=-1)
    cost = (mean - index).square() / (variance + 1) + 0.1 * torch.log1p(variance)
    counts = (~home_padding).sum(dim=-1)  # (B,)
    return ((cost * ~home_padding).sum(dim=-1) / counts.square()).mean()


def normalized_rank(padding: Tensor) -> Tensor:
    """Return the ranks of the sampled frames (B, T), from 0 for the first to 1 for the last."""
    index = torch.arange(padding.shape[1], dtype=torch.float32, device=padding.device)
    return index / ((~padding).sum(dim=-1, keepdim=True) - 1).clamp(min=1)
