"""Benchmark training speed by comparing implementations and methods timed in the same process.

python benchmarks/train.py            everything, about five minutes on two cores
python benchmarks/train.py joined     one of: in_loop joined methods
"""

import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from byov.extract.encoder_names import parse_encoder
from byov.extract.encoders import load_encoder
from byov.extract.token_merging import merge_tokens
from byov.train.feature_store import FeatureStore, TrainingData, open_training_data
from byov.train.methods.base import Losses, build_method, training_batches
from byov.train.registry import METHODS, resolve
from byov.train.sampling import Batch, BatchSource

sys.path.append(str(Path(__file__).parents[1]))

from benchmarks.common import compare_times
from tests import factories
from tests.train import naive

# CLIP ViT-B/16 width, frames per clip, length of a Break Eggs video
WIDTH = 768
FRAMES = 32
VIDEO_FRAMES = 150


class Step:
    """Training step of a method, with default settings unless others are given."""

    def __init__(self, method: str = "byov", **settings: Any) -> None:
        self._config = resolve(method, "bench", settings)
        self.method = build_method(WIDTH, self._config)
        self._optimizer = torch.optim.Adam(
            self.method.parameters(), lr=self._config.optimizer.lr, fused=True
        )
        self._generator = torch.Generator().manual_seed(0)

    def __call__(
        self, clips: Batch, losses: Callable[[Batch, torch.Generator], Losses] | None = None
    ) -> None:
        (losses or self.method)(clips, self._generator)["loss"].backward()
        self._optimizer.step()
        self._optimizer.zero_grad()

    def batches(self, data: TrainingData) -> BatchSource:
        videos = data.split("train")
        return training_batches(
            self.method, videos, FeatureStore(data, videos, 1 << 40), self._config
        )


def bench_joined(data: TrainingData) -> None:
    """Compare separate network calls per view and objective with a single call for all of them."""
    for batch, want, times in ((1, ">= 1.3", 25), (4, ">= 1.3", 15), (16, ">= 1.0", 9)):
        step = Step(batch_size=batch)
        clips = step.batches(data).batch(0)
        compare_times(
            f"step at batch {batch}: separate calls / joint",
            partial(step, clips, partial(naive.naive_losses, step.method)),
            partial(step, clips),
            want,
            times,
        )


def bench_methods(data: TrainingData) -> None:
    """Compare the time of a BYOV training step with that of every other method, at batch size 4."""
    steps = {method: Step(method, batch_size=4) for method in METHODS}
    runs = {method: partial(step, step.batches(data).batch(0)) for method, step in steps.items()}
    run_byov = runs.pop("byov")
    for method, run in runs.items():
        want = ">= 0.5" if method == "timeline" else ">= 1"
        compare_times(f"step of byov / {method}", run_byov, run, want, 7)


def bench_in_loop(data: TrainingData) -> None:
    """Compare running the vision model in every step, as in the published code, with cached
    features.
    """
    encoder = load_encoder(parse_encoder("random/clip-vit-base-patch16"), device="cpu")
    step = Step()
    images = torch.randint(0, 256, (FRAMES, 3, 224, 224), dtype=torch.uint8)
    clips = step.batches(data).batch(0)

    def in_loop() -> None:
        features = [
            merge_tokens(encoder.encode(images)[0].float(), [0.3])[0.3][None] for _ in clips
        ]
        step(
            tuple(replace(clip, features=each) for clip, each in zip(clips, features, strict=True))
        )

    compare_times(
        "step: ViT-B/16 in the loop / from the cache", in_loop, partial(step, clips), ">= 50", 3
    )


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        names = [(view, f"v{number}") for number in range(30) for view in ("ego", "exo")]
        videos = {("train", *name): VIDEO_FRAMES for name in names}
        factories.write_cache(
            Path(folder),
            videos,
            width=WIDTH,
            ratios=(0.3,),
            pairs={name: name[1] for name in names},
        )
        features = open_training_data(Path(folder), None, None, 0.3)
        for benchmark in sys.argv[1:] or ("in_loop", "joined", "methods"):
            globals()[f"bench_{benchmark}"](features)
