"""Speed and memory of training from the cache, as ratios measured in one run.

python benchmarks/train.py            everything, about six minutes on two cores
python benchmarks/train.py joined     one of: in_loop waiting joined methods timeline soft-dtw memory
"""

import importlib.util
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from types import ModuleType
from typing import Any

import numpy as np
import torch

from byov.cache.features import FeatureWriter, Provenance
from byov.cache.layout import video_path
from byov.cache.manifest import Manifest, VideoEntry
from byov.extract.encoder_names import parse_encoder
from byov.extract.encoders import load_encoder
from byov.extract.token_merging import merge_tokens
from byov.train.baseline_settings import BASELINES
from byov.train.feature_store import FeatureStore, TrainingData, open_training_data
from byov.train.method_settings import choose
from byov.train.methods.base import Losses
from byov.train.methods.method_registry import build_method
from byov.train.methods.timeline import place_losses
from byov.train.sampling import Batch, BatchSource, Clips
from byov.train.soft_dtw import soft_dtw

WIDTH, FRAMES, VIDEO_FRAMES = 768, 32, 150  # CLIP ViT-B/16; frames per clip; a typical video of Break Eggs


class Step:
    """One training step of a method at its default settings, on clips that are there already."""

    def __init__(self, method: str = "byov", **settings: Any) -> None:
        self.method = build_method(WIDTH, choose("bench", method=method, **settings))
        self._optimizer = torch.optim.Adam(self.method.parameters(), lr=self.method.settings.lr, fused=True)
        self._random = torch.Generator().manual_seed(0)

    def __call__(self, clips: Batch, losses: Callable[[Batch, torch.Generator], Losses] | None = None) -> None:
        """losses: in the place of the method's own."""
        (losses or self.method)(clips, self._random)["loss"].backward()
        self._optimizer.step()
        self._optimizer.zero_grad()


def random_clips(batch: int, count: int = 2) -> Batch:
    """The first clip of each of a batch's items, the second, ...: whole videos."""
    lengths = torch.full((batch,), FRAMES)
    return tuple(
        Clips(
            features=torch.randn(batch, FRAMES, WIDTH),
            index=torch.arange(FRAMES).expand(batch, -1),
            first=torch.zeros_like(lengths),
            length=lengths,
            video_length=lengths,
            video=torch.arange(batch) * count + clip,
            view=torch.full_like(lengths, clip % 2),
            padding=None,
            first_item=0,
            items=batch,
        )
        for clip in range(count)
    )


def bench_joined(_: Path) -> None:
    """One call per view and objective against all of them side by side."""
    naive, step = _load("naive_training"), Step()
    for batch, want, times in ((1, ">= 1.3", 25), (4, ">= 1.3", 15), (16, ">= 1.0", 9)):
        clips = random_clips(batch)
        compare(
            f"step at batch {batch}",
            "one call per view and objective",
            lambda clips=clips: step(clips, partial(naive.naive_losses, step.method)),
            "joined",
            lambda clips=clips: step(clips),
            want,
            times,
        )


def bench_methods(root: Path) -> None:
    """A step of each method at its published sizes against BYOV's, both of four items."""
    source, four = write_cache(root, 24), {"batch_size": 4}
    byov = Step(**four)
    pair = _batches(source, byov, 1 << 40).batch(0)
    kinds = [{"tcn": kind} for kind in ("single", "multi", "unpaired")] + [{"tcn_loss": "triplet"}]
    for method, settings in [*(("tcn", kind) for kind in kinds), *((name, {}) for name in BASELINES if name != "tcn")]:
        for backbone in dict.fromkeys((choose("bench", method=method).backbone, "encoder")):
            step = Step(method, backbone=backbone, **settings, **four)
            clips = _batches(source, step, 1 << 40).batch(0)
            compare(
                f"{method}{''.join(f' {value}' for value in settings.values())}, {backbone}",
                "BYOV",
                lambda: byov(pair),
                "this",
                lambda step=step, clips=clips: step(clips),
                ">= 1",
                7,
            )


def bench_timeline(_: Path) -> None:
    """The share of a step's time that goes into its losses, with their gradients."""
    step = Step("timeline")
    s = step.method.settings
    for batch in (1, 4):
        clips = random_clips(batch, s.clips)
        z = torch.nn.functional.normalize(torch.randn(batch, s.clips, FRAMES, s.latent), dim=-1).requires_grad_()
        places = torch.stack([clip.share_of_video for clip in clips], dim=1)
        padding = torch.stack([clip.repeated for clip in clips], dim=1)

        def losses(z=z, places=places, padding=padding) -> None:  # type: ignore[no-untyped-def]
            sum(place_losses(z, places, padding, sigma=s.sigma, temperature=s.temperature)).backward()

        losses(), step(clips)
        pairs = [(_seconds(losses), _seconds(lambda clips=clips: step(clips))) for _ in range(15)]
        shares = sorted(of_losses / of_step for of_losses, of_step in pairs)
        print(
            f"timeline step of {batch} x {s.clips} clips: losses {median(shares):.1%} of the time of a step "
            f"({shares[0]:.1%} to {shares[-1]:.1%}; want <= 20%)",
            flush=True,
        )


def bench_soft_dtw(_: Path) -> None:
    """One cell after the other against one anti-diagonal after the other, with the gradients of the last cells."""
    naive_soft_dtw, threads = _load("naive_soft_dtw").naive_soft_dtw, torch.get_num_threads()
    for used in (1, 2):
        torch.set_num_threads(used)
        for tables in (4, 12):  # one and three for each item of a batch of 4
            costs = torch.rand(tables, FRAMES, FRAMES, requires_grad=True)

            def run(dtw: Callable[..., torch.Tensor], costs: torch.Tensor = costs) -> None:
                dtw(costs, 0.1)[:, -1, -1].mean().backward()

            title = f"soft DTW of {tables} tables, {used} thread{'s' * (used > 1)}"
            slow, quick = partial(run, naive_soft_dtw), partial(run, soft_dtw)
            compare(title, "by cells", slow, "by anti-diagonals", quick, ">= 10", 9)
    torch.set_num_threads(threads)


def bench_in_loop(_: Path) -> None:
    """The vision model in every step, as the published code has it, against features from the cache."""
    encoder, step = load_encoder(parse_encoder("random/clip-vit-base-patch16"), device="cpu"), Step()
    images = torch.randint(0, 256, (FRAMES, 3, 224, 224), dtype=torch.uint8)
    ego, exo = random_clips(1)

    def encoded(clip: Clips) -> Clips:
        tokens, _ = encoder.encode(images)
        return replace(clip, features=merge_tokens(tokens.float(), [0.3])[0.3][None])

    compare(
        "training step",
        "ViT-B/16 in the loop",
        lambda: step((encoded(ego), encoded(exo))),
        "from the cache",
        lambda: step((ego, exo)),
        ">= 50",
        3,
    )


def bench_waiting(root: Path) -> None:
    """The share of a step's time that goes by before its batch is there."""
    source = write_cache(root, 60)
    for name, budget in (("preloaded", 1 << 40), ("lazy", 0)):
        step, waited = Step(), 0.0
        batches = _batches(source, step, budget)
        started = time.perf_counter()
        steps = batches.ahead(0, 60)
        for _ in range(60):
            asked = time.perf_counter()
            clips = next(steps)
            waited += time.perf_counter() - asked
            step(clips)
        share = waited / (time.perf_counter() - started)
        print(f"waiting for data, {name}: {share:.2%} of the time of a step (want <= 5%)", flush=True)


def bench_memory(root: Path) -> None:
    """Peak memory of a process that trains a few steps lazily."""
    peaks = {}
    for videos in (20, 400):
        features = root / str(videos)
        write_cache(features, videos)
        result = subprocess.run(
            [sys.executable, __file__, "--peak", str(features)], check=True, capture_output=True, text=True
        )
        peaks[videos] = int(result.stdout)
    growth = (peaks[400] - peaks[20]) / 2**20
    features_mib = 380 * VIDEO_FRAMES * WIDTH * 2 / 2**20
    print(
        f"memory, lazy: {peaks[20] / 2**20:.0f} MiB with 20 videos, {growth:+.1f} MiB with 400, "
        f"whose features are {features_mib:.0f} MiB more",
        flush=True,
    )


def print_peak(features: Path) -> None:
    step = Step()
    for clips in _batches(open_training_data(features, None, None, 0.3), step, 0).ahead(0, 40):
        step(clips)
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    print(int(status["VmHWM"].split()[0]) * 1024)


def write_cache(features: Path, videos: int) -> TrainingData:
    """A cache of random features, ego and exo by turns."""
    folder, random, entries = features / "bench" / "random--bench", np.random.default_rng(0), []
    for index in range(videos):
        view, name = ("ego", "exo")[index % 2], f"v{index:05d}"
        writer = FeatureWriter(video_path(folder, view, name), [0.3], tokens=4, width=WIDTH, has_cls=False)
        merged = random.normal(size=(VIDEO_FRAMES, WIDTH)).astype(np.float16)
        order = np.tile(np.arange(4, dtype=np.uint16), (VIDEO_FRAMES, 1))
        writer.append({0.3: merged}, order, None, np.arange(VIDEO_FRAMES) / 30)
        provenance = Provenance("random/bench", "", "0", "none", "float32", "none", name, 0, "0", "0")
        writer.finish(provenance, fps=30.0, truncated=False)
        entries.append(VideoEntry(name, view, "train", VIDEO_FRAMES, 30.0, None, None, f"p{index // 2}"))
    Manifest("bench", (), (), tuple(entries)).save(features / "bench" / "manifest.json")
    return open_training_data(features, None, None, 0.3)


def _batches(source: TrainingData, step: Step, budget_bytes: int) -> BatchSource:
    train, method = source.of("train"), step.method
    store = FeatureStore(source, train, budget_bytes)
    batch_size = method.settings.batch_size
    return BatchSource(method.sampler(train), store, seed=0, batch_size=batch_size, prepare=method.prepare)


def compare(
    title: str,
    slow: str,
    run_slow: Callable[[], None],
    quick: str,
    run_quick: Callable[[], None],
    want: str,
    times: int,
) -> None:
    """Alternate the two, so that a change in the machine's mood hits both."""
    run_slow(), run_quick()
    pairs = [(_seconds(run_slow), _seconds(run_quick)) for _ in range(times)]
    ratios = sorted(theirs / ours for theirs, ours in pairs)
    theirs, ours = (median(column) for column in zip(*pairs, strict=True))
    print(
        f"{title}: {slow} {theirs * 1000:.0f} ms, {quick} {ours * 1000:.0f} ms: "
        f"ratio {median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f}; want {want})",
        flush=True,
    )


def _seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def _load(name: str) -> ModuleType:
    """A file beside this one; with PYTHONSAFEPATH set, its folder is not on the path."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


BENCHMARKS = {
    "in_loop": bench_in_loop,
    "waiting": bench_waiting,
    "joined": bench_joined,
    "methods": bench_methods,
    "timeline": bench_timeline,
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
