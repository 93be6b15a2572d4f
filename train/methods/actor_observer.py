"""Actor and observer: an exo frame is nearer to the ego frame of its moment than to an ego frame of another.

After Sigurdsson et al., "Actor and Observer: Joint Modeling of First and Third-Person Videos" (CVPR 2018).
Not every frame can be told from others of its video; so heads say how much each triplet is to count beside the others.
"""

from collections.abc import Sequence
from math import log
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from byov.train.baseline_settings import ActorObserverSettings
from byov.train.feature_store import CachedVideo
from byov.train.methods.base import BackboneMethod, Losses
from byov.train.padded_frames import mean_of_items, wide
from byov.train.sampling import Batch, Cut, Draw, Sampler, at_share, draw_rows, paired

SMALL = 1e-5  # added to sums and norms that are divided by: published code


class ActorObserver(BackboneMethod):
    """Triplets of an exo frame, the ego frame at the same share of the other recording, and one far from it."""

    settings: ActorObserverSettings

    def __init__(self, width: int, settings: ActorObserverSettings, training: dict[str, Any] | None = None) -> None:
        super().__init__(width, settings, training)
        self.heads = Heads(settings.latent) if settings.weighted else None
        self.means = RunningMeans(0)

    @property
    def needs_whole_steps(self) -> str | None:
        if self.settings.weighted:
            return "its weights are measured by all triplets of a step together (--no-weighted does without them)"
        return super().needs_whole_steps

    def memory(self) -> dict[str, Tensor]:
        return self.means.tensors() if self.settings.weighted else {}

    def sampler(self, videos: Sequence[CachedVideo]) -> Sampler:
        s = self.settings
        pick = paired(videos, "actor-observer compares such two")
        self.means = RunningMeans(len(videos), per_video=s.means == "video", decay=s.decay)
        return self.sampled(videos, pick, triplets(s.frames, s.every, s.far))

    def forward(self, clips: Batch, random: torch.Generator) -> Losses:
        z = self.backbone(clips, random)
        if self.heads is None:
            each = triplet_losses(*(latents.flatten(0, 1) for latents in z)).view_as(clips[0].index)
            return {"loss": mean_of_items(each, ~clips[0].repeated)}
        counted = ~clips[0].repeated
        exo, positive, negative = (latents[counted] for latents in z)
        videos = clips[0].video[:, None].expand_as(counted)[counted]
        loss, _ = weighted_loss(exo, positive, negative, self.heads(exo, positive, negative), videos, self.means)
        return {"loss": loss}


def triplets(frames: int, every: int, far: float) -> Cut:
    """Exo frames, every so many; the ego frames at the same shares; and ego frames further from these than `far`."""

    def cut(videos: Sequence[CachedVideo], random: np.random.Generator) -> list[Draw]:
        ego, exo = videos
        choices = -(-exo.frames // every)
        rows = draw_rows(choices, frames, random) * every
        beside = at_share(rows, exo, ego)
        others = np.array([_far_from(row, ego.frames, far, random) for row in beside])
        drawn = min(choices, frames)
        return [Draw(video, 0, video.frames, own, drawn) for video, own in ((exo, rows), (ego, beside), (ego, others))]

    return cut


def _far_from(row: int, frames: int, far: float, random: np.random.Generator) -> int:
    """A frame that is further from `row` than a share of all; of a very short video the furthest."""
    apart = np.abs(np.arange(frames) - row)
    choices = np.flatnonzero(apart > far * frames)
    return int(random.choice(choices)) if len(choices) else int(apart.argmax())


def triplet_losses(exo: Tensor, positive: Tensor, negative: Tensor, *, margin: float | None = None) -> Tensor:
    """(n, D) embeddings of exo frames y and of ego frames of the same moment, x, and of another, z → (n,) losses.

    softplus(d+ - d-), d+ = |x - y| and d- = |y - z|; with a margin, max(0, d+ - d- + margin).
    """
    with torch.autocast(exo.device.type, enabled=False):
        return _compared(*_distances(exo, positive, negative), margin)


def weighted_loss(
    exo: Tensor,
    positive: Tensor,
    negative: Tensor,
    scores: Tensor,
    videos: Tensor,
    means: "RunningMeans",
    *,
    margin: float | None = None,
) -> tuple[Tensor, Tensor]:
    """The same triplets, (3, n) scores h of their frames, (n,) numbers of their videos → a sum, and (n,) their weights.

    sum_i (l_i - k) w_i n / (sum_j w_j + 1e-5), where l are the triplets' losses and w the product of their three
    e^(h - c). c and k are the running means of h and of l, after this batch, and have no gradient. The gradients that
    arrive at d- and at the three e^(h - c) are made as long as the one at d+. The sum may be negative.
    """
    with torch.autocast(exo.device.type, enabled=False):
        near, far = _distances(exo, positive, negative)
        ratios = (scores - means.of_scores(scores, videos)).exp()  # (3, n)
        near, far, x, y, z = equal_gradients(near, far, *ratios)
        losses, weights = _compared(near, far, margin), x * y * z
        usual = means.of_losses(losses, weights, videos)
        return ((losses - usual) * weights).sum() * len(weights) / (weights.sum() + SMALL), weights


class Heads(nn.Module):
    """What says how much a frame is to count: h = e^s tanh(w·f + b).

    Ego frames, of a positive and of a negative, share w and b; each of the three has its own s.
    """

    def __init__(self, latent: int) -> None:
        super().__init__()
        self.ego = nn.Linear(latent, 1)
        self.exo = nn.Linear(latent, 1)
        self.scales = nn.Parameter(torch.full((3,), log(0.5)))  # s; published code

    def forward(self, exo: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
        """(n, D) embeddings of triplets → (3, n) h of the positive, of the exo frame and of the negative."""
        with torch.autocast(exo.device.type, enabled=False):
            pairs = ((self.ego, positive), (self.exo, exo), (self.ego, negative))
            found = torch.cat([head(frames.to(self.scales.dtype)) for head, frames in pairs], dim=1)  # (n, 3)
            return (self.scales.exp() * found.tanh()).T


class RunningMeans(nn.Module):
    """What is usual: for each video the mean e^h of each head, as a logarithm c, and the weighted mean k of the losses.

    One triplet after another, in the order of the batch, and read after the last of them:
    c ← log(decay e^c + (1 - decay) e^h), and k = S / W of S ← loss_decay S + (1 - loss_decay) w l and
    W ← loss_decay W + (1 - loss_decay) w. The first triplet's h, w l and w are taken as they are. k: one for all
    videos, or one per video. Outside of training the means are what they would be, and the state stays as it was.

    The state is no part of the state dict, since its size depends on the training videos; see `tensors`.
    """

    scores: Tensor  # (3, videos) c; minus infinity: not seen yet
    losses: Tensor  # (videos,) or (1,) S
    weights: Tensor  # likewise, W; 0: not seen yet

    def __init__(self, videos: int, *, per_video: bool = False, decay: float = 0.95, loss_decay: float = 0.9) -> None:
        super().__init__()
        self.per_video, self.decay, self.loss_decay = per_video, decay, loss_decay
        self.register_buffer("scores", torch.full((3, videos), -torch.inf), persistent=False)
        for name in ("losses", "weights"):
            self.register_buffer(name, torch.zeros(videos if per_video else 1), persistent=False)

    def tensors(self) -> dict[str, Tensor]:
        """The state itself: to be saved, and to copy a saved one into."""
        return dict(self.named_buffers())

    @torch.no_grad()
    def of_scores(self, scores: Tensor, videos: Tensor) -> Tensor:
        """(3, n) h, (n,) numbers of the triplets' videos → (3, n) c."""
        before = self.scores[:, videos]
        shares, kept, last = _shares(videos, before[0] > -torch.inf, self.decay, before.dtype)
        added = (scores[:, None] + shares.log()).logsumexp(dim=-1)
        after = torch.logaddexp(before + kept.log(), added)
        self._keep(self.scores, after, videos, last)
        return after

    @torch.no_grad()
    def of_losses(self, losses: Tensor, weights: Tensor, videos: Tensor) -> Tensor:
        """(n,) losses l and weights w of triplets, numbers of their videos → (n,) k."""
        groups = videos if self.per_video else torch.zeros_like(videos)
        before = self.weights[groups]
        shares, kept, last = _shares(groups, before > 0, self.loss_decay, before.dtype)
        shares = shares * weights
        all_weights = kept * before + shares.sum(dim=1)
        all_losses = kept * self.losses[groups] + (shares * losses).sum(dim=1)
        self._keep(self.weights, all_weights, groups, last)
        self._keep(self.losses, all_losses, groups, last)
        return all_losses / all_weights

    def _keep(self, state: Tensor, after: Tensor, videos: Tensor, last: Tensor) -> None:
        if self.training:
            state[..., videos[last]] = after[..., last].to(state.dtype)


def equal_gradients(first: Tensor, *others: Tensor) -> tuple[Tensor, ...]:
    """All as they are; in the backward pass the others' gradients are made as long as the first's."""
    equal: tuple[Tensor, ...] = _EqualGradients.apply(first, *others)  # type: ignore[no-untyped-call]
    return equal


class _EqualGradients(torch.autograd.Function):
    @staticmethod
    def forward(_: Any, *tensors: Tensor) -> tuple[Tensor, ...]:
        return tuple(tensor.view_as(tensor) for tensor in tensors)

    @staticmethod
    def backward(_: Any, first: Tensor, *others: Tensor) -> tuple[Tensor, ...]:
        length = first.norm() + SMALL
        return first, *(other * (length / (other.norm() + SMALL)) for other in others)


def _distances(exo: Tensor, positive: Tensor, negative: Tensor) -> tuple[Tensor, Tensor]:
    """(n,) d+ and d-, in float32 or wider; 1e-6 is added to each difference, as published."""
    x, y, z = wide(positive), wide(exo), wide(negative)
    return F.pairwise_distance(x, y, eps=1e-6), F.pairwise_distance(y, z, eps=1e-6)


def _compared(near: Tensor, far: Tensor, margin: float | None) -> Tensor:
    apart = near - far
    return torch.logaddexp(apart, torch.zeros_like(apart)) if margin is None else F.relu(apart + margin)


def _shares(videos: Tensor, seen: Tensor, decay: float, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """What a running mean of each video consists of after a batch: all updates, one after another, at once.

    (n,) the video of each triplet, and if it has been seen → (n, n) the share of triplet j in the mean of triplet i's
    video, (n,) the share of what was there before, (n,) if the triplet is the last of its video.
    """
    same = videos[:, None] == videos  # (n, n)
    count, later = same.sum(dim=1), same.triu(1).sum(dim=1)
    base = torch.tensor(decay, dtype=dtype, device=videos.device)
    share = torch.where(seen | (later < count - 1), 1 - base, 1) * base**later  # (n,) the first one counts in full
    return same * share, base**count, later == 0
