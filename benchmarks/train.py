"""Speed and memory of training from the cache, as ratios measured in one run.

python benchmarks/train.py            everything, about six minutes on two cores
python benchmarks/train.py joined     one of: in_loop waiting joined memory
"""

import importlib.util
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from types import ModuleType

import numpy as np
import torch

from byov.cache.features import FeatureWriter, Provenance
from byov.cache.layout import video_path
from byov.cache.manifest import Manifest, VideoEntry
from byov.extract.encoder_name import parse_encoder
from byov.extract.encoders import load_encoder
from byov.extract.token_merging import merge_tokens
from byov.train.feature_store import FeatureStore, TrainingData, open_training_data
from byov.train.objective import MaskedEgoExo
from byov.train.sampling import BatchSource, Clips, PairSampler
from byov.train.settings import choose
from byov.train.train_run import build_model

WIDTH, FRAMES, VIDEO_FRAMES = 768, 32, 150  # CLIP ViT-B/16; frames per clip; a typical video of Break Eggs
PAPER = choose("bench")


class Step:
    """One training step of the paper's model on clips that are there already."""

    def __init__(self) -> None:
        self.model = build_model(WIDTH, PAPER)
        self._optimizer = torch.optim.Adam(self.model.parameters(), lr=PAPER.lr, fused=True)
        self._generator = torch.Generator().manual_seed(0)

    def __call__(self, losses: Callable[..., dict[str, torch.Tensor]], ego: Clips, exo: Clips) -> None:
        losses(self.model, ego, exo, self._generator)["loss"].backward()
        self._optimizer.step()
        self._optimizer.zero_grad()


def random_clips(batch: int) -> Clips:
    return Clips(torch.randn(batch, FRAMES, WIDTH), torch.arange(FRAMES).expand(batch, -1))


def bench_joined(_: Path) -> None:
    """One call per view and objective against all of them side by side."""
    naive, objective, step = _load("naive_training"), MaskedEgoExo(PAPER), Step()
    for batch, want, times in ((1, ">= 1.3", 25), (4, ">= 1.3", 15), (16, ">= 1.0", 9)):
        ego, exo = random_clips(batch), random_clips(batch)
        compare(
            f"step at batch {batch}",
            "one call per view and objective",
            lambda ego=ego, exo=exo: step(lambda *clips: naive.naive_losses(objective, *clips), ego, exo),
            "joined",
            lambda ego=ego, exo=exo: step(objective, ego, exo),
            want,
            times,
        )


def bench_in_loop(_: Path) -> None:
    """The vision model in every step, as the published code has it, against features from the cache."""
    encoder, objective, step = (
        load_encoder(parse_encoder("random/clip-vit-base-patch16"), device="cpu"),
        MaskedEgoExo(PAPER),
        Step(),
    )
    images = torch.randint(0, 256, (FRAMES, 3, 224, 224), dtype=torch.uint8)
    ego, exo = random_clips(1), random_clips(1)

    def clip_of(pixels: torch.Tensor) -> Clips:
        tokens, _ = encoder.encode(pixels)
        return Clips(merge_tokens(tokens.float(), [0.3])[0.3][None], ego.index)

    compare(
        "training step",
        "ViT-B/16 in the loop",
        lambda: step(objective, clip_of(images), clip_of(images)),
        "from the cache",
        lambda: step(objective, ego, exo),
        ">= 50",
        3,
    )


def bench_waiting(root: Path) -> None:
    """The share of a step's time that goes by before its batch is there."""
    source = write_cache(root, 60)
    for name, budget in (("preloaded", 1 << 40), ("lazy", 0)):
        step, objective, waited = Step(), MaskedEgoExo(PAPER), 0.0
        batches = _batches(source, budget)
        started = time.perf_counter()
        steps = batches.ahead(0, 60)
        for _ in range(60):
            asked = time.perf_counter()
            ego, exo = next(steps)
            waited += time.perf_counter() - asked
            step(objective, ego, exo)
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
    batches, step, objective = _batches(open_training_data(features, None, None, 0.3), 0), Step(), MaskedEgoExo(PAPER)
    for ego, exo in batches.ahead(0, 40):
        step(objective, ego, exo)
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
        entries.append(VideoEntry(name, view, "train", VIDEO_FRAMES, 30.0, None, None))
    Manifest("bench", (), (), tuple(entries)).save(features / "bench" / "manifest.json")
    return open_training_data(features, None, None, 0.3)


def _batches(source: TrainingData, budget_bytes: int) -> BatchSource:
    train = source.of("train")
    sampler = PairSampler(train, frames=FRAMES, pairs="views", crop=(1.0, 1.0), seed=0)
    return BatchSource(sampler, FeatureStore(source, train, budget_bytes), batch_size=1, prepare=torch.Tensor.float)


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


BENCHMARKS = {"in_loop": bench_in_loop, "waiting": bench_waiting, "joined": bench_joined, "memory": bench_memory}

if __name__ == "__main__":
    if sys.argv[1:2] == ["--peak"]:
        print_peak(Path(sys.argv[2]))
    else:
        for benchmark in sys.argv[1:] or BENCHMARKS:
            with tempfile.TemporaryDirectory() as folder:
                BENCHMARKS[benchmark](Path(folder))
