"""Paths in the feature cache, and name validation.

features/<dataset>/manifest.json
features/<dataset>/<encoder slug>/<view>/<video>.h5
"""

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import numpy as np

from byov.errors import CacheError
from byov.folders import dataset_folder
from byov.records import VIEWS

Protocol = Literal["standard", "trimmed", "online"]
CLIPS_PER_VIDEO = 2
# length of sub-clips as a fraction of the video's length
SHORTEST = 0.3
LONGEST = 0.6
PREFIXES_PER_VIDEO = 20  # number of prefixes in the online protocol, one every 5% of the video

# Allow letters and digits in any alphabet, but no path separators, leading dots or dashes, or
# control characters.
_SAFE_NAME = re.compile(r"[^\W_][\w .,+=()\[\]#&@'-]*")
# No shell metacharacters, since names are typed in commands.
_RUN_NAME = re.compile(r"[^\W_][\w.,+=@-]*")
_LONGEST_NAME_BYTES = 200  # file systems allow 255, but temporary names are longer than final ones
# Files that byov-annotate writes into its output folder.
EVENTS_NAME = "annotations.csv"
FRAMES_NAME = "frames.csv"
SUMMARY_NAME = "annotations.json"
REVIEW_NAME = "review.html"
CAPTIONS_NAME = "captions"
PROGRESS_NAME = "progress.parquet"
MOMENTS_NAME = "moments.csv"
SHEET_NAME = "moments.jpg"


def check_name(name: str, what: str) -> str:
    """Return `name` if it is a valid file name without separators; otherwise raise CacheError."""
    allowed = _RUN_NAME if what == "run" else _SAFE_NAME
    is_valid = isinstance(name, str) and allowed.fullmatch(name) and name == name.rstrip(" .")
    if not is_valid or len(name.encode()) > _LONGEST_NAME_BYTES:
        raise CacheError(
            f"{what} {name!r:.82} cannot be a file name; use letters, digits and .-_ and start "
            "with a letter or digit"
        )
    return name


def run_name(text: str) -> str:
    """Convert text to a valid run name by replacing disallowed characters with dashes."""
    return re.sub(r"[^\w.,+=@-]", "-", text)


def encoder_slug(encoder_id: str) -> str:
    """Return the folder name of an encoder, such as openai--clip for openai/clip; local folders
    keep their name.
    """
    parts = encoder_id.split("/")
    is_folder = len(parts) > 2 or not parts[-1] or encoder_id.startswith((".", "/", "~"))
    return check_name(Path(encoder_id).name if is_folder else "--".join(parts), "encoder")


def manifest_path(features_dir: Path, dataset: str) -> Path:
    return features_dir / check_name(dataset_folder(dataset), "dataset") / "manifest.json"


def encoder_folders(features_dir: Path, dataset: str | None = None) -> list[Path]:
    """List the encoder folders of one dataset or of all; raise CacheError if the dataset does not
    exist.
    """
    if not features_dir.is_dir():
        raise CacheError(
            f"{features_dir}: no feature cache; create one with byov-extract --dataset demo"
        )
    datasets = sorted(path.parent for path in features_dir.glob("*/manifest.json"))
    dataset = dataset and dataset_folder(dataset)
    if dataset is not None and dataset not in [folder.name for folder in datasets]:
        there = ", ".join(folder.name for folder in datasets) or "nothing"
        raise CacheError(
            f"{features_dir} has no dataset {dataset!r}; it has {there}. Choose one of them, or "
            f"extract it: byov-extract --dataset {dataset}"
        )
    return [
        folder
        for parent in datasets
        if dataset in (None, parent.name)
        for folder in sorted(parent.iterdir())
        if folder.is_dir() and not folder.name.startswith(".")
    ]


def video_path(encoder_folder: Path, view: str, video_id: str) -> Path:
    return encoder_folder.joinpath(view, f"{check_name(video_id, 'video id')}.h5")


def cached_files(encoder_folder: Path) -> Iterator[Path]:
    """Yield the finished files in an encoder or embedding folder, sorted by view and name."""
    for view in VIEWS:
        yield from sorted((encoder_folder / view).glob("[!.]*.h5"))


def ratio_key(ratio: float) -> str:
    """Return the name of an STM ratio in the merged/ group, such as "0.3" or "1.0"."""
    if isinstance(ratio, str):
        raise CacheError(f"ratio is {ratio!r}. Pass a number above 0 and at most 1, such as 0.3.")
    return repr(float(ratio))


def extract_command(dataset: str, encoder: str, ratio: str | None = None) -> str:
    """Return the command that extracts a dataset, or adds an STM ratio to its features."""
    name = dataset.replace("metaworld-", "metaworld/")
    ratios = "" if ratio is None else f" --ratios {ratio}"
    return f"byov-extract --dataset {name} --encoder {encoder}{ratios}"


def selected_tokens(tokens: int, ratio: float) -> int:
    """Return the number of tokens per frame that an STM ratio selects; they come first in
    `order`.
    """
    return max(1, round(tokens * ratio))


def clip_name(video_id: str, start: int, stop: int) -> str:
    """Return the file stem for the embeddings of the sub-clip with the frames [start, stop); the
    name contains its first and last frame.
    """
    return f"{video_id}@{start}-{stop - 1}"


def trimmed_clips(
    dataset: str, view: str, video_id: str, frames: int, *, seed: int = 0
) -> list[tuple[int, int]]:
    """Draw sub-clips of a video as half-open intervals of frames (start, stop); they depend only on
    its name, its length and the seed.
    """
    name = hashlib.sha256("/".join((dataset, view, video_id)).encode()).digest()
    random = np.random.default_rng([seed, frames, int.from_bytes(name[:8], "big")])
    clips = set()
    for _ in range(CLIPS_PER_VIDEO):
        length = max(1, round(frames * random.uniform(SHORTEST, LONGEST)))
        start = int(random.integers(frames - length + 1))
        clips.add((start, start + length))
    return sorted(clips)


def prefix_lengths(frames: int) -> list[int]:
    """Return the number of frames of each prefix of a video; prefixes grow evenly to the whole
    video.
    """
    count = min(PREFIXES_PER_VIDEO, frames)
    return [frames * (index + 1) // count for index in range(count)]


def embedded_parts(
    dataset: str, view: str, video_id: str, split: str, frames: int
) -> list[tuple[Protocol, tuple[int, int] | None]]:
    """List the parts of a video that a run embeds, one file each, as (protocol, half-open interval
    of frames or None).

    "trimmed" is a sub-clip, and "online" the last frame of each prefix. Train videos are only
    embedded whole.
    """
    whole: list[tuple[Protocol, tuple[int, int] | None]] = [("standard", None)]
    if split == "train":
        return whole
    return [
        *whole,
        *(("trimmed", clip) for clip in trimmed_clips(dataset, view, video_id, frames)),
        ("online", None),
    ]
