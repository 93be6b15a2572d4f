"""`make chaos`: print the tables of docs/reliability.md; exit code 1 if anything went unnoticed."""

import argparse
import contextlib
import sys
import tempfile
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", type=float, default=1.0, help="fraction of the damages in docs/reliability.md")
    scale = parser.parse_args().scale
    # At the end of the path: the folders next to tests/ have the names of other packages.
    sys.path.append(str(Path(__file__).parents[2]))
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stderr(None):
        wrong = damage(Path(folder), scale) + faults(Path(folder), scale)
    sys.exit(1 if wrong else 0)


def damage(folder: Path, scale: float) -> int:
    """Return how many damages of files with a digest went unnoticed."""
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
    print(f"\nunnoticed in videos: one bit: {_unnoticed(flipped)}; cuts: {_unnoticed(cut)}\n")
    return wrong


def _unnoticed(parts: list[Any]) -> str:
    return ", ".join(f"{part.place} {part.wrong} of {part.tried}" for part in parts if part.wrong) or "none"


def faults(folder: Path, scale: float) -> int:
    """Return how many faults left a half-written file or another end."""
    from tests.chaos import kills

    if kills.why_not():
        print(f"no faults at system calls: {kills.why_not()}")
        return 0
    most = round(60 * scale)  # an extraction or a training takes a second
    works = (
        partial(kills.writing, over=False),
        partial(kills.writing, over=True),
        partial(kills.extraction, most=most),
        partial(kills.training, most=most),
    )
    print(kills.HEAD)
    wrong = 0
    for number, (kind, work) in enumerate(product(kills.FAULTS, works)):
        (folder / f"faults {number}").mkdir()
        tally = work(folder / f"faults {number}", kind)
        print(tally.line(), flush=True)
        wrong += tally.half_written + tally.other_end
    return wrong


if __name__ == "__main__":
    main()
