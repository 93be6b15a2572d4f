"""Faults at system calls: a process is killed at one call after the other, or told there that the disk is full.

strace does it, and only to processes that are forked here for it: what they do is a function, which is called again
afterwards without a fault, and must come to the same end as if there had been none.
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
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

# Whatever can leave something behind, and how it fails on a disk that is full or broken.
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
SECONDS = 120  # after which a process is taken to hang
Work = Callable[[Path], object]
NotWhole = Callable[[Path], list[str]]


@dataclass
class FaultTally:
    """What became of the faults of one row of the table."""

    fault: str
    tried: int = 0
    half_written: int = 0  # files that were there and not whole
    other_end: int = 0  # called again, it did not come to the same end

    def line(self) -> str:
        return f"| {self.fault} | {self.tried:,} | {self.half_written:,} | {self.other_end:,} |"


HEAD = "| fault | tried | half-written | another end |\n|---|---|---|---|"


def why_not() -> str:
    """Why no faults can be injected here; "" if they can."""
    if shutil.which("strace") is None:
        return "strace is not installed"
    with tempfile.TemporaryDirectory() as folder:
        marker = Path(folder) / "marker"
        ended = attempt(lambda _: marker.mkdir(), Path(folder), "mkdir:signal=KILL:when=1")
        return "" if ended == -signal.SIGKILL and not marker.exists() else "strace may not trace processes here"


def attempt(work: Work, folder: Path, fault: str | None = None, log: Path | None = None) -> int:
    """Call `work` in a process of its own, with a fault as strace spells it; returns how that ended.

    0: it is done; 1: it raised; -n: it was killed by signal n.
    """
    child = os.fork()
    if not child:
        os.kill(os.getpid(), signal.SIGSTOP)  # until strace is there
        _work_and_exit(work, folder)
    os.waitpid(child, os.WUNTRACED)
    traced = ",".join(CALLS) if fault is None else fault.partition(":")[0]
    injected = () if fault is None else ("-e", f"inject={fault}")
    command = ["strace", "-f", "-qq", "-o", str(log or os.devnull), "-e", f"trace={traced}", *injected]
    tracer = subprocess.Popen([*command, "-p", str(child)], stderr=subprocess.DEVNULL) if fault or log else None
    try:
        while tracer is not None and tracer.poll() is None and not _is_held(child):
            time.sleep(0.001)
        os.kill(child, signal.SIGCONT)
        return _ending(child)
    finally:
        if tracer is not None:
            tracer.wait()


def _work_and_exit(work: Work, folder: Path) -> None:
    code = 1
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        work(folder)
        code = 0
    finally:
        os._exit(code)


def _is_held(process: int) -> bool:
    """Stopped by its tracer: a moment after it has one, before which it would be let go on unseen."""
    return re.search(r"State:\s+t", Path(f"/proc/{process}/status").read_text()) is not None


def _ending(child: int) -> int:
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.001)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    raise TimeoutError(f"it hangs: {SECONDS} seconds")


def calls_of(work: Work, folder: Path) -> Counter[str]:
    """How often `work` makes each of the calls, in the thread that makes most of them."""
    with tempfile.NamedTemporaryFile() as log:
        assert attempt(work, folder, log=Path(log.name)) == 0
        made = re.findall(r"^(\d+) +(\w+)\(", Path(log.name).read_text(), re.MULTILINE)
    most: Counter[str] = Counter()
    for (_, call), count in Counter(made).items():
        most[call] = max(most[call], count)
    return most


def faults(made: Counter[str], kind: str, most: int | None = None) -> Iterator[str]:
    """One for each call that was made, or for so many of them; kind: "kill" or "fail"."""
    points = [(call, number) for call, count in sorted(made.items()) for number in range(1, count + 1)]
    if most is not None and most < len(points):
        points = random.Random(0).sample(points, most)
    for call, number in points:
        yield f"{call}:{'signal=KILL' if kind == 'kill' else f'error={CALLS[call]}'}:when={number}"


def try_faults(
    name: str,
    kind: str,
    work: Work,
    not_whole: NotWhole,
    folder: Path,
    *,
    begin: Work | None = None,
    most: int | None = None,
) -> FaultTally:
    """One fault in each process, from the same beginning.

    begin: makes what is there before, if anything. not_whole: the files of a folder that are there and not whole.
    """
    tally = FaultTally(name)
    reference = _begun(folder / "reference", begin)
    made = calls_of(work, reference)
    wanted = contents(reference)
    for fault in faults(made, kind, most):
        tried = _begun(folder / "tried", begin)
        attempt(work, tried, fault)
        tally.tried += 1
        tally.half_written += bool(not_whole(tried))
        tally.other_end += attempt(work, tried) != 0 or contents(tried) != wanted
    return tally


def _begun(folder: Path, begin: Work | None) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    if begin is not None:
        begin(folder)
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    """Every file but locks, by name; temporary files, too."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != ".lock")
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}
