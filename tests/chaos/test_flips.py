"""Damage files and check that readers raise an error or return the same values as before.

`make chaos` tries more cases. Seeds are fixed, so files and damage are the same each time.
"""

import os
import random
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.chaos.files import CODECS, KINDS, read_video, write_video

from byov.errors import ByovError

CASES = 1000 if "CHAOS" in os.environ else 200


def outcome(path: Path, read: Callable[[Path], Any], before: Any) -> str:
    """Return "detected" if reading raises an error, "harmless" if it returns the same values as
    before, else "wrong".
    """
    try:
        np.testing.assert_equal(read(path), before)
    except ByovError:
        return "detected"
    except AssertionError:
        return "wrong"
    return "harmless"  # the damaged bytes are padding or never read


def flip_bits(
    path: Path, read: Callable[[Path], Any], count: int, positions: Sequence[int] = ()
) -> Counter[str]:
    """Flip a random bit of an intact file, at one of the byte positions, and read it, `count`
    times.
    """
    chance = random.Random(path.name)
    intact = path.read_bytes()
    before = read(path)
    outcomes: Counter[str] = Counter()
    for _ in range(count):
        damaged = bytearray(intact)
        damaged[chance.choice(positions or range(len(intact)))] ^= 1 << chance.randrange(8)
        path.write_bytes(damaged)
        outcomes[outcome(path, read, before)] += 1
    path.write_bytes(intact)
    return outcomes


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_damage_is_never_silently_wrong(tmp_path, record, kind):
    write, read, positions = KINDS[kind]
    path = write(tmp_path)
    outcomes = flip_bits(path, read, CASES, positions(path) if positions else ())
    record("one bit of a file flipped", CASES, ["wrong"] * outcomes["wrong"])
    assert outcomes["wrong"] == 0
    assert outcomes["detected"] > 20  # many bits of HDF5's metadata are never read


def test_undetected_damage_is_counted(tmp_path):
    """Use a reader without any checks."""
    path = tmp_path / "text"
    path.write_bytes(bytes(range(200)))
    assert flip_bits(path, Path.read_bytes, 20) == {"wrong": 20}
    assert flip_bits(path, lambda path: path.read_bytes()[0], 20, positions=[1, 2]) == {
        "harmless": 20
    }
    assert path.read_bytes() == bytes(range(200))


# Unnoticed cuts out of nine. Most of these formats do not declare their duration.
UNNOTICED_CUTS = {
    "a.ts": 8,
    "b.ts": 8,
    "a.ogv": 7,
    "a.gif": 8,
    "a.y4m": 9,
    "a.h264": 1,
    "a.hevc": 4,
    "a.nut": 2,
    "a.m1v": 1,
    "a.wmv": 1,
    "a.mxf": 1,
}


@pytest.mark.parametrize("name", CODECS)
def test_cut_video_is_noticed_unless_its_format_cannot_tell(tmp_path, record, name):
    """Cut a video at each tenth of its size; losing frames without an error counts as wrong."""
    path = tmp_path / name
    whole = write_video(path, CODECS[name]).read_bytes()
    frames = len(read_video(path))
    outcomes: Counter[str] = Counter()
    for tenth in range(1, 10):
        path.write_bytes(whole[: len(whole) * tenth // 10])
        outcomes[outcome(path, lambda path: len(read_video(path)), frames)] += 1
    record("video truncated", 9, ["wrong"] * outcomes["wrong"])
    assert outcomes["wrong"] == UNNOTICED_CUTS.get(name, 0)
