"""Progress labels: estimates of how far the action has advanced in each training frame, without
annotations.

The videos of a view are aligned with each other by soft DTW on their features. The progress of a
frame is the mean normalized time of the frames matched with it in all videos of the view, including
its own. The same event therefore has about the same progress in all videos, regardless of pauses
and speed. Where the alignment is uninformative, progress falls back to normalized time. At first,
views are not aligned with each other, because their frozen features are too different; an event is
assumed to have about the same mean progress in both.

Frozen features also differ between the cameras of one view. The alignment is therefore refined: a
linear discriminant analysis with progress as the class finds directions in which frames with the
same progress are alike in all videos, and the videos are aligned again along these directions,
within each view and then across both. The directions for a video are computed without it;
otherwise, they would reproduce the errors of its own labels.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from byov.cache.features import standardize
from byov.train.soft_dtw import path_probabilities

VideoT = TypeVar("VideoT")

# All values were chosen on the val and train splits of simulated datasets.
STEPS = 64  # number of frames in resampled videos
COMPONENTS = 16  # number of principal components in the first alignment
SMOOTHING = 2.0  # standard deviation of the Gaussian filter, in frames
GAMMA = 0.1  # smoothing parameter of soft DTW
MAX_REFERENCES = 64  # maximum number of videos that each video is aligned with
ROUNDS = 2  # number of refinements within each view
JOINT_ROUNDS = 4  # number of refinements with both views
FOLDS = 4  # groups of videos that are left out in turn
MORE_COMPONENTS = 128  # number of principal components in the discriminant analysis
DISCRIMINANTS = 8  # number of discriminant directions
CLASSES = 20  # number of intervals of progress
SMALLEST_VARIANCE = 1e-6  # avoids a singular covariance
SHRINKAGE = 0.5  # weight of a multiple of the identity in the covariance within classes


def aligned_progress(
    videos: Sequence[VideoT],
    views: Sequence[str],
    read: Callable[[VideoT], NDArray[np.floating]],
    seed: int = 0,
) -> list[Tensor]:
    """Compute progress labels for training videos.

    Args:
        videos: Training videos.
        views: View of each video.
        read: Function that returns the (T, width) features of a video; called up to twice per video
            to save memory.
        seed: Seed for drawing the reference videos if a view has more than MAX_REFERENCES videos.

    Returns:
        Non-decreasing (T,) labels from 0 to 1 for each video. A single video is labeled with
        normalized time.
    """
    groups = [[i for i, own in enumerate(views) if own == view] for view in dict.fromkeys(views)]
    references = [_draw_references(group, seed) for group in groups]
    covariance = sum(_covariance([smooth(read(videos[i]))]) for group in references for i in group)
    axes = _principal_axes(torch.as_tensor(covariance), MORE_COMPONENTS)
    inputs = [smooth(read(video)) @ axes for video in videos]

    labels = [torch.linspace(0, 1, len(x)) for x in inputs]
    for group, chosen in zip(groups, references, strict=True):
        axes = _principal_axes(_covariance([inputs[i] for i in chosen]), COMPONENTS)
        sequences = _resample_all([x @ axes for x in inputs])
        for i in group:
            labels[i] = _align(sequences, i, chosen, len(inputs[i]))
        _refine(labels, inputs, group, chosen, ROUNDS)
    if len(groups) > 1:
        _refine(labels, inputs, range(len(videos)), sorted(chain(*references)), JOINT_ROUNDS)
    return labels


def _draw_references(group: Sequence[int], seed: int) -> list[int]:
    if len(group) <= MAX_REFERENCES:
        return list(group)
    drawn = torch.randperm(len(group), generator=torch.Generator().manual_seed(seed))
    return sorted(group[i] for i in drawn[:MAX_REFERENCES].tolist())


def _refine(
    labels: list[Tensor],
    inputs: Sequence[Tensor],
    group: Iterable[int],
    references: Sequence[int],
    rounds: int,
) -> None:
    """Update the labels of the videos in a group by aligning them with the references along
    discriminant axes.
    """
    members = list(group)
    for _ in range(rounds):
        previous = list(labels)
        for fold in range(FOLDS):
            left_out = members[fold::FOLDS]
            others = [i for i in references if i not in left_out]
            if not others or not left_out:
                continue
            axes = discriminant_axes(
                torch.cat([inputs[i] for i in others]), torch.cat([previous[i] for i in others])
            )
            sequences = _resample_all([x @ axes for x in inputs])
            for i in left_out:
                labels[i] = _align(sequences, i, references, len(inputs[i]))


def discriminant_axes(frames: Tensor, progress: Tensor) -> Tensor:
    """Linear discriminant analysis: find directions in which frames differ between, not within,
    intervals of progress.

    Shapes: frames (F, D), progress (F,) from 0 to 1, result (D, DISCRIMINANTS), less if D is
    smaller. The covariance within classes, after shrinkage, is the identity along these directions.
    """
    x = frames.double()
    classes = (progress * CLASSES).long().clamp(max=CLASSES - 1)
    members = F.one_hot(classes, CLASSES).double()  # (F, CLASSES)
    means = members.T @ x / members.sum(dim=0).clamp(min=1)[:, None]
    residual = x - means[classes]
    within = residual.T @ residual / len(x)
    identity = torch.eye(len(within), dtype=within.dtype)
    shrunk = (1 - SHRINKAGE) * within + SHRINKAGE * (
        within.trace() / len(within) + SMALLEST_VARIANCE
    ) * identity
    # Whiten the covariance within classes, then find the principal directions of the class means.
    whitening = torch.linalg.inv(torch.linalg.cholesky(shrunk)).T  # (D, D)
    between = (means[classes] - x.mean(dim=0)) @ whitening
    axes: Tensor = (
        whitening @ torch.linalg.eigh(between.T @ between).eigenvectors[:, -DISCRIMINANTS:]
    )
    return axes.float()


def _covariance(videos: Sequence[Tensor]) -> Tensor:
    return torch.stack([x.T @ x for x in videos]).sum(dim=0)


def _principal_axes(covariance: Tensor, count: int) -> Tensor:
    """Return the principal directions (D, count) of a covariance matrix (D, D), less if D is
    smaller.
    """
    axes: Tensor = torch.linalg.eigh(covariance.double()).eigenvectors[:, -count:].float()
    return axes


def _resample_all(videos: Sequence[Tensor]) -> Tensor:
    """Resample videos (T, D) to unit vectors (V, STEPS, D)."""
    return F.normalize(torch.stack([resample(x, STEPS) for x in videos]), dim=-1)


def _align(sequences: Tensor, index: int, references: Sequence[int], frames: int) -> Tensor:
    """Return the progress (frames,) of one of the sequences (V, STEPS, D), relative to the
    references.
    """
    times = torch.linspace(0, 1, STEPS)
    others = sequences[[i for i in references if i != index]]
    if not len(others):
        return torch.linspace(0, 1, frames)
    path = path_probabilities(1 - sequences[index] @ others.mT, GAMMA)  # (R, STEPS, STEPS)
    matched = (path @ times) / path.sum(dim=-1)  # (R, STEPS) expected times in the other videos
    progress = torch.cat([matched, times[None]]).mean(dim=0).cummax(dim=0).values
    progress = (progress - progress[0]) / (progress[-1] - progress[0])
    return resample(progress[:, None], frames)[:, 0]


def smooth(features: NDArray[np.floating]) -> Tensor:
    """Standardize the (T, width) features of a video and smooth them over time with a Gaussian
    filter.
    """
    x = standardize(torch.from_numpy(np.asarray(features, np.float32)))
    radius = int(3 * SMOOTHING) + 1
    weights = torch.exp(-torch.arange(-radius, radius + 1).square() / (2 * SMOOTHING**2))
    padded = F.pad(x.T[:, None], (radius, radius), mode="replicate")  # (width, 1, T + 2 radius)
    return F.conv1d(padded, (weights / weights.sum())[None, None])[:, 0].T


def resample(x: Tensor, length: int) -> Tensor:
    """Resample (T, D) to (length, D) by linear interpolation."""
    return F.interpolate(x.T[None], size=length, mode="linear", align_corners=True)[0].T
