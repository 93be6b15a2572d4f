"""Tests of which labels in the manifest a repeated extraction keeps, changes and removes."""

import pytest
from tests.factories import write_noise_video

from byov.cache.manifest import load_manifest

TINY = ("--encoder", "random/tiny", "--ratios", "0.3")
HEAD = "path,view,split,events\n"


@pytest.fixture
def extract(byov_extract, make_dataset):
    """Return a function that writes the CSV of two videos and extracts them."""
    table = make_dataset([15, 30])

    def run(ego, exo, *options):
        table.write_text(f"{HEAD}v0.mp4,ego,train,{ego}\nv1.mp4,exo,train,{exo}\n")
        return byov_extract("--manifest", table, *TINY, *options)

    return run


@pytest.fixture
def manifest(tmp_path):
    return lambda: load_manifest(tmp_path / "features/mine/manifest.json")


def labels(manifest):
    return [video.labels and video.labels.count(0) for video in manifest().videos]


def test_labels_of_another_source_are_kept(extract, byov_extract, manifest, tmp_path):
    assert extract("4f pour", "6f pour").code == 0
    options = ("--folder", tmp_path / "videos", "--name", "mine")
    again = byov_extract(*options, "--ego", "*v0*", "--exo", "*v1*", "--split", "1,0,0", *TINY)
    assert (again.code, "kept the labels of 2 videos" in again.err) == (0, True), again.err
    assert (labels(manifest), manifest().phases) == ([4, 6], ("start", "pour"))
    assert byov_extract(*options, *TINY).code == 0
    assert labels(manifest) == [4, 6]
    dropped = byov_extract(*options, *TINY, "--drop-labels")
    assert "labels of 2 videos changed (2 removed)" in dropped.err
    assert (labels(manifest), manifest().phases) == ([None, None], ())


def test_every_change_of_labels_is_logged(extract, manifest):
    first = extract("4f", "")
    assert (first.code, "labels of" in first.err) == (0, False), first.err
    assert "labels of 1 video changed (1 added)\n" in extract("4f", "6f").err
    assert "labels of 2 videos changed\n" in extract("5f", "7f").err
    assert "labels of" not in extract("5f", "7f").err
    assert "kept the labels of 1 video " in extract("5f", "").err
    assert labels(manifest) == [5, 7]
    assert "changed (1 removed)" in extract("5f", "", "--drop-labels").err
    assert labels(manifest) == [5, None]


def test_kept_labels_have_the_phases_of_the_others(extract, manifest):
    assert extract("4f pour", "6f pour").code == 0
    ran = extract("4f stir", "")
    assert (ran.code, "labels of other phases" in ran.err) == (2, True)
    assert (labels(manifest), manifest().phases) == ([4, 6], ("start", "pour"))
    assert extract("4f stir", "", "--drop-labels").code == 0
    assert (labels(manifest), manifest().phases) == ([4, None], ("start", "stir"))


def test_labels_of_a_replaced_video_are_not_kept(extract, manifest, tmp_path):
    assert extract("4f", "6f").code == 0
    write_noise_video(tmp_path / "videos/v1.mp4", 30, seed=9)
    ran = extract("4f", "", "--overwrite")
    assert (ran.code, "labels of 1 video changed (1 removed)" in ran.err) == (0, True), ran.err
    assert labels(manifest) == [4, None]
