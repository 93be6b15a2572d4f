"""Tests of Ego-Exo4D on a small tree in the layout of its download."""

import json
from functools import partial

import numpy as np
import pytest
from tests.data.ego_exo4d_tree import FPS, FRAMES, SPLITS, WHEEL, make_step, make_take, write_tree
from tests.factories import write_file, write_video

from byov.data.dataset import FileSegment
from byov.data.ego_exo4d import EgoExo4D, list_choices, read_metadata
from byov.data.video import FrameReader
from byov.errors import DatasetError
from byov.records import UNLABELED


@pytest.fixture
def make(tmp_path):
    """Return a function that writes metadata, annotations and the videos of all takes."""
    return partial(write_tree, tmp_path / "egoexo")


def read(root, **options):
    return EgoExo4D(**({"task": WHEEL} | options)).read(root)


def test_views_of_a_take(make):
    root = make([make_take(number) for number in range(3)], splits=SPLITS)
    dataset = read(root)
    assert dataset.name == "egoexo-remove-a-wheel"
    assert [video.id for video in dataset.videos[:2]] == [
        "georgia_bike_00-ego",
        "georgia_bike_00-cam02",
    ]
    ego, exo = dataset.videos[:2]
    assert (ego.view, exo.view) == ("ego", "exo")
    assert (ego.path.name, exo.path.name) == ("aria01_214-1.mp4", "cam02.mp4")
    assert ego.pair == exo.pair == ego.group == exo.group == "georgia_bike_00"
    assert ego.segment == exo.segment == FileSegment(0.5, np.inf)
    assert len(list(FrameReader(ego.path, segment=ego.segment).images())) == FRAMES - 5
    assert [video.split for video in dataset.videos[::2]] == ["train", "val", "test"]


@pytest.mark.parametrize(
    ("exo", "cameras"),
    [
        ("best", {"ego", "cam02"}),
        ("all", {"ego", "cam01", "cam02"}),
        ("cam01", {"ego", "cam01"}),
        ("cam01, cam02", {"ego", "cam01", "cam02"}),
    ],
)
def test_exo_cameras_are_chosen(make, exo, cameras):
    videos = read(make([make_take(0)], splits=SPLITS), exo=exo).videos
    assert {video.id.removeprefix("georgia_bike_00-") for video in videos} == cameras


def test_smaller_copies_are_preferred(make):
    root = make([make_take(0)], splits=SPLITS)
    small = root / "takes/georgia_bike_00/frame_aligned_videos/downscaled/448/cam02.mp4"
    write_video(small, FRAMES, fps=FPS)
    assert [video.path == small for video in read(root).videos] == [False, True]


def test_keysteps_are_labels_in_any_order(make, caplog):
    caplog.set_level("INFO")
    steps = [
        make_step("Lift bike", 1.5, 1.8),
        make_step("Loosen nut", 0.2, 0.9),
        make_step("Lift bike", 0.8, 1.0),
        make_step("Wave", 2.5, 3.0),
    ]
    root = make([make_take(0), make_take(1)], {"uid-0": steps}, SPLITS)
    dataset = read(root)
    assert (dataset.phase_names, dataset.ordered) == (("Loosen nut", "Lift bike"), True)
    labels = dataset.videos[0].phases(np.arange(15) / FPS)
    assert labels == (0,) * 3 + (1,) * 2 + (UNLABELED,) * 5 + (1,) * 3 + (UNLABELED,) * 2
    assert dataset.videos[1].phases(np.arange(15) / FPS) == labels
    assert dataset.videos[2].phases(np.arange(15) / FPS) is None
    assert "1 step started before the previous one ended" in caplog.text
    assert "skipped (step after the end of its take): georgia_bike_00 at 2.5 s" in caplog.text


def test_repeated_steps_have_no_order(make):
    steps = [make_step("a", 0.5, 0.8), make_step("b", 0.8, 1.0), make_step("a", 1.0, 1.4)]
    assert not read(make([make_take(0)], {"uid-0": steps}, SPLITS)).ordered


def test_each_instance_of_a_step_is_a_video(make, caplog):
    caplog.set_level("INFO")
    steps = [make_step("Crack egg", 0.2, 0.6), make_step("Crack egg", 1.0, 9.0)]
    steps += [make_step("Whisk", 0.6, 1.0), make_step("Crack egg", 5.0, 6.0)]
    root = make([make_take(0), make_take(1)], {"uid-0": steps}, SPLITS)
    videos = read(root, task=None, step="crack egg").videos
    assert [(video.pair, video.group, *video.segment[:2]) for video in videos[::2]] == [
        ("georgia_bike_00-1", "georgia_bike_00", 0.2, 0.6),
        ("georgia_bike_00-2", "georgia_bike_00", 1.0, np.inf),
    ]
    assert all(video.intervals is None for video in videos)
    assert "skipped (step after the end of its take): georgia_bike_00-3 at 5 s" in caplog.text


def test_without_official_splits_participants_and_captures_stay_together(make):
    takes = [
        make_take(number, participant_uid=number // 2, capture_uid=f"{(number + 1) // 6}")
        for number in range(12)
    ] + [make_take(20 + number) for number in range(4)]
    dataset = read(make(takes))
    split_of = {video.group: video.split for video in dataset.videos}
    assert len({split_of[take["take_name"]] for take in takes[:12]}) == 1
    assert set(split_of.values()) == {"train", "val", "test"}
    chosen = read(make(takes, splits={"uid-0": "test"}), split=(1.0, 0.0, 0.0))
    assert {video.split for video in chosen.videos} == {"train"}


def test_unusable_takes_are_skipped_and_named(make, caplog):
    caplog.set_level("INFO")
    takes = [
        make_take(0, best_exo=None, duration_sec=None, participant_uid=None, task_start_sec=None),
        make_take(1, is_dropped=True),
        make_take(2, frame_aligned_videos=None),
        make_take(3, take_uid=None),
        make_take(4),
        make_take(5),
    ]
    splits = {f"uid-{number}": "train" for number in range(5)}
    steps = {"uid-9": [make_step("a", 0, 1)], "uid-0": [make_step("b", None, 1)]}
    root = make(takes, steps, splits, missing=[("georgia_bike_04", "cam02")])
    videos = {video.id: video for video in read(root).videos}
    assert list(videos) == ["georgia_bike_00-ego", "georgia_bike_00-cam01", "georgia_bike_04-ego"]
    assert videos["georgia_bike_04-ego"].pair is None
    for message in (
        "skipped (dropped): georgia_bike_01",
        "skipped (unreadable entry of takes.json): entry 3 (take_uid is None",
        "skipped (not in splits.json): georgia_bike_05",
        "skipped (no exo video on disk): georgia_bike_04 cam02",
        "skipped (no ego video on disk): georgia_bike_02 ego",
        "skipped (best_exo unknown; used the first exo camera): georgia_bike_00",
        "skipped (keysteps of an unknown take): uid-9",
        "skipped (unreadable step): step 0 of uid-0 (start_time is None",
    ):
        assert message in caplog.text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"task": None}, "choose what to read with --task, --scenario or --step"),
        ({"task": "Remove a Weel"}, "no task 'Remove a Weel'. Closest: Remove a Wheel"),
        ({"task": "wheel"}, r"--task 'wheel' matches 2 names: Fix a Wheel; Remove a Wheel"),
        ({"scenario": "Cooking"}, "no scenario 'Cooking'"),
        ({"task": None, "step": "Crack"}, "no step 'Crack'"),
        ({"exo": "cam07"}, "has no exo videos"),
    ],
)
def test_unknown_choices_name_the_closest(make, options, message):
    root = make([make_take(0), make_take(1, task_name="Fix a Wheel")], splits=SPLITS)
    with pytest.raises(DatasetError, match=message) as error:
        read(root, **options)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{}", r"takes\.json: not readable"),
        (b'[{"take_name": "caf\xe9"}]', r"takes\.json: not readable"),
        (b"[" * 100_000, r"takes\.json: not readable"),
        (None, r"not a folder of Ego-Exo4D, because takes\.json is missing"),
    ],
)
def test_unreadable_metadata(tmp_path, content, message):
    if content is not None:
        (tmp_path / "takes.json").write_bytes(content)
    with pytest.raises(DatasetError, match=message) as error:
        read(tmp_path)
    assert "\n" not in str(error.value)


def test_paths_outside_of_the_folder_are_refused(make):
    root = make([make_take(0)], splits=SPLITS)
    write_file(root / "takes.json", json.dumps([make_take(0, root_dir="../elsewhere")]))
    with pytest.raises(DatasetError, match="is outside of"):
        read(root)


def test_choices_are_counted(make):
    steps = [make_step("Loosen nut", 0.0, 0.9), make_step("Loosen nut", 1.1, 2.0)]
    root = make([make_take(0), make_take(1, task_name="Fix a Flat")], {"uid-1": steps})
    choices = [
        (choice.option, choice.name, choice.clips, round(choice.hours * 3600, 3))
        for choice in list_choices(read_metadata(root))
    ]
    assert choices == [
        ("scenario", "Bike Repair", 2, 3.0),
        ("task", "Fix a Flat", 1, 1.5),
        ("task", WHEEL, 1, 1.5),
        ("step", "Loosen nut", 2, 1.8),
    ]
