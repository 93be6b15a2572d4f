"""Kill processes at a system call, or make a system call fail, with faults injected by strace.

The tested function writes files to a folder. After the fault, it is called again and must leave the
same files as if there had been no fault.
"""

import os
import random
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from tests.chaos import flips
from tests.factories import read_files, write_cache

from byov.cache.atomic import remove_abandoned, write_bytes
from byov.cache.manifest import load_manifest
from byov.cache.verify import read_failures, verify_run
from byov.extract.extraction import extract_features
from byov.train.run import train_run

# System calls that change files, and the error they return on a full or broken disk.
CALLS = {
    "openat": "ENOSPC",
    "mkdir": "ENOSPC",
    "fallocate": "ENOSPC",
    "write": "ENOSPC",
    "pwrite64": "EIO",
    "ftruncate": "EIO",
    "truncate": "EIO",
    "fsync": "EIO",
    "rename": "ENOSPC",
    "unlink": "EIO",
    "flock": "ENOLCK",
}
HANG_SECONDS = 120
Work = Callable[[Path], object]
Damaged = Callable[[Path], list[str]]  # lists the incomplete files in a folder


@dataclass
class FaultTally:
    """Counts of outcomes, one row of the table."""

    fault: str
    tried: int = 0
    half_written: int = 0  # left an incomplete file
    other_end: int = 0  # a second call did not produce the same files

    def line(self) -> str:
        return f"| {self.fault} | {self.tried:,} | {self.half_written:,} | {self.other_end:,} |"


HEAD = "| fault | tried | half-written | another end |\n|---|---|---|---|"
FAULTS = {"kill": "killed", "fail": "a call fails"}


def why_not() -> str:
    """Return the reason why faults cannot be injected on this machine; "" if they can."""
    if shutil.which("strace") is None:
        return "strace is not installed"
    with tempfile.TemporaryDirectory() as folder:
        marker = Path(folder) / "marker"
        ended = attempt(lambda _: marker.mkdir(), Path(folder), "mkdir:signal=KILL:when=1")
        return (
            ""
            if ended == -signal.SIGKILL and not marker.exists()
            else "strace may not trace processes here"
        )


def attempt(work: Work, folder: Path, fault: str | None = None, log: Path | None = None) -> int:
    """Call `work` in a forked process, with a fault in the syntax of `strace --inject`.

    Returns:
        0 if it finished, 1 if it raised, -n if signal n killed it.
    """
    child = os.fork()
    if not child:
        os.kill(os.getpid(), signal.SIGSTOP)  # wait until strace is attached
        signal.alarm(HANG_SECONDS)
        code = 1
        try:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            work(folder)
            code = 0
        finally:
            os._exit(code)
    os.waitpid(child, os.WUNTRACED)
    tracer = None
    if fault or log:
        traced = fault.partition(":")[0] if fault else ",".join(CALLS)
        injected = ("-e", f"inject={fault}") if fault else ()
        command = [
            "strace",
            "-f",
            "-qq",
            "-o",
            str(log or os.devnull),
            "-e",
            f"trace={traced}",
            *injected,
        ]
        tracer = subprocess.Popen([*command, "-p", str(child)], stderr=subprocess.DEVNULL)
        status = Path(f"/proc/{child}/status")
        while tracer.poll() is None and not re.search(r"State:\s+t", status.read_text()):
            time.sleep(0.001)
    os.kill(child, signal.SIGCONT)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if tracer is not None:
        tracer.wait()
    assert code != -signal.SIGALRM, f"no end after {HANG_SECONDS} seconds"
    return code


def calls_of(work: Work, folder: Path) -> Counter[str]:
    """Count the system calls of `work`; for each call, use the thread that makes it most often."""
    with tempfile.NamedTemporaryFile() as log:
        assert attempt(work, folder, log=Path(log.name)) == 0
        made = re.findall(r"^(\d+) +(\w+)\(", Path(log.name).read_text(), re.MULTILINE)
    most: Counter[str] = Counter()
    for (_, call), count in Counter(made).items():
        most[call] = max(most[call], count)
    return most


def try_faults(
    name: str,
    kind: str,
    work: Work,
    damaged: Damaged,
    folder: Path,
    *,
    begin: Work = lambda _: None,
    most: int | None = None,
) -> FaultTally:
    """Call `work` once per system call with a fault at that call, in a fresh folder prepared by
    `begin`.

    Args:
        kind: "kill" or "fail".
        most: Maximum number of system calls, chosen at random; None for all.
    """

    def fresh(folder: Path) -> Path:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        begin(folder)
        return folder

    tally = FaultTally(f"{FAULTS[kind]}: {name}")
    reference = fresh(folder / "reference")
    points = [
        (call, index + 1)
        for call, count in sorted(calls_of(work, reference).items())
        for index in range(count)
    ]
    wanted = contents(reference)
    for call, number in (
        points if most is None else random.Random(0).sample(points, min(most, len(points)))
    ):
        tried = fresh(folder / "tried")
        effect = "signal=KILL" if kind == "kill" else f"error={CALLS[call]}"
        attempt(work, tried, f"{call}:{effect}:when={number}")
        tally.tried += 1
        tally.half_written += bool(damaged(tried))
        tally.other_end += attempt(work, tried) != 0 or contents(tried) != wanted
    return tally


def contents(folder: Path) -> dict[str, bytes]:
    """Return a dict mapping file names to contents, with temporary files but without folder
    locks.
    """
    return {
        name: content for name, content in read_files(folder).items() if Path(name).name != ".lock"
    }


# --- tested functions: write each kind of file, extract, train


def write_every_file(folder: Path, version: int = 1) -> None:
    """Write a file of each kind, in folders that may not exist yet."""
    remove_abandoned(folder)
    flips.write_features(folder / "ego" / "features.h5", version)
    flips.write_embeddings(folder / "exo" / "embeddings.h5", version)
    flips.write_manifest(folder / "manifest.json", f"demo {version}")
    flips.write_checkpoint(folder / "checkpoint", 7 + version)
    write_bytes(folder / "run" / "config.json", flips.config_content(version))


def unlike(*versions: dict[str, bytes], needed: dict[str, bytes] | None = None) -> Damaged:
    """Return a function that lists files that equal none of the versions, and needed files that are
    missing.
    """

    def damaged(folder: Path) -> list[str]:
        found = {
            name: content for name, content in contents(folder).items() if ".partial" not in name
        }
        others = [
            name
            for name, content in found.items()
            if content not in [each.get(name) for each in versions]
        ]
        return others + [name for name in needed or () if name not in found]

    return damaged


def writing(folder: Path, kind: str, *, over: bool, most: int | None = None) -> FaultTally:
    """Try faults while writing each kind of file, and replacing older files if `over` is set."""
    versions = []
    for version in (0, 1):
        write_every_file(folder / f"version {version}", version)
        versions.append(contents(folder / f"version {version}"))
    begin = partial(write_every_file, version=0) if over else lambda _: None
    damaged = unlike(*versions, needed=versions[0] if over else None)
    name = f"each kind of file, {'over an older one' if over else 'new'}"
    return try_faults(name, kind, write_every_file, damaged, folder, begin=begin, most=most)


def extraction(folder: Path, kind: str, most: int | None = None) -> FaultTally:
    """Try faults while extracting two videos with a small encoder."""
    for name in ("a", "b"):
        flips.write_video(folder / f"{name}.mp4")
    table = folder / "mine.csv"
    table.write_text("path,view,split\na.mp4,ego,train\nb.mp4,exo,train\n")

    def work(at: Path) -> None:
        torch.set_num_threads(1)
        extract_features(
            manifest=table,
            encoder="random/tiny",
            ratios=(0.3,),
            features_dir=at / "features",
            decoders=1,
        )

    (folder / "whole").mkdir()
    work(folder / "whole")
    as_written = unlike(contents(folder / "whole"))

    def damaged(at: Path) -> list[str]:
        """Accept a readable manifest without the failed video, and a readable failures.json."""
        mine = at / "features" / "mine"
        allowed = []
        manifest = mine / "manifest.json"
        if manifest.exists() and None in [video.frames for video in load_manifest(manifest).videos]:
            allowed.append(manifest)
        if read_failures(mine / "random--tiny"):
            allowed.append(mine / "random--tiny" / "failures.json")
        return [name for name in as_written(at) if at / name not in allowed]

    return try_faults("extraction", kind, work, damaged, folder, most=most)


def training(folder: Path, kind: str, most: int | None = None) -> FaultTally:
    """Try faults while training for two epochs with validation, checkpoints and embedding."""
    views = ("ego", "exo")
    videos = {
        (split, view, f"{view} {n}"): 60
        for n, split in enumerate(("train", "train", "val"))
        for view in views
    }
    write_cache(folder / "features", videos, dataset="toy", encoder="random/tiny")
    sizes = {
        "latent": 8,
        "depth": 1,
        "decoder_depth": 1,
        "heads": 2,
        "frames": 4,
        "epochs": 2,
        "validate_every": 1,
    }

    def work(at: Path) -> None:
        torch.set_num_threads(1)
        resume = (at / "run" / "config.json").exists()
        places = {"features_dir": folder / "features", "runs_dir": at}
        train_run("run", checkpoint_every=1, resume=resume, device="cpu", **places, **sizes)

    def damaged(at: Path) -> list[str]:
        has_run = (at / "run" / "config.json").exists()
        checked = verify_run(at, "run", folder / "features") if has_run else ()
        # Ignore missing files.
        return [str(file.path) for file in checked if file.problem and file.path.is_file()]

    return try_faults("training", kind, work, damaged, folder, most=most)
