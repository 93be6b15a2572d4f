"""Subset of `make chaos`: 200 bit flips in each kind of file."""

from pathlib import Path

import pytest
from tests.chaos import flips


@pytest.mark.slow
def test_damage_is_never_silently_wrong(tmp_path):
    tallies = list(flips.rows(tmp_path, 200))
    assert len(tallies) == 8
    for tally in tallies:
        assert (tally.tried, tally.wrong) == (200, 0), tally
        assert tally.noticed > 20, tally  # many bits of HDF5's metadata are never read


def test_harness_finds_unnoticed_damage(tmp_path):
    """Use a reader without any checks."""
    path = tmp_path / "text"
    path.write_bytes(bytes(range(200)))
    tally = flips.flip_bits("text", path, Path.read_bytes, 20)
    assert (tally.tried, tally.noticed, tally.harmless, tally.wrong) == (20, 0, 0, 20)
    tally = flips.flip_bits("text", path, lambda path: path.read_bytes()[0], 20, positions=[1, 2])
    assert (tally.tried, tally.noticed, tally.harmless, tally.wrong) == (20, 0, 20, 0)
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
}
UNNOTICED_CUTS |= {"a.m1v": 1, "a.wmv": 1, "a.mxf": 1}


@pytest.mark.parametrize("name", flips.CODECS)
def test_cut_video_is_noticed_unless_its_format_cannot_tell(tmp_path, name):
    tally = flips.cut_video(tmp_path / name, flips.CODECS[name])
    assert (tally.tried, tally.wrong) == (9, UNNOTICED_CUTS.get(name, 0))
