"""A part of `make chaos`: at least 200 damages of every kind of file."""

import random
from pathlib import Path

import pytest
from tests.chaos import flips

PLACES = (
    "feature file, random byte",
    "feature file, one metadata bit",
    "embeddings, random byte",
    "checkpoint, random byte",
    "checkpoint, header bit",
    "model, random byte",
    "manifest.json, one bit",
    "config.json, one bit",
)


@pytest.mark.slow
def test_damage_is_never_silently_wrong(tmp_path):
    tallies = {tally.place: tally for tally in flips.rows(tmp_path, 0.0)}
    assert tuple(tallies) == PLACES
    for tally in tallies.values():
        assert tally.tried >= 200
        assert tally.wrong == 0, tally
        assert tally.noticed > tally.tried // 10, tally  # many bits of HDF5's metadata are never read


def test_harness_finds_unnoticed_damage(tmp_path):
    """The reader checks nothing."""
    path = tmp_path / "text"
    path.write_bytes(bytes(range(200)))
    tally = flips.try_damage("text", path, Path.read_bytes, flips.flip_byte, 20)
    assert (tally.tried, tally.noticed, tally.harmless, tally.wrong) == (20, 0, 0, 20)
    assert path.read_bytes() == bytes(range(200))


def test_flip_bit_flips_one_bit():
    for seed in range(20):
        flipped = flips.flip_bit([3, 5])(bytes(8), random.Random(seed))
        assert sum(byte.bit_count() for byte in flipped) == 1
        assert flipped[3] or flipped[5]


# Of nine cuts. Most of these formats do not declare their duration.
UNNOTICED_CUTS = {"a.ts": 8, "b.ts": 8, "a.ogv": 7, "a.gif": 8, "a.y4m": 9, "a.h264": 1, "a.hevc": 4, "a.nut": 2}
UNNOTICED_CUTS |= {"a.m1v": 1, "a.wmv": 1, "a.mxf": 1}


@pytest.mark.parametrize("name", flips.CUT)
def test_cut_video_is_noticed_unless_its_format_cannot_tell(tmp_path, name):
    tally = flips.cut_video(tmp_path / name, *flips.CUT[name])
    assert tally.tried == 9
    assert tally.wrong == UNNOTICED_CUTS.get(name, 0)
