"""Speed and memory of the extraction, as ratios measured in one run.

python benchmarks/extract.py            everything, about twenty minutes on two cores
python benchmarks/extract.py decode     one of: compute light decode ratios memory rerun
"""

import importlib.util
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from statistics import median

import av
import numpy as np
import torch

from byov.cli.signals import run_in_thread
from byov.cli.videos import keep_freed_memory
from byov.data.own_videos import read_own_videos
from byov.data.video import FrameReader
from byov.extract.encoder_names import EncoderName, parse_encoder
from byov.extract.encoders import Shape, load_encoder
from byov.extract.extraction import (
    CPU_BATCH,
    CUDA_BATCH,
    ExtractionOptions,
    TokenEncoder,
    decoder_threads,
    extract_jobs,
)
from byov.extract.plan import make_plan
from byov.extract.preprocess import Preprocessing

VIT, LITE = "random/clip-vit-base-patch16", "imagenet/efficientnet-lite0"
SIX_RATIOS = (0.1, 0.2, 0.3, 0.4, 0.5, 1.0)


class FreeEncoder:
    """Stands for a device so fast that it costs nothing: the same tokens for every frame, made once."""

    name = EncoderName("random/free", "random/free", "none")
    sha256 = "none"
    device, dtype = torch.device("cpu"), torch.float32

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.preprocessing = Preprocessing("squash", 224, (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
        self._tokens = torch.randn(CUDA_BATCH, shape.tokens, shape.width)

    def encode(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        return self._tokens[: len(images)], None


def write_videos(root: Path, count: int, frames: int, width: int = 640, height: int = 480) -> Path:
    """A dataset of moving patterns with the grain of a camera, h264; returns its CSV."""
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
            for time_step in range(frames):
                wave = 96 * np.sin((rows + 3 * time_step) / 23) * np.cos((columns - 5 * time_step) / 31) + 128
                top, left = random.integers(height), random.integers(width)
                noisy = wave[..., None] + grain[top : top + height, left : left + width]
                image = np.clip(noisy, 0, 255).astype(np.uint8).repeat(3, axis=2)
                container.mux(stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
            container.mux(stream.encode(None))
        lines.append(f"{path.name},{'ego' if index % 2 else 'exo'},train")
    table = root / "videos.csv"
    table.write_text("\n".join(lines) + "\n")
    return table


def extraction_fps(
    table: Path, encoder: TokenEncoder, ratios: Sequence[float] = SIX_RATIOS, batch_size: int = CPU_BATCH
) -> float:
    """Frames per second of the whole pipeline into an empty cache, the encoder already loaded."""
    with tempfile.TemporaryDirectory() as features:
        plan = make_plan(read_own_videos("bench", table), Path(features), encoder.name, resize="squash", ratios=ratios)
        outcome = extract_jobs(encoder, plan, plan.jobs, ExtractionOptions(batch_size=batch_size))
        if outcome.failures:
            raise RuntimeError(str(outcome.failures))
        return outcome.frames / outcome.seconds


def decode_and_resize_fps(table: Path, preprocessing: Preprocessing) -> float:
    """The same number of threads doing nothing but decoding and resizing."""
    paths = [video.path for video in read_own_videos("bench", table).videos]
    workers, threads = decoder_threads(len(paths))
    waiting: Iterator[Path] = iter(paths)
    lock, counts = threading.Lock(), []

    def work() -> None:
        torch.set_num_threads(1)
        while True:
            with lock:
                path = next(waiting, None)
            if path is None:
                return
            for block in FrameReader(path, threads=threads).blocks():
                preprocessing.resized(torch.from_numpy(block.pixels))
                counts.append(len(block.pixels))

    started = time.perf_counter()
    pool = [threading.Thread(target=work) for _ in range(workers)]
    for thread in pool:
        thread.start()
    for thread in pool:
        thread.join()
    return sum(counts) / (time.perf_counter() - started)


def bench_compute(root: Path) -> None:
    encoder = load_encoder(parse_encoder(VIT), device="cpu")
    table = write_videos(root / "compute", 2, 64)
    images = random_images()
    encoder.encode(images)
    bare = partial(bare_fps, encoder.encode, images, 2)
    report("compute-bound", "pipeline", lambda: extraction_fps(table, encoder), "bare ViT-B/16", bare, ">= 0.95", 3)


def random_images() -> torch.Tensor:
    return torch.randint(0, 256, (CPU_BATCH, 3, 224, 224), dtype=torch.uint8)


def bare_fps(network: Callable[[torch.Tensor], object], images: torch.Tensor, batches: int) -> float:
    """Frames per second of a network fed from memory."""
    started = time.perf_counter()
    for _ in range(batches):
        network(images)
    return batches * len(images) / (time.perf_counter() - started)


def bench_light(root: Path) -> None:
    """EfficientNet-Lite0, so light that memory counts. Each measurement is a process: the allocator is that of one."""
    table = write_videos(root / "light", 4, 128)
    plain, bare, pipeline = partial(rate, "plain", LITE), partial(rate, "bare", LITE), partial(rate, "pipeline", LITE)
    report("folded normalization", "folded", lambda: bare("kept"), "plain", lambda: plain("kept"), ">= 2", 5)
    report("freed memory", "kept", lambda: bare("kept"), "handed back", lambda: bare("returned"), ">= 1.3", 5)
    vit = partial(rate, "bare", VIT)
    report("the same, ViT-B/16", "kept", lambda: vit("kept"), "handed back", lambda: vit("returned"), ">= 1.05", 3)
    report(
        "light encoder", "pipeline", lambda: pipeline("kept", table), "bare Lite0", lambda: bare("kept"), ">= 0.95", 5
    )


def rate(what: str, encoder: str, freed: str, table: Path = Path()) -> float:
    """print_rate in a process of its own."""
    command = [sys.executable, __file__, "--rate", what, encoder, freed, str(table)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def print_rate(what: str, encoder_id: str, freed: str, table: str) -> None:
    """Frames per second of a network or of the pipeline around it, in a thread as in the commands."""
    if freed == "kept" and not keep_freed_memory():
        raise RuntimeError("needs glibc, and an environment that leaves its allocator alone")
    encoder = load_encoder(parse_encoder(encoder_id), device="cpu")
    network = plain_network(encoder.name.source) if what == "plain" else encoder.encode
    images = random_images()
    run_in_thread(partial(network, images))
    if what == "pipeline":
        measure = partial(extraction_fps, Path(table), encoder)
    else:
        measure = partial(bare_fps, network, images, 2 if encoder_id == VIT else 8)
    print(run_in_thread(measure))


def plain_network(weights: str) -> Callable[[torch.Tensor], torch.Tensor]:
    spec = importlib.util.spec_from_file_location("naive", Path(__file__).with_name("naive_efficientnet.py"))
    naive = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(naive)
    published = torch.load(weights, weights_only=True)
    return torch.inference_mode()(lambda images: naive.expansion(published, images, block=11))


def bench_decode(root: Path) -> None:
    encoder = FreeEncoder(Shape(16, 64, has_cls=False))
    for width, height, frames in ((640, 480, 240), (1280, 720, 120)):
        table = write_videos(root / f"decode{height}", 8, frames, width, height)
        report(
            f"decode-bound, {height}p",
            "pipeline",
            partial(extraction_fps, table, encoder, batch_size=CUDA_BATCH),
            "decode and resize alone",
            partial(decode_and_resize_fps, table, encoder.preprocessing),
            ">= 0.90",
            9,
        )


def bench_ratios(root: Path) -> None:
    encoder = load_encoder(parse_encoder(VIT), device="cpu")
    table = write_videos(root / "ratios", 2, 64)
    report(
        "six ratios",
        "six",
        lambda: extraction_fps(table, encoder),
        "one",
        lambda: extraction_fps(table, encoder, (0.3,)),
        ">= 0.97",
        3,
    )


def bench_memory(root: Path) -> None:
    """Peak memory of a process that extracts two videos, ViT-B/16-sized tokens: the median of three, since how freed
    memory is used again is a matter of which thread was first. 300 frames, which do not fill the queue of decoded
    ones, are for a look."""
    peaks = {}
    for frames in (300, 2_000, 20_000):
        table = write_videos(root / f"memory{frames}", 2, frames // 2, 320, 240)
        command = [sys.executable, __file__, "--peak", str(table)]
        results = [subprocess.run(command, check=True, capture_output=True, text=True) for _ in range(3)]
        peaks[frames] = sorted(json.loads(result.stdout) / 2**20 for result in results)
    said = ", ".join(f"{low:.0f} to {high:.0f} MiB at {frames:,} frames" for frames, (low, _, high) in peaks.items())
    growth = peaks[20_000][1] - peaks[2_000][1]
    print(f"memory: {said}: {growth:+.1f} MiB from 2,000 on (want <= 64)", flush=True)


def print_peak(table: Path) -> None:
    keep_freed_memory()
    encoder = FreeEncoder(Shape(196, 768, has_cls=False))
    run_in_thread(partial(extraction_fps, table, encoder))
    # Not getrusage: its peak is that of the process that started us, where that was larger.
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    print(int(status["VmHWM"].split()[0]) * 1024)


def bench_rerun(root: Path) -> None:
    """A run over 1,000 cached videos that finds nothing to do, the whole command."""
    table = write_videos(root / "rerun", 1, 8, 64, 48)
    video = (table.parent / "v0000.mp4").read_bytes()
    names = [f"w{index:04d}.mp4" for index in range(1000)]
    for name in names:
        # MP4 readers skip a "free" box: the same video with other bytes, of the size of a real clip.
        free = (2 << 20).to_bytes(4, "big") + b"free" + name.encode().ljust((2 << 20) - 8, b".")
        (table.parent / name).write_bytes(video + free)
    rows = [f"{name},{'ego' if index % 2 else 'exo'},train" for index, name in enumerate(names)]
    table.write_text("\n".join(["path,view,split", *rows]) + "\n")
    command = [str(Path(sys.executable).parent / "byov-extract"), "--manifest", str(table), "--encoder", "random/tiny"]
    command += ["--features-dir", str(root / "features")]
    subprocess.run(command, check=True, capture_output=True)
    seconds = [_seconds(lambda: subprocess.run(command, check=True, capture_output=True)) for _ in range(3)]
    print(f"re-run over 1,000 cached videos of 2 MiB: {median(seconds):.2f} s (want < 3)", flush=True)


def _seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def report(
    title: str,
    ours: str,
    run_ours: Callable[[], float],
    other: str,
    run_other: Callable[[], float],
    want: str,
    times: int,
) -> None:
    """Alternate the two, so that a change in the machine's mood hits both."""
    pairs = [(run_ours(), run_other()) for _ in range(times)]
    ratios = sorted(mine / theirs for mine, theirs in pairs)
    mine, theirs = (median(column) for column in zip(*pairs, strict=True))
    print(
        f"{title}: {ours} {mine:.1f} frames/s, {other} {theirs:.1f} frames/s: "
        f"ratio {median(ratios):.3f} ({ratios[0]:.3f} to {ratios[-1]:.3f}; want {want})",
        flush=True,
    )


BENCHMARKS = {
    "compute": bench_compute,
    "light": bench_light,
    "decode": bench_decode,
    "ratios": bench_ratios,
    "memory": bench_memory,
    "rerun": bench_rerun,
}

if __name__ == "__main__":
    if sys.argv[1:2] == ["--peak"]:
        print_peak(Path(sys.argv[2]))
    elif sys.argv[1:2] == ["--rate"]:
        print_rate(*sys.argv[2:])
    else:
        for benchmark in sys.argv[1:] or BENCHMARKS:
            with tempfile.TemporaryDirectory() as folder:
                BENCHMARKS[benchmark](Path(folder))
