"""ActorObserverNet (Sigurdsson et al., CVPR 2018): pull exo frames toward ego frames of the same
moment.

Some frames cannot be distinguished from others in the same video, so learned scores weight the
triplets.
"""

from collections.abc import Sequence
from math import log
from typing import Any, ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from byov.train.config import Fraction
from byov.train.feature_store import CachedVideo
from byov.train.methods.base import (
    BackboneMethod,
    BackboneMethodConfig,
    Losses,
    ReadFeatures,
    mean_over_items,
)
from byov.train.networks import full_precision
from byov.train.sampling import Batch, Draw, Sampler, draw_rows, pick_synchronized, same_time_frames

SMALL = 1e-5  # added to denominators, as in the published code
LOSS_DECAY = 0.9  # decay of the running mean of the losses, as in the published code


class ActorObserverConfig(BackboneMethodConfig):
    """ActorObserverNet options. Defaults are from the published code unless noted."""

    summary = "ActorObserverNet's triplet loss; needs synchronized video pairs."
    table_name = "ActorObserverNet"

    name: Literal["actor-observer"] = "actor-observer"
    weighted: bool = Field(True, description="Weight triplets by learned scores.")
    # our choice; the published code uses 10 s, which is 0.3 of an average Charades-Ego video
    far: Fraction = Field(
        0.3, description="Minimum distance of a negative, as a fraction of the ego video."
    )

    VARIANTS: ClassVar[dict[str, dict[Any, str]]] = {"weighted": {False: "unweighted"}}
    NO_CROP = "actor-observer compares whole videos"


class ActorObserver(BackboneMethod):
    """Triplet loss on an exo frame, the ego frame at the same normalized time, and a distant ego
    frame.

    Args:
        width: Width of the input features.
        latent: Width of the embeddings.
        weighted: Whether to weight triplets by learned scores.
        far: Minimum distance of a negative, as a fraction of the ego video.
        **options: Arguments of `BackboneMethod`.
    """

    config_class = ActorObserverConfig

    def __init__(
        self, width: int, *, latent: int, weighted: bool, far: float, **options: Any
    ) -> None:
        super().__init__(width, latent=latent, **options)
        self.far = far
        self.heads = ScoreHeads(latent) if weighted else None
        if weighted:
            self.needs_whole_batch = (
                "its triplet weights depend on the whole batch (unless --no-weighted)"
            )
        self.means = RunningMeans(0)

    def start_training(
        self, videos: Sequence[CachedVideo], read: ReadFeatures, seed: int = 0
    ) -> None:
        super().start_training(videos, read, seed)
        self.means = RunningMeans(len(videos))

    def training_state(self) -> dict[str, Tensor]:
        return {} if self.heads is None else dict(self.means.named_buffers())

    def sampler(self, videos: Sequence[CachedVideo]) -> Sampler:
        pick = pick_synchronized(videos, "actor-observer needs them")
        return Sampler(
            videos,
            lambda rng: draw_triplets(*pick(rng), self.frames, self.far, rng),
            self.backbone.context,
        )

    def forward(self, clips: Batch, generator: torch.Generator) -> Losses:
        z = self.backbone(clips, generator)
        counted = ~clips[0].padding
        if self.heads is None:
            losses = triplet_losses(*(latents.flatten(0, 1) for latents in z)).view_as(counted)
            return {"loss": mean_over_items(losses, counted)}
        exo, positive, negative = (latents[counted] for latents in z)
        videos = clips[0].video[:, None].expand_as(counted)[counted]
        scores = self.heads(exo, positive, negative)
        return {"loss": weighted_triplet_loss(exo, positive, negative, scores, videos, self.means)}


def draw_triplets(
    ego: CachedVideo, exo: CachedVideo, frames: int, far: float, rng: np.random.Generator
) -> list[Draw]:
    """Draw exo frames, the ego frames at the same normalized times, and distant ego frames as
    negatives.

    A negative is more than the fraction `far` of the video away from the positive, or as far away
    as possible.
    """
    choices = -(-exo.frames // 4)
    rows = 4 * draw_rows(choices, frames, rng)  # stride of the published code
    positives = same_time_frames(rows, exo, ego)
    negatives = []
    for row in positives:
        apart = np.abs(np.arange(ego.frames) - row)
        far_rows = np.flatnonzero(apart > far * ego.frames)
        negatives.append(rng.choice(far_rows) if len(far_rows) else apart.argmax())
    clips = ((exo, rows), (ego, positives), (ego, np.array(negatives)))
    return [
        Draw(video, 0, video.frames, video_rows, min(choices, frames))
        for video, video_rows in clips
    ]


@full_precision
def triplet_losses(exo: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
    """Compute softplus(‖x - y‖ - ‖y - z‖), (n,), for exo frames y, positives x and negatives z,
    each (n, D).
    """
    return _softplus(F.pairwise_distance(positive, exo) - F.pairwise_distance(exo, negative))


@full_precision
def weighted_triplet_loss(
    exo: Tensor,
    positive: Tensor,
    negative: Tensor,
    scores: Tensor,
    videos: Tensor,
    means: "RunningMeans",
) -> Tensor:
    """Compute the weighted sum of triplet losses l_i relative to their running mean, which may be
    negative.

    The loss is Σ_i (l_i - k) w_i n / (Σ_j w_j + 1e-5), where w_i is the product of the triplet's
    three ratios e^(h - c), and c and k are the running means of h and l after this batch, without
    gradients. In the backward pass, the gradients of the ratios and of the distance ‖y - z‖ are
    rescaled to the gradient norm of the distance ‖x - y‖.

    Shapes: embeddings (n, D), scores h of positives, exo frames and negatives (3, n), video indices
    (n,).
    """
    ratios = (scores - means.update_scores(scores, videos)).exp()  # (3, n)
    distances = F.pairwise_distance(positive, exo), F.pairwise_distance(exo, negative)
    near, far, x, y, z = _EqualizeGradients.apply(*distances, *ratios)  # type: ignore[no-untyped-call]
    weights: Tensor = x * y * z
    losses = _softplus(near - far)
    mean = means.update_losses(losses, weights)
    return ((losses - mean) * weights).sum() * len(weights) / (weights.sum() + SMALL)


class ScoreHeads(nn.Module):
    """Heads that compute scores h = e^s tanh(w·f + b), with w and b per view, s per role (positive,
    exo, negative).
    """

    def __init__(self, latent: int) -> None:
        super().__init__()
        self.ego = nn.Linear(latent, 1)
        self.exo = nn.Linear(latent, 1)
        # Log-scales s of the three roles, initialized as in the published code.
        self.scales = nn.Parameter(torch.full((3,), log(0.5)))

    def forward(self, exo: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
        """Compute scores (3, n) of the positives, exo frames and negatives from their embeddings
        (n, D).
        """
        with torch.autocast(exo.device.type, enabled=False):
            pairs = ((self.ego, positive), (self.exo, exo), (self.ego, negative))
            # (n, 3).
            outputs = torch.cat(
                [head(frames.to(self.scales.dtype)) for head, frames in pairs], dim=1
            )
            return (self.scales.exp() * outputs.tanh()).T


class RunningMeans(nn.Module):
    """Running means of the scores of each video, and of the losses.

    The triplets of a batch are added in order, and the means after the last one are returned: c <-
    log(decay e^c + (1 - decay) e^h), and k = S / W with S <- 0.9 S + 0.1 w l and W <- 0.9 W + 0.1
    w. The first triplet initializes the means. In eval mode, the state is not updated.

    The buffers are not part of the state dict, since their size depends on the training videos.
    """

    def __init__(self, videos: int, decay: float = 0.95) -> None:  # decay from the published code
        super().__init__()
        self.decay = decay
        # Running means c; -inf before the first update.
        self.scores = nn.Buffer(torch.full((3, videos), -torch.inf), persistent=False)
        self.losses = nn.Buffer(torch.zeros(1), persistent=False)  # running sum S
        self.weights = nn.Buffer(torch.zeros(1), persistent=False)  # running sum W

    @torch.no_grad()
    def update_scores(self, scores: Tensor, videos: Tensor) -> Tensor:
        """Add scores h, (3, n), of the videos with indices (n,); return the means c of these
        videos, (3, n).
        """
        before = self.scores[:, videos]
        fractions, kept, last = _update_fractions(
            videos, before[0] > -torch.inf, self.decay, before.dtype
        )
        added = (scores[:, None] + fractions.log()).logsumexp(dim=-1)
        after = torch.logaddexp(before + kept.log(), added)
        self._store(self.scores, after, videos, last)
        return after

    @torch.no_grad()
    def update_losses(self, losses: Tensor, weights: Tensor) -> Tensor:
        """Add losses l, (n,), with weights w, (n,); return the mean k, repeated n times."""
        same = torch.zeros_like(losses, dtype=torch.int64)
        before = self.weights[same]
        fractions, kept, last = _update_fractions(same, before > 0, LOSS_DECAY, before.dtype)
        fractions = fractions * weights
        all_weights = kept * before + fractions.sum(dim=1)
        all_losses = kept * self.losses[same] + (fractions * losses).sum(dim=1)
        self._store(self.weights, all_weights, same, last)
        self._store(self.losses, all_losses, same, last)
        return all_losses / all_weights

    def _store(self, state: Tensor, after: Tensor, videos: Tensor, last: Tensor) -> None:
        if self.training:
            state[..., videos[last]] = after[..., last].to(state.dtype)


class _EqualizeGradients(torch.autograd.Function):
    """Identity function whose backward pass rescales all other gradients to the norm of the first
    gradient.
    """

    @staticmethod
    def forward(_: Any, *tensors: Tensor) -> tuple[Tensor, ...]:
        return tuple(tensor.view_as(tensor) for tensor in tensors)

    @staticmethod
    def backward(_: Any, first: Tensor, *others: Tensor) -> tuple[Tensor, ...]:
        norm = first.norm() + SMALL
        return first, *(other * (norm / (other.norm() + SMALL)) for other in others)


def _softplus(values: Tensor) -> Tensor:
    return torch.logaddexp(values, torch.zeros_like(values))


def _update_fractions(
    videos: Tensor, seen: Tensor, decay: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """Return weights that add all triplets to the running means at once, as if they were added one
    by one.

    `videos` and `seen` are (n,). Returns the weight of triplet j in the mean of triplet i's video
    (n, n), the weight of the previous mean (n,), and whether a triplet is the last one of its video
    (n,).
    """
    same = videos[:, None] == videos  # (n, n)
    count = same.sum(dim=1)
    later = same.triu(1).sum(dim=1)
    base = torch.tensor(decay, dtype=dtype, device=videos.device)
    # A first triplet is not scaled.
    fraction = torch.where(seen | (later < count - 1), 1 - base, 1) * base**later
    return same * fraction, base**count, later == 0
