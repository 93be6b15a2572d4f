"""Kill processes at a system call, or make a system call fail; `make chaos` tries more cases."""

import os
import signal
from functools import partial
from pathlib import Path

import pytest
import torch
from tests.chaos import faults, files
from tests.chaos.faults import contents, files_unlike, try_faults
from tests.factories import write_cache
from tests.processes import skip_or_fail

from byov.apply.run import train_run
from byov.cache.atomic import remove_abandoned, replacing, write_bytes
from byov.cache.manifest import load_manifest
from byov.cache.verify import read_failures, verify_run
from byov.extract.extraction import extract_features

CHAOS = "CHAOS" in os.environ
effects = pytest.mark.parametrize("effect", ["kill", "fail"])


@pytest.fixture(scope="module", autouse=True)
def strace():
    if reason := faults.why_not():
        skip_or_fail(reason)


@pytest.fixture
def check(record):
    """Return a function that tries faults with `try_faults` and checks their outcomes."""
    faults = {"kill": "process killed", "fail": "system call fails"}

    def run(effect, *arguments, **options):
        outcomes = try_faults(effect, *arguments, **options)
        record(faults[effect], outcomes["tried"], ["damaged"] * outcomes["damaged"])
        assert outcomes["damaged"] == 0

    return run


def write_every_file(folder: Path, version: int = 1) -> None:
    """Write a file of each kind, in folders that may not exist yet."""
    remove_abandoned(folder)
    files.write_features(folder / "ego" / "features.h5", version)
    files.write_embeddings(folder / "exo" / "embeddings.h5", version)
    files.write_manifest(folder / "manifest.json", f"demo {version}")
    files.write_checkpoint(folder / "checkpoint", 7 + version)
    write_bytes(folder / "run" / "config.json", files.config_content(version))


@pytest.mark.slow
@pytest.mark.parametrize("over", [False, True], ids=["new", "over"])
@effects
def test_each_kind_of_file_is_whole_or_missing(tmp_path, check, effect, over):
    versions = []
    for version in (0, 1):
        write_every_file(tmp_path / f"version {version}", version)
        versions.append(contents(tmp_path / f"version {version}"))
    begin = partial(write_every_file, version=0) if over else lambda _: None
    incomplete = partial(files_unlike, versions=versions, needed=versions[0] if over else ())
    most = None if CHAOS else 16
    check(effect, write_every_file, incomplete, tmp_path, begin=begin, most=most)


@pytest.mark.slow
@effects
def test_interrupted_extraction_leads_to_the_same_files(tmp_path, check, effect):
    """Extract two videos with a small encoder."""
    for name in ("a", "b"):
        files.write_video(tmp_path / f"{name}.mp4")
    table = tmp_path / "mine.csv"
    table.write_text("path,view,split\na.mp4,ego,train\nb.mp4,exo,train\n")

    def work(folder: Path) -> None:
        torch.set_num_threads(1)
        extract_features(
            manifest=table,
            encoder="random/tiny",
            ratios=(0.3,),
            features_dir=folder / "features",
            decoders=1,
        )

    work(tmp_path / "whole")
    versions = [contents(tmp_path / "whole")]

    def incomplete(folder: Path) -> list[str]:
        """Accept a readable manifest without the failed video, and a readable failures.json."""
        mine = folder / "features" / "mine"
        allowed = []
        manifest = mine / "manifest.json"
        if manifest.exists() and None in [video.frames for video in load_manifest(manifest).videos]:
            allowed.append(manifest)
        if read_failures(mine / "random--tiny"):
            allowed.append(mine / "random--tiny" / "failures.json")
        return [name for name in files_unlike(folder, versions) if folder / name not in allowed]

    check(effect, work, incomplete, tmp_path, most=60 if CHAOS else 4)


@pytest.mark.slow
@effects
def test_interrupted_training_leads_to_the_same_files(tmp_path, check, effect):
    """Train for two epochs with validation, checkpoints and embedding."""
    videos = {
        (split, view, f"{view} {n}"): 60
        for n, split in enumerate(("train", "train", "val"))
        for view in ("ego", "exo")
    }
    write_cache(tmp_path / "features", videos, dataset="toy", encoder="random/tiny")
    sizes = {"latent": 8, "depth": 1, "decoder_depth": 1, "heads": 2, "frames": 4}

    def work(folder: Path) -> None:
        torch.set_num_threads(1)
        train_run(
            "run",
            resume=(folder / "run" / "config.json").exists(),
            checkpoint_every=1,
            validate_every=1,
            epochs=2,
            device="cpu",
            features_dir=tmp_path / "features",
            runs_dir=folder,
            **sizes,
        )

    def incomplete(folder: Path) -> list[str]:
        if not (folder / "run" / "config.json").exists():
            return []
        checked = verify_run(folder, "run", tmp_path / "features")
        # Ignore missing files.
        return [str(file.path) for file in checked if file.problem and file.path.is_file()]

    check(effect, work, incomplete, tmp_path, most=60 if CHAOS else 4)


# --- the harness itself


def write_directly(folder: Path) -> None:
    """Write a file directly under its final name, which is not atomic."""
    with (folder / "a").open("wb", buffering=0) as file:
        file.write(b"first")
        file.write(b"second")


def write_atomically(folder: Path) -> None:
    with replacing(folder / "a") as partial:
        partial.write_bytes(b"firstsecond")


incomplete = partial(files_unlike, versions=[{"a": b"firstsecond"}])


def test_half_written_file_is_found(tmp_path):
    assert try_faults("kill", write_directly, incomplete, tmp_path)["damaged"] > 0


def test_leftover_temporary_file_is_found(tmp_path):
    """Do not call `remove_abandoned`, so that a temporary file remains."""
    assert try_faults("kill", write_atomically, lambda _: (), tmp_path)["damaged"] > 0


def test_fault_happens_at_its_call(tmp_path):
    # One openat is for /dev/null.
    assert faults.calls_of(write_directly, tmp_path) == {"openat": 2, "write": 2}
    assert faults.attempt(write_directly, tmp_path, "write:signal=KILL:when=2") == -signal.SIGKILL
    assert (tmp_path / "a").read_bytes() == b"first"
    assert faults.attempt(write_directly, tmp_path, "write:error=ENOSPC:when=1") == 1
    assert (tmp_path / "a").read_bytes() == b""
    assert faults.attempt(write_directly, tmp_path) == 0
