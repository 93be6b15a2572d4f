"""Benchmark extraction speed by comparing the pipeline with its parts, timed in the same process.

python benchmarks/extract.py            everything, about fifteen minutes on two cores
python benchmarks/extract.py decode     one of: compute decode rerun stream
"""

import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import torch

import byov
from byov.data.own_videos import read_own_videos
from byov.data.video import FrameReader
from byov.extract.encoder_names import EncoderName, parse_encoder
from byov.extract.encoders import HALF, FrameEncoder, load_encoder
from byov.extract.pipeline import Pipeline, decoder_threads
from byov.extract.plan import (
    CPU_BATCH,
    CUDA_BATCH,
    ExtractionOptions,
    VideoOutcome,
    make_plan,
)
from byov.extract.preprocess import Preprocessing
from byov.progress import NO_PROGRESS

sys.path.append(str(Path(__file__).parents[1]))

from benchmarks.common import compare, seconds, write_dataset


class FreeEncoder(FrameEncoder):
    """Zero-cost encoder that simulates a very fast device; it returns the same tokens for every
    batch.
    """

    def __init__(self, tokens: int, width: int) -> None:
        name = EncoderName("random/free", "random/free", "none")
        preprocessing = Preprocessing("squash", 224, HALF, HALF)
        super().__init__(name, torch.nn.Identity(), "none", preprocessing, torch.device("cpu"))
        self._constant = torch.randn(CUDA_BATCH, tokens, width)

    def encode(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        return self._constant[: len(images)], None


def pipeline_fps(
    table: Path,
    encoder: FrameEncoder,
    ratios: Sequence[float] = (0.1, 0.2, 0.3, 0.4, 0.5, 1.0),
    batch_size: int = CPU_BATCH,
) -> float:
    """Measure the frames per second of an extraction into an empty cache, with the encoder already
    loaded.
    """
    with tempfile.TemporaryDirectory() as features:
        options = ExtractionOptions(tuple(ratios), batch_size=batch_size)
        plan = make_plan(read_own_videos("bench", table), Path(features), encoder.name, options)
        outcomes: list[VideoOutcome] = []
        with NO_PROGRESS.bar("frames", unit="frame") as bar:
            pipeline = Pipeline(encoder, options, bar)
            elapsed = seconds(lambda: outcomes.extend(pipeline.run(plan.jobs)))
        assert not any(outcome.failure for outcome in outcomes), outcomes
        return sum(outcome.frames for outcome in outcomes) / elapsed


def decode_and_resize_fps(table: Path, preprocessing: Preprocessing) -> float:
    """Measure the frames per second of decoding and resizing alone, with as many threads as in an
    extraction.
    """
    paths = [video.path for video in read_own_videos("bench", table).videos]
    workers, threads = decoder_threads(len(paths))

    def decode(path: Path) -> int:
        torch.set_num_threads(1)
        blocks = (block.pixels for block in FrameReader(path, threads=threads).blocks())
        return sum(len(preprocessing.resized(torch.from_numpy(pixels))) for pixels in blocks)

    counts: list[int] = []
    with ThreadPoolExecutor(workers) as pool:
        elapsed = seconds(lambda: counts.extend(pool.map(decode, paths)))
    return sum(counts) / elapsed


def network_fps(network: Callable[[torch.Tensor], object], batches: int) -> float:
    """Measure the frames per second of a network on images in memory, after a warm-up batch."""
    images = torch.randint(0, 256, (CPU_BATCH, 3, 224, 224), dtype=torch.uint8)
    network(images)
    return batches * len(images) / seconds(lambda: [network(images) for _ in range(batches)])


def bench_compute(root: Path) -> None:
    encoder = load_encoder(parse_encoder("random/clip-vit-base-patch16"), device="cpu")
    table = write_dataset(root, ("train",) * 2, 64)
    six = partial(pipeline_fps, table, encoder)
    compare("pipeline / bare ViT-B/16", six, partial(network_fps, encoder.encode, 2), ">= 0.95", 3)
    compare("one STM ratio / six", partial(pipeline_fps, table, encoder, (0.3,)), six, ">= 0.97", 3)


def bench_decode(root: Path) -> None:
    encoder = FreeEncoder(16, 64)
    for width, height, frames in ((640, 480, 240), (1280, 720, 120)):
        table = write_dataset(root / f"{height}p", ("train",) * 8, frames, width, height)
        compare(
            f"no-op encoder, {height}p: pipeline / decoding and resizing",
            partial(pipeline_fps, table, encoder, batch_size=CUDA_BATCH),
            partial(decode_and_resize_fps, table, encoder.preprocessing),
            ">= 0.90",
            9,
        )


def bench_rerun(root: Path, count: int = 10_000) -> None:
    """Time an extraction that finds all videos in the cache."""
    table = write_dataset(root, ("train",) * count, 1, 32, 32)
    extract = partial(
        byov.extract_features,
        manifest=table,
        encoder="random/tiny",
        ratios=(0.3,),
        features_dir=root,
    )
    extract()
    started = time.process_time()
    assert extract().cached == count
    elapsed = time.process_time() - started
    print(
        f"nothing to do, {count:,} videos: {elapsed / count * 1e3:.3f} ms of processor time per "
        "video (want <= 0.5)"
    )


def bench_stream(root: Path) -> None:
    """Compare the frame rate of a live stream (window of 150 frames) with that of the same encoder
    run in batches.
    """
    table = write_dataset(root, ("train",) * 4, 150)
    byov.extract_features(
        manifest=table,
        encoder="imagenet/efficientnet-lite0",
        ratios=(0.3,),
        features_dir=root / "features",
    )
    folders = {"features_dir": root / "features", "runs_dir": root / "runs"}
    run = byov.train_run("live", method="timeline", online=True, epochs=1, device="cpu", **folders)
    frames = np.concatenate([block.pixels for block in FrameReader(root / "v00000.mp4").blocks()])
    stream = run.stream()
    for frame in frames:  # fill the window
        stream.push(frame)

    def pushed() -> float:
        return 50 / seconds(lambda: [stream.push(frame) for frame in frames[:50]])

    compare(
        "live video: frames pushed / encoded in batches",
        pushed,
        partial(network_fps, run.frame_encoder().encode, 2),
        ">= 0.15",
        5,
    )


if __name__ == "__main__":
    for benchmark in sys.argv[1:] or ("compute", "decode", "rerun", "stream"):
        with tempfile.TemporaryDirectory() as folder:
            globals()[f"bench_{benchmark}"](Path(folder))
