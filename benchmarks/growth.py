"""What each cached video costs before any work is done, as their number grows; and retrieval as the frames do.

python benchmarks/growth.py                  500, 2,000 and 8,000 videos, and retrieval; some minutes
python benchmarks/growth.py videos 100000    so many videos; 100,000 take some 3 GB of disk and ten minutes
python benchmarks/growth.py retrieval        30,602 test frames: ranked from all distances, and as it is done

Each measurement is a process of its own. "first" is without manifest and index of headers, "then" with what it left.
"""

import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from byov.evaluate.frames import Frames

SIZES = (500, 2000, 8000)
FRAMES, TOKENS, WIDTH, RATIOS = 30, 4, 16, (0.3, 1.0)
SOURCE_BYTES = (
    2 << 20
)  # as of a real clip, but holes: a sample of them is taken as of any other, and the disk is not full
MOST_FIRST = 2_000  # to open more files than that, and read their sources, takes too long
NAME, ENCODER = "many", "random/tiny"


def make_cache(root: Path, videos: int) -> None:
    """One video's file many times over: nothing but their names tells them apart."""
    from byov.cache.digests import file_sha256, fingerprint
    from byov.cache.features import FeatureWriter, Provenance
    from byov.extract.encoder_names import parse_encoder

    source = root / "videos" / "source.mp4"
    source.parent.mkdir(parents=True)
    make_source(source)
    folder = root / "features" / NAME / "random--tiny"
    writer = FeatureWriter(root / "one.h5", RATIOS, TOKENS, WIDTH, has_cls=False)
    rows = np.random.default_rng(1).standard_normal((FRAMES, WIDTH)).astype(np.float16)
    order = np.tile(np.arange(TOKENS, dtype=np.uint16), (FRAMES, 1))
    writer.append(dict.fromkeys(RATIOS, rows), order, None, np.arange(FRAMES) / 30)
    provenance = Provenance(
        encoder=ENCODER,
        encoder_revision=parse_encoder(ENCODER, None).revision or "",
        encoder_sha256="ab" * 32,
        preprocessing="squash 32",
        compute_dtype="float32",
        decoder="PyAV",
        source_name=source.name,
        source_bytes=SOURCE_BYTES,
        source_sha256=file_sha256(source),
        source_fingerprint=fingerprint(source),
    )
    writer.finish(provenance, fps=30.0, truncated=False)
    lines = ["path,view,split,events"]
    for view in ("ego", "exo"):
        (folder / view).mkdir(parents=True)
    for video in range(videos):
        view, stem = ("ego", "exo")[video % 2], f"v{video:06d}"
        make_source(source.with_stem(stem))  # first: all of a source that is younger than its features would be read
        shutil.copyfile(root / "one.h5", folder / view / f"{stem}.h5")
        lines.append(f"{stem}.mp4,{view},train,0.3;0.6")
    (source.parent / "many.csv").write_text("\n".join(lines) + "\n")


def make_source(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(SOURCE_BYTES)


def extract_again(root: Path) -> Callable[[], object]:
    from byov.extract.extract_features import extract_features

    def work() -> None:
        table = root / "videos" / "many.csv"
        done = extract_features(manifest=table, encoder=ENCODER, ratios=RATIOS, features_dir=root / "features")
        assert (done.videos, done.failures) == (0, {})

    return work


def index_copies(root: Path) -> None:
    """What the first run leaves, with what one file says taken for what all say, since they are copies of it."""
    from byov.cache import header_index
    from byov.cache.digests import fingerprint
    from byov.cache.features import read_facts
    from byov.extract import plan

    facts = read_facts(root / "one.h5")
    header_index.read_facts = lambda path: replace(facts, header=replace(facts.header, path=path))
    plan.fingerprint = lambda _path: facts.header.provenance.source_fingerprint
    try:
        extract_again(root)()
    finally:
        header_index.read_facts, plan.fingerprint = read_facts, fingerprint


def list_contents(root: Path) -> Callable[[], object]:
    from byov.cache.verify import summarize

    return lambda: summarize(root / "features" / NAME / "random--tiny")


def start_training(root: Path) -> Callable[[], object]:
    """Up to the first step, with features that are read when they are needed."""
    from byov.train.feature_store import FeatureStore, open_training_data
    from byov.train.methods import build_method
    from byov.train.methods.timeline import TimelineSettings
    from byov.train.run import training_record

    untrained = build_method(WIDTH, TimelineSettings())  # which has nothing to do with the videos

    def work() -> None:
        data = open_training_data(root / "features", None, None, 0.3)
        training_record(data, untrained)
        FeatureStore(data, data.of("train"), 0)

    return work


def preload(root: Path) -> Callable[[], object]:
    """The features themselves, all of them."""
    from byov.train.feature_store import FeatureStore, open_training_data

    data = open_training_data(root / "features", None, None, 0.3)
    return lambda: FeatureStore(data, data.of("train"), 1 << 34)


def read_manifest(root: Path) -> Callable[[], object]:
    from byov.cache.manifest import load_manifest

    return lambda: load_manifest(root / "features" / NAME / "manifest.json")


TASKS = {
    "extraction that finds nothing to do": extract_again,
    "byov-cache ls": list_contents,
    "start of training": start_training,
    "reading all features": preload,
    "reading the manifest": read_manifest,
}


def measure(task: str, root: Path) -> None:
    work = TASKS[task](root)  # what it imports is not counted
    before, started, busy = peak_bytes(), time.perf_counter(), time.process_time()
    work()
    print(json.dumps([time.perf_counter() - started, time.process_time() - busy, peak_bytes() - before]))


def peak_bytes() -> int:
    # Not getrusage: its peak is that of the process that started us, where that was larger.
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status["VmHWM"].split()[0]) * 1024


def bench_videos(videos: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        make_cache(root, videos)
        time.sleep(3)  # a file that has just changed does not enter the index
        if videos <= MOST_FIRST:
            bench_task("extraction that finds nothing to do", "first", root, videos)
        else:
            index_copies(root)
        for task in TASKS:
            bench_task(task, "then", root, videos)


def bench_task(task: str, when: str, root: Path, videos: int) -> None:
    command = [sys.executable, __file__, "--measure", task, str(root)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    seconds, busy, grown_bytes = json.loads(done.stdout)
    print(
        f"{videos:,} videos, {task}, {when}: {seconds / videos * 1e3:.3f} ms (processor {busy / videos * 1e3:.3f}) "
        f"and {grown_bytes / videos / 1024:.1f} KiB a video",
        flush=True,
    )


def bench_retrieval(videos: int = 214, times: int = 3) -> None:
    """Beside the way it was: every distance in double precision, all of them partitioned."""
    from byov.evaluate import neighbors
    from byov.evaluate.neighbors import Points
    from byov.evaluate.retrieval import mean_average_precision

    test = walks(videos, frames=143)
    quick = (Points.rough_distances, Points.nearest, neighbors.smallest)
    plain = (Points.distances, Points._nearest_by_products, partition)
    seconds, scores = {"quick": [], "plain": []}, {}
    for _ in range(times):
        for name, kind in (("plain", plain), ("quick", quick)):
            Points.rough_distances, Points.nearest, neighbors.smallest = kind
            started = time.process_time()
            scores[name] = mean_average_precision(test)
            seconds[name].append(time.process_time() - started)
    ratios = sorted(slow / fast for slow, fast in zip(seconds["plain"], seconds["quick"], strict=True))
    slow, fast, same = median(seconds["plain"]), median(seconds["quick"]), scores["plain"] == scores["quick"]
    print(
        f"retrieval of {len(test.embeddings):,} frames x {test.embeddings.shape[1]}, processor time: {slow:.1f} s, now "
        f"{fast:.1f} s: {median(ratios):.1f}x ({ratios[0]:.1f} to {ratios[-1]:.1f}; want >= 2); same scores: {same}"
    )


def partition(distances: np.ndarray, count: int) -> np.ndarray:
    return np.argpartition(distances, count - 1, axis=1)[:, :count]


def walks(videos: int, frames: int, width: int = 256) -> "Frames":
    """Videos that walk at random from places of their own."""
    from byov.evaluate.frames import Frames

    random = np.random.default_rng(0)
    steps = np.cumsum(random.standard_normal((videos, frames, width)), axis=1) / frames**0.5
    places = steps + random.standard_normal((videos, 1, width))
    labels, lengths = np.tile(np.arange(frames) * 4 // frames, videos), np.full(videos, frames)
    names = tuple(f"v{video}" for video in range(videos))
    embeddings = places.reshape(-1, width).astype(np.float32)
    return Frames(embeddings, labels, lengths, np.arange(videos) < videos // 2, names)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        measure(sys.argv[2], Path(sys.argv[3]))
    else:
        if sys.argv[1:2] != ["retrieval"]:
            for size in map(int, sys.argv[2:] or SIZES):
                bench_videos(size)
        if sys.argv[1:2] != ["videos"]:
            bench_retrieval(*map(int, sys.argv[2:]))
