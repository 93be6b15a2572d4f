"""Which frames of which videos make up each training step.

Every draw is a function of the seed, the epoch and the item's number alone: the same whether features are preloaded
or read lazily, ahead or not, in one go or after a resume.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from byov.train.feature_store import CachedVideo, FeatureStore
from byov.train.settings import Pairs

STEPS_AHEAD = 4


@dataclass(frozen=True)
class Clips:
    """B clips of T frames, sampled from their videos."""

    frames: Tensor  # (B, T, width)
    index: Tensor  # (B, T) number of each frame, counted from the first that could have been sampled
    padding: Tensor | None = None  # (B, T) True where a short video repeats its last frame; None: nowhere

    def to(self, device: torch.device) -> "Clips":
        padding = None if self.padding is None else self.padding.to(device, non_blocking=True)
        return Clips(self.frames.to(device, non_blocking=True), self.index.to(device, non_blocking=True), padding)

    @property
    def length(self) -> int:
        return self.frames.shape[1]


@dataclass(frozen=True)
class Draw:
    """Frames of one video: `rows` within the interval from `first` to `end` that stands for the video."""

    video: CachedVideo
    first: int
    end: int
    rows: NDArray[np.int64]  # counted from `first`


class PairSampler:
    """Pairs of clips: an epoch has as many as there are training videos, each a random pair."""

    def __init__(
        self, videos: Sequence[CachedVideo], *, frames: int, pairs: Pairs, crop: tuple[float, float], seed: int
    ) -> None:
        self.items = len(videos)
        self._frames, self._crop, self._seed = frames, crop, seed
        if pairs == "views":
            self._sides = [[video for video in videos if video.view == view] for view in ("ego", "exo")]
        else:
            self._sides = [list(videos)]

    def draw(self, epoch: int, item: int) -> tuple[Draw, Draw]:
        random = np.random.default_rng([self._seed, epoch, item])
        if len(self._sides) == 2:
            first, second = (side[random.integers(len(side))] for side in self._sides)
        else:
            first, second = (self._sides[0][i] for i in random.choice(self.items, 2, replace=self.items < 2))
        return self._clip(first, random), self._clip(second, random)

    def _clip(self, video: CachedVideo, random: np.random.Generator) -> Draw:
        length = max(1, round(video.frames * random.uniform(*self._crop)))
        first = int(random.integers(video.frames - length + 1))
        return Draw(video, first, first + length, draw_rows(length, self._frames, random))


def draw_rows(length: int, count: int, random: np.random.Generator) -> NDArray[np.int64]:
    """`count` of `length` frames, sorted, none twice; of shorter clips all, and the last one again and again."""
    if length >= count:
        return np.sort(random.choice(length, count, replace=False))
    return np.minimum(np.arange(count), length - 1)


class BatchSource:
    """The batches of a run, by step."""

    def __init__(
        self, sampler: PairSampler, store: FeatureStore, *, batch_size: int, prepare: Callable[[Tensor], Tensor]
    ) -> None:
        """prepare: the model's own, (T, width) features of a clip to what it takes."""
        self._sampler, self._store = sampler, store
        self._batch_size, self._prepare = batch_size, prepare
        self.steps_per_epoch = -(-sampler.items // batch_size)

    def batch(self, step: int) -> tuple[Clips, Clips]:
        """Ego and exo clips (or any two videos', by recipe), the same for the same step."""
        epoch, place = divmod(step, self.steps_per_epoch)
        items = range(place * self._batch_size, min((place + 1) * self._batch_size, self._sampler.items))
        pairs = [self._sampler.draw(epoch, item) for item in items]
        first, second = zip(*pairs, strict=True)
        return self._clips(first), self._clips(second)

    def ahead(self, first_step: int, end_step: int) -> Iterator[tuple[Clips, Clips]]:
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

    def _clips(self, draws: Sequence[Draw]) -> Clips:
        rows = np.stack([draw.rows for draw in draws])
        repeated = np.diff(rows, axis=1, prepend=-1) == 0
        padding = torch.from_numpy(repeated) if repeated.any() else None
        return Clips(torch.stack([self._features(draw) for draw in draws]), torch.from_numpy(rows), padding)

    def _features(self, draw: Draw) -> Tensor:
        """(N, width): the drawn frames, on the scale of the interval that they were drawn from."""
        clip = torch.from_numpy(self._store.read(draw.video)[draw.first : draw.end])
        return self._prepare(clip)[torch.from_numpy(draw.rows)]
