"""Measure time and memory of each stage on a generated cache of many videos.

python benchmarks/scale.py 25000 100000   numbers of videos; about half an hour on two cores

Each video has 20 frames of 64 values. 94% of the videos are train, 1% val and 5% test videos.
"""

import hashlib
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

import byov
from byov.cache.digests import fingerprint
from byov.cache.verify import verify_all
from byov.evaluate.classification import phase_f1
from byov.evaluate.readers import CachedFeatures
from byov.evaluate.retrieval import mean_average_precision
from byov.extract.encoder_names import parse_encoder
from byov.extract.encoders import load_encoder
from byov.extract.pipeline import feature_provenance
from byov.progress import NO_PROGRESS, Bar
from byov.train.feature_store import FeatureStore, open_training_data

sys.path.append(str(Path(__file__).parents[1]))

from tests.factories import make_labels, make_rows, write_features

FRAMES = 20
WIDTH = 64
PHASES = 4
PER_VIEW = 100  # of every 100 videos, the last six are val and test videos
ENCODER = "random/tiny"


def write_cache(root: Path, videos: int) -> None:
    """Write source files, features and the CSV that lists them; the sources are not videos."""
    encoder = load_encoder(parse_encoder(ENCODER), device="cpu")
    labels = make_labels(FRAMES, PHASES)
    starts = [f"{int(np.argmax(labels == phase))}f" for phase in range(1, PHASES)]
    lines = ["path,view,split,events"]
    for number in range(videos):
        place = number // 2 % PER_VIEW
        split = "train" if place < 94 else "val" if place < 95 else "test"
        view = ("ego", "exo")[number % 2]
        source = root / "videos" / f"{number // 1000:03d}" / f"v{number:06d}.mp4"
        source.parent.mkdir(parents=True, exist_ok=True)
        source.write_bytes(f"{number:064d}".encode())
        sha256 = hashlib.sha256(source.read_bytes()).hexdigest()
        provenance = feature_provenance(
            encoder,
            video=source.stem,
            view=view,
            source_name=source.name,
            source_bytes=64,
            source_sha256=sha256,
            source_fingerprint=fingerprint(source),
        )
        path = root / "features/many/random--tiny" / view / f"{source.stem}.h5"
        rows = make_rows(number, labels, WIDTH, noise=3.0)
        write_features(path, {0.3: rows}, **vars(provenance))
        relative = source.relative_to(root / "videos")
        lines.append(f"{relative},{view},{split},{';'.join(starts)}")
    (root / "videos/many.csv").write_text("\n".join(lines) + "\n")


def extract(root: Path) -> None:
    done = byov.extract_features(
        manifest=root / "videos/many.csv",
        encoder=ENCODER,
        ratios=(0.3,),
        features_dir=root / "features",
    )
    assert not done.videos, "the generated features are not up to date"


def verify(root: Path) -> None:
    assert not any(checked.problem for checked in verify_all(root / "features", root / "runs"))


def start_training(root: Path) -> None:
    data = open_training_data(root / "features", "many", ENCODER, 0.3)
    FeatureStore(data, data.split("train"), 2**32)


class TrainingTime:
    """Progress reporter that measures the training loop and stops before the embedding pass."""

    seconds = 0.0

    @contextmanager
    def bar(self, name: str, **_options: Any) -> Iterator[Bar]:
        if name == "embedding":
            raise byov.Interrupted
        started = time.perf_counter()
        with NO_PROGRESS.bar(name, unit="step") as bar:
            yield bar
        if name == "training":
            self.seconds = time.perf_counter() - started


def train_epoch(root: Path) -> float:
    timer = TrainingTime()
    shutil.rmtree(root / "runs", ignore_errors=True)
    settings = {"latent": 32, "depth": 1, "decoder_depth": 1, "heads": 4, "frames": 8}
    with suppress(byov.Interrupted):
        byov.train_run(
            "one-epoch",
            dataset="many",
            epochs=1,
            batch_size=256,
            features_dir=root / "features",
            runs_dir=root / "runs",
            progress=timer,
            **settings,
        )
    return timer.seconds


def reader(root: Path) -> CachedFeatures:
    return CachedFeatures(root / "features", "many", "random--tiny", "merged/0.3")


def retrieve(root: Path) -> None:
    mean_average_precision(reader(root).frames("test"))


def classify(root: Path) -> None:
    phase_f1(reader(root).frames("train"), reader(root).frames("test"))


STAGES = {
    "index all files": extract,
    "extraction with nothing to do": extract,
    "byov-cache verify": verify,
    "start of training": start_training,
    "one training epoch": train_epoch,
    "retrieval": retrieve,
    "classification": classify,
}


def run_stage(name: str, root: Path) -> None:
    """Run one stage in this process, and print its time and peak memory."""
    started = time.perf_counter()
    busy = time.process_time()
    seconds = STAGES[name](root) or time.perf_counter() - started
    busy = time.process_time() - busy
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"  {name}: {seconds:.1f} s ({busy:.1f} s of CPU), {peak_mib:,.0f} MiB", flush=True)


def main() -> None:
    if sys.argv[1] in STAGES:
        run_stage(sys.argv[1], Path(sys.argv[2]))
        return
    for videos in map(int, sys.argv[1:]):
        print(f"{videos:,} videos", flush=True)
        with tempfile.TemporaryDirectory() as folder:
            write_cache(Path(folder), videos)
            for name in STAGES:
                subprocess.run([sys.executable, __file__, name, folder], check=True)


if __name__ == "__main__":
    main()
