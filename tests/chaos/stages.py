"""What is killed: the writing of each kind of file, an extraction, a training; each as a function of a folder."""

import json
from collections.abc import Collection
from functools import partial
from pathlib import Path

import torch
from tests.chaos.flips import (
    FRAMES,
    config_content,
    write_checkpoint,
    write_embeddings,
    write_features,
    write_manifest,
    write_video,
)
from tests.chaos.kills import FaultTally, NotWhole, contents, try_faults

from byov.cache.atomic import remove_abandoned, write_text
from byov.cache.manifest import Manifest, VideoEntry, load_manifest
from byov.cache.verify import failures_path, read_failures, verify_run
from byov.extract.extract_features import extract_features
from byov.train.run import train_run

HAPPENED = {"kill": "killed at a system call", "fail": "a system call fails"}
SIZES = {"latent": 8, "depth": 1, "decoder_depth": 1, "heads": 2, "frames": 4, "epochs": 2, "validate_every": 1}


def write_every_file(folder: Path, version: int = 1) -> None:
    """One of each kind that byov writes, in folders that may not be there yet."""
    remove_abandoned(folder)
    write_features(folder / "ego" / "features.h5", version)
    write_embeddings(folder / "exo" / "embeddings.h5", version)
    write_manifest(folder / "manifest.json", f"demo {version}")
    write_checkpoint(folder / "checkpoint", 7 + version)
    write_text(folder / "run" / "config.json", config_content(version).decode())


def in_some_version(*versions: dict[str, bytes], needed: Collection[str] = ()) -> NotWhole:
    """Files under a final name that are as in none of the versions, and those that are needed and not there."""

    def not_whole(folder: Path) -> list[str]:
        found = {name: content for name, content in contents(folder).items() if not name.endswith(".partial")}
        others = [name for name, content in found.items() if content not in [each.get(name) for each in versions]]
        return others + [name for name in needed if name not in found]

    return not_whole


def writing(folder: Path, kind: str, *, over: bool, most: int | None = None) -> FaultTally:
    """over: there are files of those names already."""
    versions = []
    for version in (0, 1):
        write_every_file(folder / f"version {version}", version)
        versions.append(contents(folder / f"version {version}"))
    name = f"{HAPPENED[kind]}: each kind of file, {'over an older one' if over else 'new'}"
    begin = partial(write_every_file, version=0) if over else None
    not_whole = in_some_version(*versions, needed=versions[0] if over else ())
    return try_faults(name, kind, write_every_file, not_whole, folder, begin=begin, most=most)


def extraction(folder: Path, kind: str, most: int | None = None) -> FaultTally:
    """Two videos through a small encoder."""
    for name in ("a", "b"):
        write_video(folder / f"{name}.mp4", "libx264", None)
    table = folder / "mine.csv"
    table.write_text("path,view,split\na.mp4,ego,train\nb.mp4,exo,train\n")

    def work(at: Path) -> None:
        torch.set_num_threads(1)
        extract_features(manifest=table, encoder="random/tiny", ratios=(0.3,), features_dir=at / "features", decoders=1)

    (folder / "whole").mkdir()
    work(folder / "whole")
    as_written = in_some_version(contents(folder / "whole"))

    def not_whole(at: Path) -> list[str]:
        mine = at / "features" / "mine"
        readable = [mine / "manifest.json"] if lacks_a_video(mine) else []
        readable += [failures_path(mine / "random--tiny")] if read_failures(mine / "random--tiny") else []
        return [name for name in as_written(at) if at / name not in readable]

    return try_faults(f"{HAPPENED[kind]}: extraction", kind, work, not_whole, folder, most=most)


def lacks_a_video(dataset: Path) -> bool:
    """Is there a sound manifest, of an extraction in which a video has failed?"""
    path = dataset / "manifest.json"
    if not path.exists():
        return False
    videos = load_manifest(path).videos
    return len(videos) == 2 and any(video.frames is None for video in videos)


def training(folder: Path, kind: str, most: int | None = None) -> FaultTally:
    """Two epochs, validated and checkpointed, and the embeddings."""
    features = folder / "features" / "toy"
    labels = tuple(frame * 3 // FRAMES for frame in range(FRAMES))
    videos = []
    for number, split in enumerate(("train", "train", "val")):
        for view in ("ego", "exo"):
            write_features(features / "random--tiny" / view / f"{view} {number}.h5", number)
            videos.append(VideoEntry(f"{view} {number}", view, split, FRAMES, 29.97, labels, None))
    Manifest("toy", ("reach", "pour", "leave"), (), tuple(videos)).save(features / "manifest.json")

    def work(at: Path) -> None:
        torch.set_num_threads(1)
        begun = (at / "run" / "config.json").exists()
        train_run("run", features_dir=features.parent, runs_dir=at, checkpoint_every=1, resume=begun, **SIZES)

    (folder / "whole").mkdir()
    work(folder / "whole")
    return try_faults(f"{HAPPENED[kind]}: training", kind, work, damaged_of_run, folder, most=most)


def damaged_of_run(folder: Path) -> list[str]:
    """What byov-cache verify finds in a run, if it is one by now, and metrics that are no lines of JSON."""
    run = folder / "run"
    checked = verify_run(folder, "run") if (run / "config.json").exists() else ()
    problems = [str(file.path) for file in checked if file.problem]
    if (run / "metrics.jsonl").exists():
        lines = (run / "metrics.jsonl").read_text().splitlines()
        problems += [line for line in lines if not isinstance(json.loads(line), dict)]
    return problems
