"""Speed and memory of the extraction, as ratios measured in one run.

python benchmarks/extract.py            everything, about twenty minutes on two cores
python benchmarks/extract.py decode     one of: compute light decode memory rerun stream
"""

import multiprocessing
import runpy
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from statistics import median

import av
import numpy as np
import torch

import byov
from byov.cli.signals import run_in_thread
from byov.cli.videos import keep_freed_memory
from byov.data.own_videos import read_own_videos
from byov.data.video import FrameReader
from byov.extract.encoder_names import EncoderName, parse_encoder
from byov.extract.encoders import HALF, FrameEncoder, Shape, load_encoder
from byov.extract.extract_features import extract_features
from byov.extract.extraction import decoder_threads, extract_jobs
from byov.extract.plan import CPU_BATCH, CUDA_BATCH, ExtractionOptions, make_plan
from byov.extract.preprocess import Preprocessing

VIT, LITE = "random/clip-vit-base-patch16", "imagenet/efficientnet-lite0"
SIX_RATIOS = (0.1, 0.2, 0.3, 0.4, 0.5, 1.0)


class FreeEncoder(FrameEncoder):
    """Encoder without cost, as on a very fast device: returns the same tokens for every frame."""

    def __init__(self, shape: Shape) -> None:
        name = EncoderName("random/free", "random/free", "none")
        preprocessing = Preprocessing("squash", 224, HALF, HALF)
        super().__init__(name, torch.nn.Identity(), "none", shape, preprocessing, torch.device("cpu"))
        self._constant = torch.randn(CUDA_BATCH, shape.tokens, shape.width)

    def encode(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        return self._constant[: len(images)], None


def write_videos(root: Path, count: int, frames: int, width: int = 640, height: int = 480) -> Path:
    """Write H.264 videos of moving patterns with camera-like grain; returns their CSV."""
    root.mkdir(parents=True)
    random = np.random.default_rng(0)
    grain = random.normal(0, 7, (2 * height, 2 * width, 1))
    rows, columns = np.mgrid[:height, :width]
    lines = ["path,view,split"]
    for index in range(count):
        path = root / f"v{index:04d}.mp4"
        with av.open(str(path), "w") as container:
            stream = container.add_stream("libx264", rate=30, options={"preset": "veryfast", "crf": "24"})
            stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
            for step in range(frames):
                wave = 96 * np.sin((rows + 3 * step) / 23) * np.cos((columns - 5 * step) / 31) + 128
                top, left = random.integers(height), random.integers(width)
                noisy = wave[..., None] + grain[top : top + height, left : left + width]
                image = np.clip(noisy, 0, 255).astype(np.uint8).repeat(3, axis=2)
                container.mux(stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
            container.mux(stream.encode(None))
        lines.append(f"{path.name},{'ego' if index % 2 else 'exo'},train")
    table = root / "videos.csv"
    table.write_text("\n".join(lines) + "\n")
    return table


def pipeline_fps(
    table: Path, encoder: FrameEncoder, ratios: Sequence[float] = SIX_RATIOS, batch_size: int = CPU_BATCH
) -> float:
    """Frames per second of an extraction into an empty cache, with the encoder already loaded."""
    with tempfile.TemporaryDirectory() as features:
        options = ExtractionOptions(batch_size=batch_size)
        plan = make_plan(read_own_videos("bench", table), Path(features), encoder.name, options, ratios=ratios)
        outcome = extract_jobs(encoder, plan, plan.jobs, options)
        if outcome.failures:
            raise RuntimeError(str(outcome.failures))
        return outcome.frames / outcome.seconds


def decode_and_resize_fps(table: Path, preprocessing: Preprocessing) -> float:
    """Frames per second of decoding and resizing alone, with as many threads as an extraction."""
    paths = [video.path for video in read_own_videos("bench", table).videos]
    workers, threads = decoder_threads(len(paths))

    def decode(path: Path) -> int:
        torch.set_num_threads(1)
        frames = 0
        for block in FrameReader(path, threads=threads).blocks():
            preprocessing.resized(torch.from_numpy(block.pixels))
            frames += len(block.pixels)
        return frames

    started = time.perf_counter()
    with ThreadPoolExecutor(workers) as pool:
        frames = sum(pool.map(decode, paths))
    return frames / (time.perf_counter() - started)


def network_fps(network: Callable[[torch.Tensor], object], batches: int) -> float:
    """Frames per second of a network fed from memory, after a first batch."""
    images = torch.randint(0, 256, (CPU_BATCH, 3, 224, 224), dtype=torch.uint8)
    network(images)
    started = time.perf_counter()
    for _ in range(batches):
        network(images)
    return batches * len(images) / (time.perf_counter() - started)


def compare(title: str, ours: Callable[[], float], other: Callable[[], float], want: str, pairs: int) -> None:
    """Alternate two measurements, so that a change of the machine's load affects both, and print their ratio."""
    measured = [(ours(), other()) for _ in range(pairs)]
    ratios = sorted(mine / theirs for mine, theirs in measured)
    mine, theirs = (median(column) for column in zip(*measured, strict=True))
    print(
        f"{title}: {mine:.1f} / {theirs:.1f} frames/s: ratio {median(ratios):.3f} "
        f"({ratios[0]:.3f} to {ratios[-1]:.3f}; want {want})"
    )


def bench_compute(root: Path) -> None:
    encoder = load_encoder(parse_encoder(VIT), device="cpu")
    table = write_videos(root / "compute", 2, 64)
    six, one = partial(pipeline_fps, table, encoder), partial(pipeline_fps, table, encoder, (0.3,))
    bare = partial(network_fps, encoder.encode, 2)
    compare("compute-bound: pipeline / bare ViT-B/16", six, bare, ">= 0.95", 3)
    compare("six STM ratios / one", six, one, ">= 0.97", 3)


def bench_decode(root: Path) -> None:
    encoder = FreeEncoder(Shape(16, 64, has_cls=False))
    for width, height, frames in ((640, 480, 240), (1280, 720, 120)):
        table = write_videos(root / f"decode{height}", 8, frames, width, height)
        pipeline = partial(pipeline_fps, table, encoder, batch_size=CUDA_BATCH)
        alone = partial(decode_and_resize_fps, table, encoder.preprocessing)
        compare(f"decode-bound, {height}p: pipeline / decoding and resizing", pipeline, alone, ">= 0.90", 9)


def bench_light(root: Path) -> None:
    """Measure EfficientNet-Lite0, where memory allocation matters.

    Each variant runs in its own process, because the allocator is configured per process.
    """
    table = write_videos(root / "light", 4, 128)
    bare, pipeline = partial(in_process, "bare", LITE, "keep"), partial(in_process, "pipeline", LITE, "keep", table)
    compare("folded normalization / plain", bare, partial(in_process, "plain", LITE, "keep"), ">= 2", 5)
    compare("freed memory kept / returned", bare, partial(in_process, "bare", LITE, "return"), ">= 1.3", 5)
    vit_kept, vit_returned = (partial(in_process, "bare", VIT, freed) for freed in ("keep", "return"))
    compare("the same for ViT-B/16", vit_kept, vit_returned, ">= 1.05", 3)
    compare("light encoder: pipeline / bare Lite0", pipeline, bare, ">= 0.95", 5)


def bench_memory(root: Path) -> None:
    """Median peak memory of processes that extract two videos with tokens as large as those of ViT-B/16."""
    peaks = {}
    for frames in (2_000, 20_000):
        table = write_videos(root / f"memory{frames}", 2, frames // 2, 320, 240)
        peaks[frames] = median(in_process("peak", VIT, "keep", table) for _ in range(3))
    growth = peaks[20_000] - peaks[2_000]
    print(f"peak memory: {peaks[2_000]:.0f} MiB at 2,000 frames, {growth:+.0f} MiB at 20,000 (want <= 64)")


def bench_rerun(root: Path, videos: int = 10_000) -> None:
    """Time an extraction that finds 10,000 videos in the cache and has nothing to do."""
    source = write_videos(root / "videos", 1, 1, 32, 32).with_name("v0000.mp4")
    lines = ["path,view,split,events"]
    for number in range(videos):
        shutil.copyfile(source, source.with_stem(f"v{number:05d}"))
        lines.append(f"v{number:05d}.mp4,{('ego', 'exo')[number % 2]},train,0f")
    table = source.with_name("many.csv")
    table.write_text("\n".join(lines) + "\n")
    extract = partial(extract_features, manifest=table, encoder="random/tiny", ratios=(0.3,), features_dir=root)
    assert extract().videos == videos
    (root / "many" / "index.json").unlink()
    times = []
    for _ in range(4):  # the first one writes the index
        started = time.process_time()
        assert extract().cached == videos
        times.append((time.process_time() - started) / videos * 1e3)
    print(
        f"nothing to do, {videos:,} videos, processor time: {median(times[1:]):.3f} ms per video (want <= 0.5); "
        f"without index.json {times[0]:.3f} ms"
    )


def in_process(*arguments: object) -> float:
    """Call `measure` in a new process."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(measure, arguments)


def measure(what: str, encoder_id: str, freed: str, table: Path = Path()) -> float:
    """Measure the frame rate of a network or of the pipeline, or peak memory in MiB, in a thread as commands do."""
    if freed == "keep" and not keep_freed_memory():
        raise RuntimeError("needs glibc, and an environment without MALLOC_* settings")
    if what == "peak":
        run_in_thread(partial(pipeline_fps, table, FreeEncoder(Shape(196, 768, has_cls=False))))
        # Not getrusage, whose peak includes that of the parent process.
        status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
        return int(status["VmHWM"].split()[0]) / 1024
    encoder = load_encoder(parse_encoder(encoder_id), device="cpu")
    network = plain_network(encoder.name.source) if what == "plain" else encoder.encode
    fps = run_in_thread(partial(network_fps, network, 2 if encoder_id == VIT else 8))
    return run_in_thread(partial(pipeline_fps, table, encoder)) if what == "pipeline" else fps


def plain_network(weights: str) -> Callable[[torch.Tensor], torch.Tensor]:
    naive = runpy.run_path(str(Path(__file__).with_name("naive_efficientnet.py")))
    published = torch.load(weights, weights_only=True)
    return torch.inference_mode()(lambda images: naive["expansion"](published, images, block=11))


def bench_stream(root: Path) -> None:
    """Measure live video: a frame at a time with a window of 150 frames, against the same encoder in batches."""
    table = write_videos(root / "stream", 4, 150)
    byov.extract_features(manifest=table, encoder=LITE, ratios=(0.3,), features_dir=root / "features")
    folders = {"features_dir": root / "features", "runs_dir": root / "runs"}
    run = byov.train_run("live", method="timeline", online=True, epochs=1, device="cpu", **folders)
    frames = np.concatenate([block.pixels for block in FrameReader(root / "stream/v0000.mp4").blocks()])
    stream = run.stream()
    for frame in frames:  # fill the window
        stream.push(frame)

    def pushed() -> float:
        started = time.perf_counter()
        for frame in frames[:50]:
            stream.push(frame)
        return 50 / (time.perf_counter() - started)

    batched = partial(network_fps, run.frame_encoder().encode, 2)
    compare("live video: frames pushed / encoded in batches", pushed, batched, ">= 0.15", 5)


if __name__ == "__main__":
    for benchmark in sys.argv[1:] or ("compute", "light", "decode", "memory", "rerun", "stream"):
        with tempfile.TemporaryDirectory() as folder:
            globals()[f"bench_{benchmark}"](Path(folder))
