"""Progress labels: estimates of how far the action has advanced in each training frame, without annotations.

The videos of a view are aligned with each other by soft DTW on their features. The progress of a frame is the mean
normalized time of the frames matched with it in all videos of the view, including its own. The same event therefore has
about the same progress in all videos, regardless of pauses and speed. Where the alignment is uninformative, progress
falls back to normalized time. Views are not aligned with each other, because their frozen features are too different;
an event is assumed to have the same mean progress in both.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from byov.cache.features import standardize
from byov.train.soft_dtw import path_probabilities

VideoT = TypeVar("VideoT")

# All values were chosen on the val splits of simulated datasets.
STEPS = 64  # number of frames in resampled videos
COMPONENTS = 16  # number of principal components of the features
SMOOTHING = 2.0  # standard deviation of the Gaussian filter, in frames
GAMMA = 0.1  # smoothing parameter of soft DTW
MAX_REFERENCES = 64  # maximum number of videos that each video is aligned with


def aligned_progress(
    videos: Sequence[VideoT], read: Callable[[VideoT], NDArray[np.floating]], seed: int = 0
) -> list[Tensor]:
    """Compute progress labels for the training videos of one view.

    Args:
        videos: Training videos of one view.
        read: Function that returns the (T, width) features of a video; called up to twice per video to save memory.
        seed: Seed for drawing the reference videos if there are more than MAX_REFERENCES videos.

    Returns:
        Non-decreasing (T,) labels from 0 to 1 for each video. A single video is labeled with normalized time.
    """
    if len(videos) < 2:
        return [torch.linspace(0, 1, len(read(video))) for video in videos]
    references = torch.arange(len(videos))
    if len(videos) > MAX_REFERENCES:
        drawn = torch.randperm(len(videos), generator=torch.Generator().manual_seed(seed))[:MAX_REFERENCES]
        references = drawn.sort().values
    covariance = torch.zeros(())
    for index in references.tolist():
        x = smooth(read(videos[index]))
        covariance = covariance + x.T @ x
    axes = torch.linalg.eigh(covariance.double()).eigenvectors[:, -COMPONENTS:].float()  # (width, COMPONENTS)
    projected = [smooth(read(video)) @ axes for video in videos]
    sequences = F.normalize(torch.stack([resample(x, STEPS) for x in projected]), dim=-1)  # (V, STEPS, COMPONENTS)
    times = torch.linspace(0, 1, STEPS)
    labels = []
    for index, x in enumerate(projected):
        others = sequences[references[references != index]]
        path = path_probabilities(1 - sequences[index] @ others.mT, GAMMA)  # (R, STEPS, STEPS)
        matched = (path @ times) / path.sum(dim=-1)  # (R, STEPS) expected times in the other videos
        progress = torch.cat([matched, times[None]]).mean(dim=0).cummax(dim=0).values
        progress = (progress - progress[0]) / (progress[-1] - progress[0])
        labels.append(resample(progress[:, None], len(x))[:, 0])
    return labels


def smooth(features: NDArray[np.floating]) -> Tensor:
    """Standardize the (T, width) features of a video and smooth them over time with a Gaussian filter."""
    x = standardize(torch.from_numpy(np.asarray(features, np.float32)))
    radius = int(3 * SMOOTHING) + 1
    weights = torch.exp(-torch.arange(-radius, radius + 1).square() / (2 * SMOOTHING**2))
    padded = F.pad(x.T[:, None], (radius, radius), mode="replicate")  # (width, 1, T + 2 radius)
    return F.conv1d(padded, (weights / weights.sum())[None, None])[:, 0].T


def resample(x: Tensor, length: int) -> Tensor:
    """Resample (T, D) to (length, D) by linear interpolation."""
    return F.interpolate(x.T[None], size=length, mode="linear", align_corners=True)[0].T
