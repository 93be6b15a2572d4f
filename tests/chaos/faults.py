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
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from tests.factories import read_files

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
    effect: str,
    work: Work,
    incomplete: Callable[[Path], Iterable[str]],
    folder: Path,
    *,
    begin: Work = lambda _: None,
    most: int | None = None,
) -> Counter[str]:
    """Call `work` once per system call with a fault at that call, in a fresh folder prepared by
    `begin`; then call it again without a fault.

    Args:
        effect: "kill" the process, or let the call "fail".
        incomplete: Returns the names of incomplete files in a folder.
        most: Maximum number of system calls, chosen at random; None for all.

    Returns:
        Counts of "tried" faults, and of "damaged" outcomes: incomplete files, or other files than
        `work` writes without a fault after the second call.
    """

    def fresh(folder: Path) -> Path:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        begin(folder)
        return folder

    reference = fresh(folder / "reference")
    points = [
        (call, index + 1)
        for call, count in sorted(calls_of(work, reference).items())
        for index in range(count)
    ]
    wanted = contents(reference)
    outcomes: Counter[str] = Counter()
    if most is not None:
        points = random.Random(0).sample(points, min(most, len(points)))
    for call, number in points:
        tried = fresh(folder / "tried")
        injected = "signal=KILL" if effect == "kill" else f"error={CALLS[call]}"
        attempt(work, tried, f"{call}:{injected}:when={number}")
        outcomes["tried"] += 1
        is_incomplete = any(incomplete(tried))
        is_different = attempt(work, tried) != 0 or contents(tried) != wanted
        outcomes["damaged"] += is_incomplete or is_different
    return outcomes


def contents(folder: Path) -> dict[str, bytes]:
    """Return a dict mapping file names to contents, with temporary files but without folder
    locks.
    """
    return {
        name: content for name, content in read_files(folder).items() if Path(name).name != ".lock"
    }


def files_unlike(
    folder: Path, versions: Sequence[dict[str, bytes]], needed: Iterable[str] = ()
) -> list[str]:
    """Return the names of files that equal none of the versions, and of needed files that are
    missing.
    """
    files = {name: content for name, content in contents(folder).items() if ".partial" not in name}
    others = [
        name
        for name, content in files.items()
        if content not in [version.get(name) for version in versions]
    ]
    return others + [name for name in needed if name not in files]
