"""What the comparison of digests takes of a training and of an evaluation, by processor time.

python benchmarks/digests.py

Made-up features as wide as those of ViT-B/16, in a temporary folder, and the whole commands, each a process of its own:
its imports and the digests of what it writes are counted too. The goal is 2% at most.
"""

import json
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from byov.cache.features import FeatureWriter, Provenance
from byov.cache.layout import video_path
from byov.cache.manifest import Manifest, VideoEntry

WIDTH, FRAMES, VIDEOS = 768, 200, {"train": 12, "val": 4, "test": 6}  # of each view
PHASES = ("one", "two", "three", "four")

# Counts the time within SHA-256 and within the reading of the digests beside the arrays.
COUNTED = """
import hashlib, json, os, sys, time
spent = 0.0

def pluralize(work):
    def call(*arguments, **options):
        global spent
        started = time.thread_time()
        try:
            return work(*arguments, **options)
        finally:
            spent += time.thread_time() - started
    return call

class Digest:
    def __init__(self, content=b""):
        self._digest = plain(content)
        self.update, self.hexdigest, self.digest = map(pluralize, (
            self._digest.update, self._digest.hexdigest, self._digest.digest))

plain, hashlib.sha256 = hashlib.sha256, pluralize(Digest)
from byov.cache import hdf5
hdf5.stored_digest = pluralize(hdf5.stored_digest)
from byov.cli import evaluate, train
sys.argv[0] = "byov-" + sys.argv[1]
command = {"train": train, "eval": evaluate}[sys.argv.pop(1)]
try:
    command.main()
except SystemExit as end:
    assert not end.code, end.code
sys.stdout = sys.__stdout__
print("\\n" + json.dumps([spent, time.process_time()]))
"""
SMALL = ("--latent", "128", "--depth", "4", "--decoder-depth", "2", "--heads", "8")  # as the demo's
MEASURED = {
    "training, two epochs, from memory": ("train", "--run", "a", "--epochs", "2", *SMALL),
    "training, two epochs, each clip read from disk": (
        "train",
        "--run",
        "b",
        "--epochs",
        "2",
        "--preload-gib",
        "0",
        *SMALL,
    ),
    "evaluation, retrieval": ("eval", "--run", "a", "--task", "retrieval"),
    "evaluation, all tasks": ("eval", "--run", "a", "--task", "all"),
}


def write_features(features: Path) -> None:
    random, entries = np.random.default_rng(0), []
    labels = tuple(int(label) for label in np.arange(FRAMES) * len(PHASES) // FRAMES)
    order, times = np.zeros((FRAMES, 1), np.uint16), np.arange(FRAMES) / 30
    for split, count in VIDEOS.items():
        for view in ("ego", "exo"):
            for name in (f"{split}_{view}_{number}" for number in range(count)):
                path = video_path(features / "made-up" / "toy", view, name)
                writer = FeatureWriter(path, [0.3], tokens=1, width=WIDTH, has_cls=False)
                rows = (random.standard_normal((FRAMES, WIDTH)) + np.array(labels)[:, None]).astype(np.float16)
                writer.append({0.3: rows}, order, None, times)
                made_up = Provenance("toy", "", "", "none", "float64", "none", name, 0, "", "")
                writer.finish(made_up, fps=30.0, truncated=False)
                entries.append(VideoEntry(name, view, split, FRAMES, 30.0, labels, None))
    Manifest("made-up", PHASES, (), tuple(entries)).save(features / "made-up" / "manifest.json")


def main() -> None:
    with TemporaryDirectory() as folder:
        write_features(Path(folder) / "features")
        for what, (command, *options) in MEASURED.items():
            words = [sys.executable, "-c", COUNTED, command, *options]
            done = subprocess.run(words, cwd=folder, check=True, stdout=subprocess.PIPE, text=True)
            digests, whole = json.loads(done.stdout.splitlines()[-1])
            print(f"{what}: digests {digests:.3f} s of {whole:.1f} s, {digests / whole:.2%}", flush=True)


if __name__ == "__main__":
    main()
