"""Print tables of damaged files and injected faults (`make chaos`); exit with 1 if any went
unnoticed.
"""

import contextlib
import sys
import tempfile
from functools import partial
from itertools import product
from pathlib import Path

# Append to the path, because folders next to tests/ have the same names as other packages.
sys.path.append(str(Path(__file__).parents[2]))


def damage(folder: Path) -> int:
    """Damage files; return how often damage to a file with a digest went unnoticed."""
    import av
    import torch
    from tests.chaos import flips

    torch.set_num_threads(1)
    av.logging.set_level(None)
    print(flips.HEAD)
    wrong = 0
    for tally in flips.rows(folder, 1000):
        print(tally.line(), flush=True)
        wrong += tally.wrong
    flipped = []
    cut = []
    for name, codec in flips.CODECS.items():
        path = flips.write_video(folder / name, codec)
        flipped.append(flips.flip_bits(name, path, flips.read_video, 40))
        cut.append(flips.cut_video(path, codec))
    for what, parts in (("one bit", flipped), ("cut at each tenth", cut)):
        print(flips.total(f"video, {what}, {len(parts)} formats", parts).line())
        unnoticed = [f"{part.place} {part.wrong} of {part.tried}" for part in parts if part.wrong]
        print(f"unnoticed: {', '.join(unnoticed)}")
    return wrong


def faults(folder: Path) -> int:
    """Inject faults; return how many left a half-written file or changed the final files."""
    from tests.chaos import kills

    if kills.why_not():
        print(f"no faults at system calls: {kills.why_not()}")
        return 0
    works = (
        partial(kills.writing, over=False),
        partial(kills.writing, over=True),
        partial(kills.extraction, most=60),  # each extraction or training takes a second
        partial(kills.training, most=60),
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
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stderr(None):
        wrong = damage(Path(folder)) + faults(Path(folder))
    sys.exit(1 if wrong else 0)
