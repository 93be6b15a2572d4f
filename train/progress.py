"""Progress labels: how far the action has advanced in each frame of a training video, without annotations.

The videos of a view are aligned with each other by soft DTW on their features. The progress of a frame is the mean
normalized time of the frames it is matched with, over all videos of the view including its own, so that the same event
has about the same progress in all videos, regardless of pauses and speed. Where alignment is uninformative, progress
falls back to normalized time. Views are not compared: their frozen features are too different, and an event is assumed
to have the same mean progress in both.
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

# All chosen on the val splits of simulated datasets.
STEPS = 64  # length of the resampled videos
COMPONENTS = 16  # principal components of the features
SMOOTHING = 2.0  # standard deviation in frames
GAMMA = 0.1
MAX_REFERENCES = 64  # number of videos that each video is aligned with


def aligned_progress(
    videos: Sequence[VideoT], read: Callable[[VideoT], NDArray[np.floating]], seed: int = 0
) -> list[Tensor]:
    """Compute the progress labels of the training videos of one view.

    Args:
        videos: The videos.
        read: Returns the (T, width) features of a video. It is called twice per video, for one at a time.
        seed: Seed of the choice of references if there are more than MAX_REFERENCES videos.

    Returns:
        (T,) labels of each video, from 0 to 1, never decreasing. A single video gets its normalized time.
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
    """Standardize the (T, width) features of a video and smooth them over time with a Gaussian."""
    x = standardize(torch.from_numpy(np.asarray(features, np.float32)))
    radius = int(3 * SMOOTHING) + 1
    weights = torch.exp(-torch.arange(-radius, radius + 1).square() / (2 * SMOOTHING**2))
    padded = F.pad(x.T[:, None], (radius, radius), mode="replicate")  # (width, 1, T + 2 radius)
    return F.conv1d(padded, (weights / weights.sum())[None, None])[:, 0].T


def resample(x: Tensor, length: int) -> Tensor:
    """Interpolate (T, D) rows linearly to (length, D)."""
    return F.interpolate(x.T[None], size=length, mode="linear", align_corners=True)[0].T
