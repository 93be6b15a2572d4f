"""`make chaos`: damages files of every kind, kills processes at their system calls, and prints what became of it.

The tables are those of docs/reliability.md.
"""

import argparse
import contextlib
import sys
import tempfile
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any


def main() -> None:
    parser = argparse.ArgumentParser(description="Damage files, kill processes, and print what became of it.")
    parser.add_argument("--scale", type=float, default=1.0, help="of the numbers of docs/reliability.md")
    scale = parser.parse_args().scale
    # As pytest has it; behind all else, since the folders beside tests/ are named as other packages are.
    sys.path.append(str(Path(__file__).parents[2]))
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stderr(None):
        wrong = damage(Path(folder), scale) + faults(Path(folder), scale)
    sys.exit(1 if wrong else 0)


def damage(folder: Path, scale: float) -> int:
    """Returns how many were not noticed, of the files that carry a digest."""
    import av
    import torch
    from tests.chaos import flips

    torch.set_num_threads(1)
    av.logging.set_level(None)
    print(flips.HEAD)
    wrong = 0
    for tally in flips.rows(folder, scale):
        print(tally.line(), flush=True)
        wrong += tally.wrong
    flipped, cut = flips.video_rows(folder, round(40 * scale))
    for what, parts in (("one bit", flipped), ("cut at each tenth", cut)):
        print(flips.total(f"video, {what}, {len(parts)} formats", parts).line(), flush=True)
    print(f"\nnot noticed of videos, by format; one bit: {_unnoticed(flipped)}; cut: {_unnoticed(cut)}\n")
    return wrong


def _unnoticed(parts: list[Any]) -> str:
    return ", ".join(f"{part.place} {part.wrong} of {part.tried}" for part in parts if part.wrong) or "none"


def faults(folder: Path, scale: float) -> int:
    """Returns after how many there was a file that is not whole, or another end."""
    from tests.chaos import kills, stages

    lacking = kills.why_not()
    if lacking:
        print(f"no faults at system calls: {lacking}")
        return 0
    most = round(60 * scale)  # of an extraction or a training, which take a second each
    faulty = (
        partial(stages.writing, over=False),
        partial(stages.writing, over=True),
        partial(stages.extraction, most=most),
        partial(stages.training, most=most),
    )
    print(kills.HEAD)
    wrong = 0
    for number, (kind, stage) in enumerate(product(("kill", "fail"), faulty)):
        (folder / f"faults {number}").mkdir()
        tally = stage(folder / f"faults {number}", kind)
        print(tally.line(), flush=True)
        wrong += tally.half_written + tally.other_end
    return wrong


if __name__ == "__main__":
    main()
