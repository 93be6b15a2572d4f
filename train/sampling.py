"""Which frames of which videos make up each training step.

Every draw is a function of the seed, the epoch and the item's number alone: the same whether features are preloaded
or read lazily, ahead or not, in one go or after a resume, by one process or by several.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields, replace
from itertools import islice
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from byov.cache.layout import VIEWS
from byov.errors import TrainError
from byov.train.feature_store import CachedVideo, FeatureStore


@dataclass(frozen=True)
class Clips:
    """B clips of T frames: one clip of each of a step's items, or of those of them that this process takes."""

    features: Tensor  # (B, T, width), as the method takes them
    index: Tensor  # (B, T) number of each frame in its clip
    first: Tensor  # (B,) the number in its video of the clip's first frame
    length: Tensor  # (B,) frames of the clip, of which T were sampled
    video_length: Tensor  # (B,) frames of the whole video
    video: Tensor  # (B,) number of the video among the training videos
    view: Tensor  # (B,) 0: ego, 1: exo
    padding: Tensor | None  # (B, T) True for what fills up a clip that is too short; None: nowhere
    first_item: int  # of the step's items
    items: int  # of the whole step
    context: Tensor | None = None  # (B, T, width) features of an earlier frame of the clip, where a method asks for it

    @property
    def sampled(self) -> int:
        """T."""
        return self.features.shape[1]

    @property
    def repeated(self) -> Tensor:
        """(B, T) the padding, also where there is none."""
        return torch.zeros_like(self.index, dtype=torch.bool) if self.padding is None else self.padding

    @property
    def frame(self) -> Tensor:
        """(B, T) number of each frame in its video."""
        return self.first[:, None] + self.index

    @property
    def share_of_clip(self) -> Tensor:
        """(B, T) from 0 at the clip's first frame to 1 at its last."""
        return self.index / (self.length - 1).clamp(min=1)[:, None]

    @property
    def share_of_video(self) -> Tensor:
        """(B, T) from 0 at the video's first frame to 1 at its last."""
        return self.frame / (self.video_length - 1).clamp(min=1)[:, None]

    def rand(self, *shape: int, random: torch.Generator) -> Tensor:
        """(B, *shape) numbers from 0 to 1: an item's are the same wherever the others of its step are."""
        drawn = torch.rand(self.items, *shape, generator=random)
        return drawn[self.first_item : self.first_item + len(self.features)].to(self.features.device)

    def thinned(self, share: float, random: torch.Generator) -> Self:
        """With a share of the features' values dropped, and the others larger by as much."""
        if not share:
            return self

        def thin(values: Tensor) -> Tensor:
            return values * (self.rand(*values.shape[1:], random=random) >= share) / (1 - share)

        context = None if self.context is None else thin(self.context)
        return replace(self, features=thin(self.features), context=context)

    def to(self, device: torch.device) -> Self:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        tensors = {name: value for name, value in values.items() if isinstance(value, Tensor)}
        moved: dict[str, Any] = {name: tensor.to(device, non_blocking=True) for name, tensor in tensors.items()}
        return replace(self, **moved)


Batch = tuple[Clips, ...]  # the first clip of each item, the second of each item, ...


STEPS_AHEAD = 4


@dataclass(frozen=True)
class Draw:
    """Frames of one video: `rows` within the interval from `first` to `end` that stands for the video."""

    video: CachedVideo
    first: int
    end: int
    rows: NDArray[np.int64]  # counted from `first`
    drawn: int  # so many of the rows; those after them are there for the shape alone


Pick = Callable[[np.random.Generator], Sequence[CachedVideo]]  # the videos of one item
Cut = Callable[[Sequence[CachedVideo], np.random.Generator], Sequence[Draw]]  # the clips of these videos


def ego_with_exo(videos: Sequence[CachedVideo], why: str) -> Pick:
    """why: said where one of the views is not there."""
    sides = _by_view(videos)
    for view, side in zip(VIEWS, sides, strict=True):
        if not side:
            raise TrainError(f"the train split has no {view} video, and {why}")
    return lambda random: [side[random.integers(len(side))] for side in sides]


def any_two(videos: Sequence[CachedVideo]) -> Pick:
    """Two different ones, views mixed; of a single video that one twice."""
    _need(videos, 1, "there is nothing to learn from")
    return lambda random: [videos[i] for i in random.choice(len(videos), 2, replace=len(videos) < 2)]


def one(videos: Sequence[CachedVideo]) -> Pick:
    _need(videos, 1, "there is nothing to learn from")
    return lambda random: [videos[int(random.integers(len(videos)))]]


def paired(videos: Sequence[CachedVideo], why: str) -> Pick:
    """An ego and an exo video of the same performance; why: said where there is no such pair."""
    ego, exo = ({video.pair: video for video in side if video.pair is not None} for side in _by_view(videos))
    pairs = [(ego[name], exo[name]) for name in ego if name in exo]
    if not pairs:
        raise TrainError(f"the train split has no ego and exo videos of the same performance, and {why}")
    return lambda random: pairs[random.integers(len(pairs))]


def several(videos: Sequence[CachedVideo], count: int) -> Pick:
    """`count` different ones, or as many as there are: half of each view, unless one has too few."""
    _need(videos, 2, "videos are compared with each other")
    sides = _by_view(videos)
    total = min(count, len(videos))
    of_ego = min(max(total // 2, total - len(sides[1])), len(sides[0]))
    counts = (of_ego, total - of_ego)
    return lambda random: [
        side[i] for side, n in zip(sides, counts, strict=True) for i in random.choice(len(side), n, replace=False)
    ]


def part(frames: int, crop: tuple[float, float], whole: float = 0.0) -> Cut:
    """Of each video some frames of a random part: of a share within `crop`, or, with probability `whole`, of all."""

    def cut(videos: Sequence[CachedVideo], random: np.random.Generator) -> list[Draw]:
        return [cut_one(video, random) for video in videos]

    def cut_one(video: CachedVideo, random: np.random.Generator) -> Draw:
        first, end = interval(video, (1.0, 1.0) if whole and random.random() < whole else crop, random)
        return Draw(video, first, end, draw_rows(end - first, frames, random), min(end - first, frames))

    return cut


def interval(video: CachedVideo, crop: tuple[float, float], random: np.random.Generator) -> tuple[int, int]:
    """First frame and end of a random part of a video, of a share of it from low to high."""
    length = max(1, round(video.frames * random.uniform(*crop)))
    first = int(random.integers(video.frames - length + 1))
    return first, first + length


def draw_rows(length: int, count: int, random: np.random.Generator) -> NDArray[np.int64]:
    """`count` of `length` frames, sorted, none twice; of shorter clips all, and the last one again and again."""
    if length >= count:
        return np.sort(random.choice(length, count, replace=False))
    return np.minimum(np.arange(count), length - 1)


def at_share(frames: NDArray[np.int64], of: CachedVideo, other: CachedVideo) -> NDArray[np.int64]:
    """The frames of another video that stand at the same share of it; of one just as long the same."""
    beside: NDArray[np.float64] = np.rint(frames * ((other.frames - 1) / max(1, of.frames - 1)))
    return beside.astype(np.int64)


@dataclass(frozen=True)
class Sampler:
    """What a method wants: of which videos an item is made, and which clip of each."""

    videos: Sequence[CachedVideo]
    pick: Pick
    cut: Cut
    items: int  # per epoch
    context: int = 0  # with each frame the one so many frames before it, if that is not itself

    def draw(self, seed: int, epoch: int, item: int) -> Sequence[Draw]:
        random = np.random.default_rng([seed, epoch, item])
        return self.cut(self.pick(random), random)


class BatchSource:
    """The batches of a run, by step."""

    def __init__(
        self,
        sampler: Sampler,
        store: FeatureStore,
        *,
        seed: int,
        batch_size: int,
        prepare: Callable[[Tensor], Tensor],
        own: Callable[[int], range] = range,
    ) -> None:
        """prepare: the method's own, (T, width) features of a clip to what it takes.
        own: which of a step's so many items to give; where it is none, the first stands in, for the shapes."""
        self._sampler, self._store, self._seed = sampler, store, seed
        self._batch_size, self._prepare, self._own = batch_size, prepare, own
        self._numbers = {video.path: number for number, video in enumerate(sampler.videos)}
        self.steps_per_epoch = -(-sampler.items // batch_size)

    def batch(self, step: int) -> Batch:
        """The clips of a step's own items, the same for the same step."""
        epoch, place = divmod(step, self.steps_per_epoch)
        items = range(place * self._batch_size, min((place + 1) * self._batch_size, self._sampler.items))
        own = self._own(len(items)) or range(1)
        draws = [self._sampler.draw(self._seed, epoch, items[number]) for number in own]
        return tuple(self._clips(side, first_item=own.start, items=len(items)) for side in zip(*draws, strict=True))

    def ahead(self, first_step: int, end_step: int) -> Iterator[Batch]:
        """Batches in order, read in a thread of their own while the model is busy with those before."""
        with ThreadPoolExecutor(max_workers=1, thread_name_prefix="batches") as reader:
            steps = iter(range(first_step, end_step))
            waiting = deque(reader.submit(self.batch, step) for step in islice(steps, STEPS_AHEAD))
            try:
                while waiting:
                    batch = waiting.popleft().result()
                    waiting.extend(reader.submit(self.batch, step) for step in islice(steps, 1))
                    yield batch
            finally:
                for future in waiting:
                    future.cancel()

    def _clips(self, draws: Sequence[Draw], *, first_item: int, items: int) -> Clips:
        rows, drawn = np.stack([draw.rows for draw in draws]), np.array([draw.drawn for draw in draws])
        padding = np.arange(rows.shape[1]) >= drawn[:, None]
        features, context = zip(*map(self._features, draws), strict=True)
        return Clips(
            features=torch.stack(features),
            index=torch.from_numpy(rows),
            first=torch.tensor([draw.first for draw in draws]),
            length=torch.tensor([draw.end - draw.first for draw in draws]),
            video_length=torch.tensor([draw.video.frames for draw in draws]),
            video=torch.tensor([self._numbers[draw.video.path] for draw in draws]),
            view=torch.tensor([VIEWS.index(draw.video.view) for draw in draws]),
            padding=torch.from_numpy(padding) if padding.any() else None,
            first_item=first_item,
            items=items,
            context=torch.stack(context) if self._sampler.context else None,
        )

    def _features(self, draw: Draw) -> tuple[Tensor, Tensor | None]:
        """(N, width) the drawn frames, on the scale of the interval that they were drawn from; and their context."""
        clip = self._prepare(torch.from_numpy(self._store.read(draw.video)[draw.first : draw.end]))
        rows = torch.from_numpy(draw.rows)
        return clip[rows], clip[before(rows, self._sampler.context)] if self._sampler.context else None


def before(rows: Tensor, frames: int) -> Tensor:
    """The rows so many frames before, of those that have none the clip's first."""
    return (rows - frames).clamp(min=0)


def _by_view(videos: Sequence[CachedVideo]) -> list[list[CachedVideo]]:
    """The ego and the exo videos."""
    return [[video for video in videos if video.view == view] for view in VIEWS]


def _need(videos: Sequence[CachedVideo], count: int, why: str) -> None:
    if len(videos) < count:
        raise TrainError(f"the train split has {len(videos) or 'no'} video{'s' * (len(videos) != 1)}; {why}")
