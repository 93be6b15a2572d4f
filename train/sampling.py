"""Sampling of training batches: the videos and frames used in each step.

Random draws depend only on the seed, the epoch and the index of the item, so batches do not depend
on preloading, resuming or the number of processes.

Shapes: B clips, T sampled frames, `width` features. Clips with fewer than T frames are padded by
repeating the last frame; padding masks are True for these repeats.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from byov.errors import TrainError
from byov.records import VIEWS
from byov.text import pluralize
from byov.train.config import WHOLE_VIDEO
from byov.train.feature_store import CachedVideo, FeatureStore


@dataclass(frozen=True)
class Clips:
    """Batch with one clip per item; in distributed training, only for the items of this process."""

    features: Tensor  # (B, T, width) frame features, after `Method.prepare`
    index: Tensor  # (B, T) frame indices within the clip
    first: Tensor  # (B,) index of the clip's first frame in the video
    length: Tensor  # (B,) number of frames in the clip, from which T were sampled
    video_length: Tensor  # (B,) number of frames in the video
    video: Tensor  # (B,) index of the video among the training videos
    padding: Tensor  # (B, T) bool, True for padding
    first_item: int  # index of the first of these items in the global batch
    items: int  # size of the global batch, over all processes
    # (B, T, width) features of the context frames, if the backbone uses them.
    context: Tensor | None = None

    @property
    def sampled(self) -> int:
        """Number of sampled frames per clip, T."""
        return self.features.shape[1]

    @property
    def frame(self) -> Tensor:
        """Frame indices within the video, (B, T)."""
        return self.first[:, None] + self.index

    @property
    def normalized_time(self) -> Tensor:
        """Normalized time of the frames within the video, from 0 to 1, (B, T)."""
        return self.frame / (self.video_length[:, None] - 1).clamp(min=1)

    def rand(self, *shape: int, generator: torch.Generator) -> Tensor:
        """Draw (B, *shape) uniform random numbers that do not depend on how the batch is split over
        processes.
        """
        drawn = torch.rand(self.items, *shape, generator=generator)
        local = slice(self.first_item, self.first_item + len(self.features))
        return drawn[local].to(self.features.device)

    def feature_dropout(self, rate: float, generator: torch.Generator) -> Self:
        """Return a copy with dropout applied to the features and the context."""
        if not rate:
            return self

        def drop(values: Tensor) -> Tensor:
            return values * (self.rand(*values.shape[1:], generator=generator) >= rate) / (1 - rate)

        context = None if self.context is None else drop(self.context)
        return replace(self, features=drop(self.features), context=context)

    def to(self, device: torch.device) -> Self:
        moved: dict[str, Any] = {
            name: value.to(device, non_blocking=True)
            for name, value in vars(self).items()
            if isinstance(value, Tensor)
        }
        return replace(self, **moved)


Batch = tuple[Clips, ...]  # entry i contains clip i of every item


@dataclass(frozen=True)
class Draw:
    """Frames sampled from the interval [first, end) of a video."""

    video: CachedVideo
    first: int
    end: int
    rows: NDArray[np.int64]  # frame indices relative to `first`
    sampled: int  # number of rows before the padding


# Functions that select the videos for an item.
Pick = Callable[[np.random.Generator], list[CachedVideo]]
PickPair = Callable[[np.random.Generator], tuple[CachedVideo, CachedVideo]]


@dataclass(frozen=True)
class Sampler:
    """Random sampler of training items; an item consists of one or more clips."""

    videos: Sequence[CachedVideo]
    draw_item: Callable[[np.random.Generator], Sequence[Draw]]  # returns one draw per clip
    # Distance from a frame back to its context frame, in frames; 0 disables context.
    context: int = 0
    videos_per_item: int = 1

    @property
    def items(self) -> int:
        """Number of items per epoch."""
        return -(-len(self.videos) // self.videos_per_item)

    def steps_per_epoch(self, batch_size: int) -> int:
        return -(-self.items // batch_size)

    def draw(self, seed: int, epoch: int, item: int) -> Sequence[Draw]:
        return self.draw_item(np.random.default_rng([seed, epoch, item]))


def pick_views(videos: Sequence[CachedVideo], reason: str) -> PickPair:
    """Return a function that picks an ego and an exo video of the same action.

    Videos with action labels are only picked together if they share an action or show the same
    performance. The error that is raised if there is no such pair includes `reason`.
    """
    ego, exo = _by_view(videos)
    for name, view in zip(VIEWS, (ego, exo), strict=True):
        if not view:
            raise TrainError(f"the train split has no {name} video, but {reason}")
    pairs = []
    for video in ego:
        partners = exo  # shared by all videos without action labels, which may be many
        if video.actions is not None:
            partners = [
                other
                for other in exo
                if not set(video.actions).isdisjoint(other.actions or ())
                or (video.pair is not None and video.pair == other.pair)
            ]
        if partners:
            pairs.append((video, partners))
    if not pairs:
        raise TrainError(f"no ego and exo videos of the train split share an action, but {reason}")

    def pick(rng: np.random.Generator) -> tuple[CachedVideo, CachedVideo]:
        video, partners = pairs[rng.integers(len(pairs))]
        return video, partners[rng.integers(len(partners))]

    return pick


def pick_synchronized(videos: Sequence[CachedVideo], reason: str) -> PickPair:
    """Return a function that picks a synchronized ego and exo video;

    `reason` is added to the error if none exists.
    """
    ego, exo = _by_view(videos)
    exo_of: dict[str | None, list[CachedVideo]] = {}
    for video in exo:
        exo_of.setdefault(video.pair, []).append(video)
    pairs = [(video, other) for video in ego if video.pair for other in exo_of.get(video.pair, ())]
    if not pairs:
        raise TrainError(
            "the train split has no ego and exo videos of the same performance (the column pair of "
            f"a CSV), but {reason}"
        )
    return lambda rng: pairs[rng.integers(len(pairs))]


def pick_one(videos: Sequence[CachedVideo]) -> Callable[[np.random.Generator], CachedVideo]:
    """Return a function that picks one video."""
    _require(videos, 1)
    return lambda rng: videos[int(rng.integers(len(videos)))]


def pick_any_two(videos: Sequence[CachedVideo]) -> Pick:
    """Return a function that picks two different videos of any view; if there is only one, it is
    picked twice.
    """
    _require(videos, 1)
    return lambda rng: [videos[i] for i in rng.choice(len(videos), 2, replace=len(videos) < 2)]


def pick_several(videos: Sequence[CachedVideo], count: int) -> Pick:
    """Return a function that picks up to `count` different videos, half from each view unless a
    view has too few.
    """
    _require(videos, 2)
    ego, exo = _by_view(videos)
    total = min(count, len(videos))
    num_ego = min(max(total // 2, total - len(exo)), len(ego))
    counts = ((ego, num_ego), (exo, total - num_ego))
    return lambda rng: [
        view[i] for view, n in counts for i in rng.choice(len(view), n, replace=False)
    ]


def draw_clip(
    video: CachedVideo,
    frames: int,
    crop: tuple[float, float],
    rng: np.random.Generator,
    *,
    skip_first: bool = False,
) -> Draw:
    """Sample frames from a random part of a video.

    If `skip_first` is true, the first frame of the part is not sampled, unless all others are
    needed.
    """
    first, end = draw_part(video, crop, rng)
    skipped = int(skip_first and end - first - 1 > frames)
    rows = skipped + draw_rows(end - first - skipped, frames, rng)
    return Draw(video, first, end, rows, min(end - first, frames))


def draw_pair(
    videos: Sequence[CachedVideo],
    pairs: str,
    frames: int,
    crop: tuple[float, float] = WHOLE_VIDEO,
    *,
    skip_first: bool = False,
) -> Callable[[np.random.Generator], list[Draw]]:
    """Return a function that draws one clip each from an ego and an exo video (`pairs` is "views"),
    or from any two videos ("any").
    """
    pick = (
        pick_views(videos, "--pairs views needs both views (--pairs any does not)")
        if pairs == "views"
        else pick_any_two(videos)
    )
    return lambda rng: [
        draw_clip(video, frames, crop, rng, skip_first=skip_first) for video in pick(rng)
    ]


def draw_part(
    video: CachedVideo, crop: tuple[float, float], rng: np.random.Generator
) -> tuple[int, int]:
    """Draw an interval [first, end) whose length, as a fraction of the video, lies within
    `crop`.
    """
    length = max(1, round(video.frames * rng.uniform(*crop)))
    first = int(rng.integers(video.frames - length + 1))
    return first, first + length


def draw_rows(length: int, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Sample `count` of `length` frames in order, without replacement; repeat the last frame if
    there are too few.
    """
    if length >= count:
        return np.sort(rng.choice(length, count, replace=False))
    return np.minimum(np.arange(count), length - 1)


def same_time_frames(
    frames: NDArray[np.int64], of: CachedVideo, other: CachedVideo
) -> NDArray[np.int64]:
    """Map frame indices in the video `of` to frame indices in `other` at the same normalized
    time.
    """
    scaled: NDArray[np.float64] = np.rint(frames * ((other.frames - 1) / max(1, of.frames - 1)))
    return scaled.astype(np.int64)


class BatchSource:
    """Training batches, indexed by step.

    Args:
        sampler: Draws the clips of an item.
        store: Features of the videos.
        prepare: Converts the cached features of a clip to inputs; see `Method.prepare`.
        batch_size: Items per batch; the last batch of an epoch may have fewer.
        seed: Seed of the sampler.
        local_items: Maps the size of the global batch to the range of items that this process
            trains on. If the range is empty, the first item serves as a placeholder.
    """

    def __init__(
        self,
        sampler: Sampler,
        store: FeatureStore,
        prepare: Callable[[Tensor], Tensor],
        *,
        batch_size: int,
        seed: int,
        local_items: Callable[[int], range] = range,
    ) -> None:
        self._sampler = sampler
        self.store = store
        self._prepare = prepare
        self._batch_size = batch_size
        self._seed = seed
        self._local_items = local_items
        self._video_index = {video.path: index for index, video in enumerate(sampler.videos)}
        self.steps_per_epoch = sampler.steps_per_epoch(batch_size)

    def batch(self, step: int) -> Batch:
        """Return the batch for a step."""
        epoch, step_in_epoch = divmod(step, self.steps_per_epoch)
        first = step_in_epoch * self._batch_size
        items = range(first, min(first + self._batch_size, self._sampler.items))
        local = self._local_items(len(items)) or range(1)
        return self._batch(
            epoch, [items[number] for number in local], first_item=local.start, items=len(items)
        )

    def fixed_batch(self, items: int) -> Batch:
        """Return a batch that is not used in training."""
        # Seeded by a number that is larger than that of any epoch.
        return self._batch(2**32 - 1, range(items), first_item=0, items=items)

    def _batch(self, epoch: int, numbers: Sequence[int], **position: int) -> Batch:
        draws = [self._sampler.draw(self._seed, epoch, number) for number in numbers]
        return tuple(self._clips(clip, **position) for clip in zip(*draws, strict=True))

    def ahead(self, first_step: int, end_step: int) -> Iterator[Batch]:
        """Yield batches in order while a background thread reads the next ones."""
        with ThreadPoolExecutor(max_workers=1, thread_name_prefix="batches") as reader:
            steps = iter(range(first_step, end_step))  # of which four are read ahead
            pending = deque(reader.submit(self.batch, step) for step in islice(steps, 4))
            try:
                while pending:
                    batch = pending.popleft().result()
                    pending.extend(reader.submit(self.batch, step) for step in islice(steps, 1))
                    yield batch
            finally:
                for future in pending:
                    future.cancel()

    def _clips(self, draws: Sequence[Draw], *, first_item: int, items: int) -> Clips:
        index = torch.from_numpy(np.stack([draw.rows for draw in draws]))
        sampled = torch.tensor([draw.sampled for draw in draws])
        features = []
        context = []
        for draw, rows in zip(draws, index, strict=True):
            clip = self._prepare(
                torch.from_numpy(self.store.read(draw.video)[draw.first : draw.end])
            )
            features.append(clip[rows])
            context.append(clip[(rows - self._sampler.context).clamp(min=0)])
        return Clips(
            features=torch.stack(features),
            index=index,
            first=torch.tensor([draw.first for draw in draws]),
            length=torch.tensor([draw.end - draw.first for draw in draws]),
            video_length=torch.tensor([draw.video.frames for draw in draws]),
            video=torch.tensor([self._video_index[draw.video.path] for draw in draws]),
            padding=torch.arange(index.shape[1]) >= sampled[:, None],
            first_item=first_item,
            items=items,
            context=torch.stack(context) if self._sampler.context else None,
        )


def _by_view(videos: Sequence[CachedVideo]) -> list[list[CachedVideo]]:
    return [[video for video in videos if video.view == view] for view in VIEWS]


def _require(videos: Sequence[CachedVideo], count: int) -> None:
    if len(videos) < count:
        raise TrainError(
            f"the train split has {pluralize(len(videos), 'video')}; at least {count} required"
        )
