"""Speed and memory of training, as ratios measured in one run.

python benchmarks/train.py            everything, about six minutes on two cores
python benchmarks/train.py joined     one of: in-loop waiting joined methods soft-dtw memory
"""

import importlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from byov.cache.features import FeatureWriter, Provenance
from byov.cache.layout import video_path
from byov.cache.manifest import Manifest, VideoEntry
from byov.extract.encoder_names import parse_encoder
from byov.extract.encoders import load_encoder
from byov.extract.token_merging import merge_tokens
from byov.train.feature_store import FeatureStore, TrainingData, open_training_data
from byov.train.methods import METHODS, build_method
from byov.train.methods.base import Losses
from byov.train.sampling import Batch, BatchSource, Clips
from byov.train.settings import resolve_settings
from byov.train.soft_dtw import soft_dtw

WIDTH, FRAMES, VIDEO_FRAMES = 768, 32, 150  # CLIP ViT-B/16; frames per clip; a typical video of Break Eggs

sys.path.insert(0, str(Path(__file__).parent))  # not on the path with PYTHONSAFEPATH
naive_training: Any = importlib.import_module("naive_training")


class Step:
    """One training step of a method at its default settings."""

    def __init__(self, method: str = "byov", **settings: Any) -> None:
        self.method = build_method(WIDTH, resolve_settings(method, "bench", settings))
        self._optimizer = torch.optim.Adam(self.method.parameters(), lr=self.method.settings.lr, fused=True)
        self._generator = torch.Generator().manual_seed(0)

    def __call__(self, clips: Batch, losses: Callable[[Batch, torch.Generator], Losses] | None = None) -> None:
        (losses or self.method)(clips, self._generator)["loss"].backward()
        self._optimizer.step()
        self._optimizer.zero_grad()

    def batches(self, data: TrainingData, budget_bytes: int = 1 << 40) -> BatchSource:
        videos, settings = data.of("train"), self.method.settings
        self.method.reset_training_state(len(videos))
        store, sampler = FeatureStore(data, videos, budget_bytes), self.method.sampler(videos)
        return BatchSource(sampler, store, seed=0, batch_size=settings.batch_size, prepare=self.method.prepare)


def random_clips(batch: int) -> Batch:
    """An ego and an exo clip of each item, both whole videos."""
    lengths = torch.full((batch,), FRAMES)
    return tuple(
        Clips(
            features=torch.randn(batch, FRAMES, WIDTH),
            index=torch.arange(FRAMES).expand(batch, -1),
            first=torch.zeros_like(lengths),
            length=lengths,
            video_length=lengths,
            video=torch.arange(batch) * 2 + clip,
            padding=torch.zeros(batch, FRAMES, dtype=torch.bool),
            first_item=0,
            items=batch,
        )
        for clip in range(2)
    )


def bench_joined(_: Path) -> None:
    """One network call per view and objective against one call for all."""
    step = Step()
    naive = partial(naive_training.naive_losses, step.method)
    for batch, want, times in ((1, ">= 1.3", 25), (4, ">= 1.3", 15), (16, ">= 1.0", 9)):
        clips = random_clips(batch)
        slow, fast = partial(step, clips, naive), partial(step, clips)
        compare(f"step at batch {batch}", "separate calls", slow, "joined", fast, want, times)


def bench_methods(root: Path) -> None:
    """A step of each method against BYOV's, both of four items."""
    data = write_cache(root, 24)
    steps = {method: Step(method, batch_size=4) for method in METHODS}
    runs = {method: partial(step, step.batches(data).batch(0)) for method, step in steps.items()}
    run_byov = runs.pop("byov")
    for method, run in runs.items():
        compare(f"step of {method}", "byov", run_byov, method, run, ">= 0.5" if method == "timeline" else ">= 1", 7)


def bench_soft_dtw(_: Path) -> None:
    """Cell by cell against one anti-diagonal at a time, forward and backward."""
    for tables in (4, 12):  # one and three per item of a batch of 4
        costs = torch.rand(tables, FRAMES, FRAMES, requires_grad=True)

        def run(dtw: Callable[..., torch.Tensor], costs: torch.Tensor = costs) -> None:
            dtw(costs, 0.1)[:, -1, -1].mean().backward()

        slow, fast = partial(run, naive_training.naive_soft_dtw), partial(run, soft_dtw)
        compare(f"soft DTW of {tables} tables", "by cell", slow, "by anti-diagonal", fast, ">= 10", 9)


def bench_in_loop(_: Path) -> None:
    """The vision model in every step, as in the published code, against cached features."""
    encoder, step = load_encoder(parse_encoder("random/clip-vit-base-patch16"), device="cpu"), Step()
    images = torch.randint(0, 256, (FRAMES, 3, 224, 224), dtype=torch.uint8)
    clips = random_clips(1)

    def in_loop() -> None:
        features = [merge_tokens(encoder.encode(images)[0].float(), [0.3])[0.3][None] for _ in clips]
        step(tuple(replace(clip, features=each) for clip, each in zip(clips, features, strict=True)))

    compare("training step", "ViT-B/16 in the loop", in_loop, "from the cache", partial(step, clips), ">= 50", 3)


def bench_waiting(root: Path) -> None:
    """Fraction of the training time spent waiting for batches."""
    data = write_cache(root, 60)
    for name, budget in (("preloaded", 1 << 40), ("lazy", 0)):
        step, waited = Step(), 0.0
        started = time.perf_counter()
        steps = step.batches(data, budget).ahead(0, 60)
        for _ in range(60):
            requested = time.perf_counter()
            clips = next(steps)
            waited += time.perf_counter() - requested
            step(clips)
        fraction = waited / (time.perf_counter() - started)
        print(f"waiting for data, {name}: {fraction:.2%} of the time (want <= 5%)", flush=True)


def bench_memory(root: Path) -> None:
    """Peak memory of a process that reads features lazily, for few and for many videos."""
    peaks = {}
    for videos in (20, 400):
        features = root / str(videos)
        write_cache(features, videos)
        command = [sys.executable, __file__, "--peak", str(features)]
        peaks[videos] = int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    growth, added = (peaks[400] - peaks[20]) / 2**10, 380 * VIDEO_FRAMES * WIDTH * 2 / 2**20
    print(f"memory, lazy: {growth:+.1f} MiB with 400 videos instead of 20, whose features are {added:.0f} MiB more")


def print_peak(features: Path) -> None:
    step = Step()
    for clips in step.batches(open_training_data(features, None, None, 0.3), 0).ahead(0, 40):
        step(clips)
    status = Path("/proc/self/status").read_text()  # ru_maxrss would include the parent process
    print(int(status.split("VmHWM:")[1].split()[0]))


def write_cache(features: Path, videos: int) -> TrainingData:
    """Write a cache of random features, alternating ego and exo."""
    folder, rng, entries = features / "bench" / "random--bench", np.random.default_rng(0), []
    for index in range(videos):
        view, name = ("ego", "exo")[index % 2], f"v{index:05d}"
        writer = FeatureWriter(video_path(folder, view, name), [0.3], tokens=4, width=WIDTH, has_cls=False)
        merged = rng.normal(size=(VIDEO_FRAMES, WIDTH)).astype(np.float16)
        order = np.tile(np.arange(4, dtype=np.uint16), (VIDEO_FRAMES, 1))
        writer.append({0.3: merged}, order, None, np.arange(VIDEO_FRAMES) / 30)
        provenance = Provenance(name, view, "random/bench", "", "0", "none", "float32", "none", name, 0, "0", "0")
        writer.finish(provenance, fps=30.0, truncated=False)
        entries.append(VideoEntry(name, view, "train", VIDEO_FRAMES, 30.0, None, None, f"p{index // 2}"))
    Manifest("bench", (), (), tuple(entries)).save(features / "bench" / "manifest.json")
    return open_training_data(features, None, None, 0.3)


def compare(
    title: str, slow: str, run_slow: Callable[[], None], fast: str, run_fast: Callable[[], None], want: str, times: int
) -> None:
    """Alternate the two, so that changes in the machine's load affect both."""
    run_slow(), run_fast()
    pairs = [(_seconds(run_slow), _seconds(run_fast)) for _ in range(times)]
    ratios = sorted(theirs / ours for theirs, ours in pairs)
    theirs, ours = (median(column) for column in zip(*pairs, strict=True))
    print(
        f"{title}: {slow} {theirs * 1000:.0f} ms, {fast} {ours * 1000:.0f} ms: "
        f"ratio {median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f}; want {want})",
        flush=True,
    )


def _seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


BENCHMARKS = {
    "in-loop": bench_in_loop,
    "waiting": bench_waiting,
    "joined": bench_joined,
    "methods": bench_methods,
    "soft-dtw": bench_soft_dtw,
    "memory": bench_memory,
}

if __name__ == "__main__":
    if sys.argv[1:2] == ["--peak"]:
        print_peak(Path(sys.argv[2]))
    else:
        for benchmark in sys.argv[1:] or BENCHMARKS:
            with tempfile.TemporaryDirectory() as folder:
                BENCHMARKS[benchmark](Path(folder))
