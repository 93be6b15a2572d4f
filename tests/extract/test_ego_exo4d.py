"""Tests of byov-extract on a small Ego-Exo4D tree."""

import pytest
from tests.data.ego_exo4d_tree import SPLITS, WHEEL, make_step, make_take, write_tree

import byov
from byov.cache.manifest import load_manifest

TINY = ("--encoder", "random/tiny", "--ratios", "0.3")


@pytest.fixture
def root(tmp_path):
    takes = [make_take(number, task_end_sec=1.5) for number in range(3)]
    steps = [make_step("Lift bike", 0.6, 0.9), make_step("Loosen nut", 0.9, 1.2)]
    return write_tree(tmp_path / "egoexo", takes, {"uid-0": steps, "uid-2": steps}, SPLITS)


def test_a_task_is_checked_extracted_and_trained_on(byov_extract, root, tmp_path):
    choose = ("--ego-exo4d", root, "--task", "wheel", "--exo", "all")
    ran = byov_extract(*choose, "--check", *TINY, "--json")
    assert ran.code == 0, ran
    check = ran.json
    assert (len(check["videos"]), check["frames"]) == (9, 9 * 10)
    assert check["hours"] == pytest.approx(9 / 3600)
    assert check["seconds"] == pytest.approx(90 / check["frames_per_second"])
    ran = byov_extract(*choose, *TINY, "--json")
    assert (ran.code, ran.json["extracted_videos"]) == (0, 9), ran.err
    manifest = load_manifest(tmp_path / "features/egoexo-wheel/manifest.json")
    assert manifest.phases == ("Lift bike", "Loosen nut")
    assert {video.group for video in manifest.videos} == {f"georgia_bike_0{i}" for i in range(3)}
    assert manifest.videos[0].labels == (-1, *(0,) * 3, *(1,) * 3, *(-1,) * 3)
    again = byov.extract_features(
        ego_exo4d=root,
        task=WHEEL,
        exo="all",
        name="egoexo-wheel",
        encoder="random/tiny",
        ratios=0.3,
        features_dir=tmp_path / "features",
    )
    assert (again.videos, again.cached) == (0, 9)


def test_without_a_choice_tasks_and_steps_are_listed(byov_extract, root):
    ran = byov_extract("--ego-exo4d", root)
    assert (ran.code, "--task, --step" in ran.err) == (0, True), ran
    rows = [line.split() for line in ran.out.splitlines()]
    assert ["--step", "Lift", "bike", "2", "0.00"] in rows
    listed = byov_extract("--ego-exo4d", root, "--json").json
    assert {(row["option"], row["name"], row["clips"]) for row in listed} >= {
        ("task", WHEEL, 3),
        ("scenario", "Bike Repair", 3),
    }


def test_mistakes_are_one_line(byov_extract, root, tmp_path):
    assert "takes.json is missing" in byov_extract("--ego-exo4d", tmp_path).error()
    message = byov_extract("--ego-exo4d", root, "--task", "Remove a Weel", *TINY).error()
    assert f"Closest: {WHEEL}" in message
    assert "--step requires --ego-exo4d" in byov_extract("--folder", root, "--step", "x").error()
