"""Training batches: which frames of which videos each step sees.

Draws depend only on the seed, the epoch and the number of the item, so batches do not depend on preloading, resuming or
the number of processes.

Shapes: B clips, T sampled frames, `width` features. Padding masks are True for padding: repeats of the last frame that
fill up a clip with fewer than T frames.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Any, Self, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from byov.cache.layout import VIEWS
from byov.errors import TrainError
from byov.text import pluralize
from byov.train.feature_store import CachedVideo, FeatureStore

if TYPE_CHECKING:  # imports this module
    from byov.train.methods.base import Method

PREFETCH = 4  # batches read ahead


@dataclass(frozen=True)
class Clips:
    """One clip of each item of a step, or of those items that this process trains on."""

    features: Tensor  # (B, T, width), prepared by the method
    index: Tensor  # (B, T) frame number within the clip
    first: Tensor  # (B,) number of the clip's first frame within its video
    length: Tensor  # (B,) frames of the clip, of which T were sampled
    video_length: Tensor  # (B,) frames of the whole video
    video: Tensor  # (B,) index of the video among the training videos
    padding: Tensor  # (B, T) bool
    first_item: int  # number of the first of these items within the step
    items: int  # items of the whole step, over all processes
    context: Tensor | None = None  # (B, T, width) features of an earlier frame, for backbones that use one

    @property
    def sampled(self) -> int:
        """T."""
        return self.features.shape[1]

    @property
    def frame(self) -> Tensor:
        """(B, T) frame number within the video."""
        return self.first[:, None] + self.index

    def rand(self, *shape: int, generator: torch.Generator) -> Tensor:
        """Draw (B, *shape) uniform numbers; an item's numbers do not depend on how a step is split over processes."""
        drawn = torch.rand(self.items, *shape, generator=generator)
        return drawn[self.first_item : self.first_item + len(self.features)].to(self.features.device)

    def feature_dropout(self, rate: float, generator: torch.Generator) -> Self:
        """Return the clips with dropout applied to features and context."""
        if not rate:
            return self

        def drop(values: Tensor) -> Tensor:
            return values * (self.rand(*values.shape[1:], generator=generator) >= rate) / (1 - rate)

        context = None if self.context is None else drop(self.context)
        return replace(self, features=drop(self.features), context=context)

    def to(self, device: torch.device) -> Self:
        moved: dict[str, Any] = {
            name: value.to(device, non_blocking=True) for name, value in vars(self).items() if isinstance(value, Tensor)
        }
        return replace(self, **moved)


Batch = tuple[Clips, ...]  # the first clip of each item, the second clip of each item, ...


@dataclass(frozen=True)
class Draw:
    """Frames drawn from the part [first, end) of a video."""

    video: CachedVideo
    first: int
    end: int
    rows: NDArray[np.int64]  # counted from `first`
    sampled: int  # rows before the padding


Picked = TypeVar("Picked")
Pick = Callable[[np.random.Generator], Picked]  # chooses the videos of an item
VideoPair = tuple[CachedVideo, CachedVideo]


@dataclass(frozen=True)
class Sampler:
    """How a method turns videos into training items."""

    videos: Sequence[CachedVideo]
    draw_item: Callable[[np.random.Generator], Sequence[Draw]]  # one draw per clip of an item
    context: int = 0  # frames back to the context frame; 0: none
    videos_per_item: int = 1

    @property
    def items(self) -> int:
        """Items per epoch."""
        return -(-len(self.videos) // self.videos_per_item)

    def steps_per_epoch(self, batch_size: int) -> int:
        return -(-self.items // batch_size)

    def draw(self, seed: int, epoch: int, item: int) -> Sequence[Draw]:
        return self.draw_item(np.random.default_rng([seed, epoch, item]))


def pick_views(videos: Sequence[CachedVideo], reason: str) -> Pick[VideoPair]:
    """Pick an ego and an exo video independently; `reason` ends the error raised if a view has no video."""
    ego, exo = _by_view(videos)
    for name, view in zip(VIEWS, (ego, exo), strict=True):
        if not view:
            raise TrainError(f"the train split has no {name} video, and {reason}")
    return lambda rng: (ego[rng.integers(len(ego))], exo[rng.integers(len(exo))])


def pick_synchronized(videos: Sequence[CachedVideo], reason: str) -> Pick[VideoPair]:
    """Pick an ego and an exo video of the same performance; `reason` ends the error raised if there are none."""
    ego, exo = ({video.pair: video for video in view if video.pair is not None} for view in _by_view(videos))
    pairs = [(ego[name], exo[name]) for name in ego if name in exo]
    if not pairs:
        raise TrainError(f"the train split has no ego and exo videos of the same performance, and {reason}")
    return lambda rng: pairs[rng.integers(len(pairs))]


def pick_one(videos: Sequence[CachedVideo]) -> Pick[CachedVideo]:
    """Pick any video."""
    _require(videos, 1)
    return lambda rng: videos[int(rng.integers(len(videos)))]


def pick_any_two(videos: Sequence[CachedVideo]) -> Pick[VideoPair]:
    """Pick two different videos of any views; a single video is picked twice."""
    _require(videos, 1)

    def pick(rng: np.random.Generator) -> VideoPair:
        first, second = rng.choice(len(videos), 2, replace=len(videos) < 2)
        return videos[first], videos[second]

    return pick


def pick_several(videos: Sequence[CachedVideo], count: int) -> Pick[list[CachedVideo]]:
    """Pick up to `count` different videos, half of each view unless one view has too few."""
    _require(videos, 2)
    ego, exo = _by_view(videos)
    total = min(count, len(videos))
    num_ego = min(max(total // 2, total - len(exo)), len(ego))
    counts = ((ego, num_ego), (exo, total - num_ego))
    return lambda rng: [view[i] for view, n in counts for i in rng.choice(len(view), n, replace=False)]


def draw_clip(video: CachedVideo, frames: int, crop: tuple[float, float], rng: np.random.Generator) -> Draw:
    """Draw frames of a random part of a video."""
    first, end = draw_part(video, crop, rng)
    return Draw(video, first, end, draw_rows(end - first, frames, rng), min(end - first, frames))


def draw_part(video: CachedVideo, crop: tuple[float, float], rng: np.random.Generator) -> tuple[int, int]:
    """Draw the first frame and the end of a part whose length is a fraction of the video within `crop`."""
    length = max(1, round(video.frames * rng.uniform(*crop)))
    first = int(rng.integers(video.frames - length + 1))
    return first, first + length


def draw_rows(length: int, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Draw `count` of `length` frames, sorted, without replacement; a shorter clip repeats its last frame."""
    if length >= count:
        return np.sort(rng.choice(length, count, replace=False))
    return np.minimum(np.arange(count), length - 1)


def same_time_frames(frames: NDArray[np.int64], of: CachedVideo, other: CachedVideo) -> NDArray[np.int64]:
    """Map frames of the video `of` to the frames of `other` at the same normalized time."""
    scaled: NDArray[np.float64] = np.rint(frames * ((other.frames - 1) / max(1, of.frames - 1)))
    return scaled.astype(np.int64)


class BatchSource:
    """The batches of a run by step; the last step of an epoch may have fewer than `batch_size` items.

    `local_items` maps the number of items of a step to the range of those that this process trains on; if that is
    empty, the first item is used for its shapes.
    """

    def __init__(
        self, method: "Method", sampler: Sampler, store: FeatureStore, local_items: Callable[[int], range] = range
    ) -> None:
        self._method, self._sampler, self._store, self._local_items = method, sampler, store, local_items
        self._batch_size = method.settings.batch_size
        self._video_index = {video.path: index for index, video in enumerate(sampler.videos)}
        self.steps_per_epoch = sampler.steps_per_epoch(self._batch_size)

    def batch(self, step: int) -> Batch:
        """Return the clips of a step's items."""
        epoch, step_in_epoch = divmod(step, self.steps_per_epoch)
        first = step_in_epoch * self._batch_size
        items = range(first, min(first + self._batch_size, self._sampler.items))
        local = self._local_items(len(items)) or range(1)
        draws = [self._sampler.draw(self._method.settings.seed, epoch, items[number]) for number in local]
        return tuple(self._clips(clip, first_item=local.start, items=len(items)) for clip in zip(*draws, strict=True))

    def ahead(self, first_step: int, end_step: int) -> Iterator[Batch]:
        """Yield the batches in order, reading the next ones in a background thread."""
        with ThreadPoolExecutor(max_workers=1, thread_name_prefix="batches") as reader:
            steps = iter(range(first_step, end_step))
            pending = deque(reader.submit(self.batch, step) for step in islice(steps, PREFETCH))
            try:
                while pending:
                    batch = pending.popleft().result()
                    pending.extend(reader.submit(self.batch, step) for step in islice(steps, 1))
                    yield batch
            finally:
                for future in pending:
                    future.cancel()

    def _clips(self, draws: Sequence[Draw], *, first_item: int, items: int) -> Clips:
        rows, sampled = np.stack([draw.rows for draw in draws]), np.array([draw.sampled for draw in draws])
        features, context = [], []
        for draw in draws:
            clip = self._method.prepare(torch.from_numpy(self._store.read(draw.video)[draw.first : draw.end]))
            index = torch.from_numpy(draw.rows)
            features.append(clip[index])
            context.append(clip[(index - self._sampler.context).clamp(min=0)])
        return Clips(
            features=torch.stack(features),
            index=torch.from_numpy(rows),
            first=torch.tensor([draw.first for draw in draws]),
            length=torch.tensor([draw.end - draw.first for draw in draws]),
            video_length=torch.tensor([draw.video.frames for draw in draws]),
            video=torch.tensor([self._video_index[draw.video.path] for draw in draws]),
            padding=torch.from_numpy(np.arange(rows.shape[1]) >= sampled[:, None]),
            first_item=first_item,
            items=items,
            context=torch.stack(context) if self._sampler.context else None,
        )


def _by_view(videos: Sequence[CachedVideo]) -> list[list[CachedVideo]]:
    return [[video for video in videos if video.view == view] for view in VIEWS]


def _require(videos: Sequence[CachedVideo], count: int) -> None:
    if len(videos) < count:
        raise TrainError(f"the train split has {pluralize(len(videos), 'video')}; at least {count} needed")
