"""Small Ego-Exo4D trees in the layout of its download."""

import json

from tests.factories import moving_images, write_file, write_video

FPS = 10
FRAMES = 20
WHEEL = "Remove a Wheel"
SPLITS = {"uid-0": "train", "uid-1": "val", "uid-2": "test"}


def make_take(number, **changes):
    name = f"georgia_bike_{number:02d}"
    cameras = {
        "aria01": {
            "rgb": {"relative_path": "frame_aligned_videos/aria01_214-1.mp4"},
            "slam-left": {"relative_path": "frame_aligned_videos/aria01_1201-1.mp4"},
        },
        "cam01": {"0": {"relative_path": "frame_aligned_videos/cam01.mp4"}},
        "cam02": {"0": {"relative_path": "frame_aligned_videos/cam02.mp4"}},
        "collage": {"0": {"relative_path": "frame_aligned_videos/preview.mp4"}},
        "best_exo": {"0": {"relative_path": None}},
    }
    take = {
        "take_uid": f"uid-{number}",
        "take_name": name,
        "root_dir": f"takes/{name}",
        "task_name": WHEEL,
        "parent_task_name": "Bike Repair",
        "task_start_sec": 0.5,
        "task_end_sec": None,
        "duration_sec": FRAMES / FPS,
        "participant_uid": number,
        "capture_uid": f"capture-{number}",
        "best_exo": "cam02",
        "is_dropped": False,
        "university_name": "georgia",
        "frame_aligned_videos": cameras,
    }
    return take | changes


def make_step(name, start, end):
    return {"start_time": start, "end_time": end, "step_name": name, "step_id": 3}


def write_tree(root, takes, steps=None, splits=None, missing=()):
    """Write metadata, annotations and the videos of all takes."""
    write_file(root / "takes.json", json.dumps(takes))
    annotations = {
        uid: {"take_uid": uid, "take_name": uid, "scenario": "Bike Repair", "segments": each}
        for uid, each in (steps or {}).items()
    }
    uids = list(annotations)
    for name, part in (("train", uids[:1]), ("val", uids[1:])):
        content = {"annotations": {uid: annotations[uid] for uid in part}, "taxonomy": {}}
        if part:
            path = root / f"annotations/keystep_{name}.json"
            write_file(path, json.dumps(content))
    if splits:
        content = {"take_uid_to_split": splits, "split_to_take_uids": {}}
        write_file(root / "annotations/splits.json", json.dumps(content))
    for number, take in enumerate(takes):
        for camera in ("aria01_214-1", "cam01", "cam02"):
            if take.get("root_dir") and (take["take_name"], camera) not in missing:
                path = root / take["root_dir"] / "frame_aligned_videos" / f"{camera}.mp4"
                write_video(path, moving_images(number + FRAMES)[number:], fps=FPS)
    return root
