"""Time-contrastive networks: frames of the same moment are alike, frames of other moments are not.

After Sermanet et al., "Time-Contrastive Networks: Self-Supervised Learning from Video" (ICRA 2018).
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from byov.train.baseline_settings import TcnSettings
from byov.train.feature_store import CachedVideo
from byov.train.methods.base import BackboneMethod, Losses
from byov.train.padded_frames import hide, mean_of_items, wide
from byov.train.sampling import (
    Batch,
    Cut,
    Draw,
    Sampler,
    at_share,
    draw_rows,
    ego_with_exo,
    interval,
    one,
    paired,
    part,
)
from byov.train.settings import LARGEST


class Tcn(BackboneMethod):
    """A frame finds its positive among those of the other pairs of its videos."""

    settings: TcnSettings

    @property
    def unit(self) -> bool:
        return self.settings.tcn_loss == "triplet"

    def sampler(self, videos: Sequence[CachedVideo]) -> Sampler:
        s = self.settings
        if s.tcn == "multi":
            pick = paired(videos, "--tcn multi compares the same instant in both (--tcn unpaired does without)")
            return self.sampled(videos, pick, same_shares(s.frames, s.span))
        if s.tcn == "unpaired":
            pick = ego_with_exo(videos, "--tcn unpaired compares the same share of an ego and an exo video")
            return self.sampled(videos, pick, same_shares(s.frames, LARGEST))
        cut = just_before(s.frames, s.crop, s.window) if s.tcn_loss == "npairs" else consecutive(s.frames, s.crop)
        return self.sampled(videos, one(videos), cut)

    def forward(self, clips: Batch, random: torch.Generator) -> Losses:
        z = self.backbone(clips, random)
        return {"loss": self.pairs(clips, z, random) if self.settings.tcn_loss == "npairs" else self.triplets(clips, z)}

    def pairs(self, clips: Batch, z: Sequence[Tensor], random: torch.Generator) -> Tensor:
        """Which view is the anchor's is drawn for each pair; of one video the later frame is."""
        (anchors, positives), moments = z, None
        if self.settings.tcn != "single":
            moments = clips[1].index
            swapped = (clips[0].rand(clips[0].sampled, random=random) < 0.5)[..., None]
            anchors, positives = torch.where(swapped, positives, anchors), torch.where(swapped, anchors, positives)
        weight = self.settings.regularization
        return npairs(anchors, positives, clips[0].repeated, regularization=weight, labels=moments)

    def triplets(self, clips: Batch, z: Sequence[Tensor]) -> Tensor:
        """Within one video by the distance in time; of two views what shows one exo frame is positive, all else not.

        A short exo video has one frame for several ego frames: to these it is one moment.
        """
        s, padding = self.settings, torch.cat([clip.repeated for clip in clips], dim=1)
        if s.tcn == "single":
            moments, radii = clips[0].frame, (s.positive_radius, s.negative_radius)
        else:
            moments, radii = clips[1].index.repeat(1, 2), (0, 0)
        positive, negative = near_and_far(moments, positive_radius=radii[0], negative_radius=radii[1])
        unit = F.normalize(wide(torch.cat(list(z), dim=1)), dim=-1)
        return semi_hard_triplets(unit, positive, negative, padding, margin=s.margin)


def just_before(frames: int, crop: tuple[float, float], window: int) -> Cut:
    """Frames of one video, and for each one of the `window` frames before it, or the clip's first."""
    anchors_of = part(frames, crop)

    def cut(videos: Sequence[CachedVideo], random: np.random.Generator) -> list[Draw]:
        (anchors,) = anchors_of(videos, random)
        earlier = anchors.rows - random.integers(1, window + 1, len(anchors.rows))
        return [anchors, replace(anchors, rows=np.maximum(earlier, 0))]

    return cut


def consecutive(frames: int, crop: tuple[float, float]) -> Cut:
    """Neighboring frames of one video."""

    def cut(videos: Sequence[CachedVideo], random: np.random.Generator) -> list[Draw]:
        (video,) = videos
        first, end = interval(video, crop, random)
        start = int(random.integers(max(1, end - first - frames + 1)))
        rows = np.minimum(start + np.arange(frames), end - first - 1)
        return [Draw(video, first, end, rows, min(frames, end - first))]

    return cut


def same_shares(frames: int, span: int) -> Cut:
    """Ego frames that lie within `span`, and the exo frames that stand at the same share of their video.

    Of videos that were filmed at once these are the same instants; of two takes of one script as near as can be.
    """

    def cut(videos: Sequence[CachedVideo], random: np.random.Generator) -> list[Draw]:
        ego, exo = videos
        within = min(ego.frames, span)
        start, drawn = int(random.integers(ego.frames - within + 1)), min(within, frames)
        chosen = start + np.concatenate([[0, within - 1], draw_rows(within, frames, random)])
        first, last, *rows = at_share(chosen, ego, exo)
        return [
            Draw(ego, start, start + within, chosen[2:] - start, drawn),
            Draw(exo, first, last + 1, np.array(rows) - first, drawn),
        ]

    return cut


def npairs(
    anchors: Tensor,
    positives: Tensor,
    padding: Tensor,
    *,
    regularization: float = 0.002,
    labels: Tensor | None = None,
) -> Tensor:
    """(B, n, D) anchors x and positives y of n pairs → the cross-entropy of finding each anchor's own positive.

    mean_i CE(softmax_j x_i·y_j, i) + regularization / 4 (mean_i |x_i|² + mean_i |y_i|²), of each item, whose other
    positives are the negatives; then the mean over the items. labels, (B, n): pairs of the same label show the same
    moment and share the target equally. Padding, (B, n), True: neither an i nor a j, and without a gradient.
    """
    with torch.autocast(anchors.device.type, enabled=False):
        x, y = (wide(side).masked_fill(padding[..., None], 0) for side in (anchors, positives))
        found = hide(x @ y.mT, padding).log_softmax(dim=-1)  # (B, n, n)
        if labels is None:
            own = found.diagonal(dim1=1, dim2=2)  # (B, n)
        else:
            shared = (labels[:, :, None] == labels[:, None]) & ~padding[:, None]
            own = (found * shared).sum(dim=-1) / shared.sum(dim=-1).clamp(min=1)
        lengths = x.square().sum(dim=-1) + y.square().sum(dim=-1)
        return mean_of_items(regularization / 4 * lengths - own, ~padding)


def near_and_far(
    timesteps: Tensor, sequences: Tensor | None = None, *, positive_radius: int = 6, negative_radius: int = 12
) -> tuple[Tensor, Tensor]:
    """(B, n) the time and the sequence of each frame → two (B, n, n) tables: which pairs are positive, which negative.

    Positive: two frames of one sequence, at most positive_radius apart. Negative: more than negative_radius apart, or
    of two sequences. Several views of one sequence: all their frames beside each other, and both radii 0. The radii:
    those of the published single-view settings.
    """
    apart = (timesteps[:, :, None] - timesteps[:, None]).abs()  # (B, n, n)
    same = torch.ones_like(apart, dtype=torch.bool)
    if sequences is not None:
        same = sequences[:, :, None] == sequences[:, None]
    itself = torch.eye(timesteps.shape[1], dtype=torch.bool, device=timesteps.device)
    return same & (apart <= positive_radius) & ~itself, ~same | (apart > negative_radius)


def semi_hard_triplets(
    embeddings: Tensor, positive: Tensor, negative: Tensor, padding: Tensor, *, margin: float = 0.2
) -> Tensor:
    """(B, n, D) unit vectors, (B, n, n) which of their pairs are positive and negative → the mean cost of a triplet.

    d_ij = |z_i - z_j|². For each ordered positive pair (i, j): max(0, margin + d_ij - d_ik), where k is the nearest of
    i's negatives that are further from i than j is, or if there is none the furthest of them. The mean over the
    positive pairs whose i has a negative (where no pair has one: 0), then over the items. Padding, (B, n), True: in no
    pair.
    """
    with torch.autocast(embeddings.device.type, enabled=False):
        z = wide(embeddings).masked_fill(padding[..., None], 0)
        squares = z.square().sum(dim=-1)
        distances = squares[:, :, None] + squares[:, None] - 2 * z @ z.mT  # (B, n, n)
        left_out = padding[:, :, None] | padding[:, None]
        negative = negative & ~left_out
        count = negative.sum(dim=-1, keepdim=True)  # (B, n, 1)
        counted = positive & ~left_out & (count > 0)
        ordered, _ = distances.masked_fill(~negative, torch.inf).sort(dim=-1)
        further = torch.searchsorted(ordered.detach(), distances.detach(), right=True)
        nearest = ordered.gather(-1, further.minimum((count - 1).clamp(min=0)))
        return mean_of_items(F.relu(margin + distances - nearest), counted)
