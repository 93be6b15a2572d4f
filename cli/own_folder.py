"""byov-extract --folder: one's own videos without a CSV, which is written for them."""

from collections.abc import Sequence
from pathlib import Path, PurePath

from byov.cache.atomic import write_text
from byov.cache.layout import check_name
from byov.cli.command import UsageMistake, note
from byov.data.dataset import SPLITS, VIEWS, Dataset
from byov.data.own_videos import (
    CSV_NAME,
    DEFAULT_SPLIT_FRACTIONS,
    FolderListing,
    list_folder,
    read_own_videos,
    video_files,
)
from byov.text import pluralize

SHOWN = 3  # names of a list; the rest is counted
DEFAULT_SPLIT = ",".join(f"{share:g}" for share in DEFAULT_SPLIT_FRACTIONS)


def parse_shares(text: str) -> tuple[float, ...]:
    """ "0.6,0.2,0.2" → (0.6, 0.2, 0.2), of train, val and test."""
    try:
        shares = tuple(float(part) for part in text.split(","))
    except ValueError:
        shares = ()
    if len(shares) == len(SPLITS) and abs(sum(shares) - 100) < 1e-6:
        likely = ",".join(f"{share / 100:g}" for share in shares)
        raise UsageMistake(f"--split {text}: shares, not percent; did you mean --split {likely}?")
    if (
        len(shares) != len(SPLITS)
        or not all(0 <= share <= 1 for share in shares)
        or not shares[0]
        or abs(sum(shares) - 1) > 1e-6
    ):
        raise UsageMistake(
            f"--split {text}: expected the shares of train, val and test, which add up to 1, like {DEFAULT_SPLIT}"
        )
    return shares


def open_folder(folder: Path, name: str, split: str | None, features_dir: Path) -> Dataset:
    """The dataset of a folder: as its CSV says if there is one, else as its names say, and then the CSV is written."""
    shares = None if split is None else parse_shares(split)
    beside, elsewhere = folder / CSV_NAME, features_dir / check_name(name, "dataset") / CSV_NAME
    table = next((path for path in (beside, elsewhere) if path.is_file()), None)
    if table is None:
        listing = list_folder(folder, shares)
        _say_left_out(listing)
        table = _write(listing, beside, elsewhere)
        note(f"{_summary(listing)}; written to {table}: edit it and run again to change splits or to add events")
        return read_own_videos(name, table, folder=folder)
    if shares is not None:
        raise UsageMistake(
            f"{table} says the splits already; edit it, or delete it to have --split {split} in its place"
        )
    dataset = read_own_videos(name, table, folder=folder)
    listed = {video.path.resolve() for video in dataset.videos}
    new = [path for path in video_files(folder)[0] if (folder / path).resolve() not in listed]
    more = f"; without {pluralize(len(new), 'video')} that it does not list ({_some(new)})" if new else ""
    note(f"videos: as listed in {table}, to be edited, or deleted to list {folder} anew{more}")
    return dataset


def _write(listing: FolderListing, beside: Path, elsewhere: Path) -> Path:
    """Beside the videos, unless nothing may be written there."""
    try:
        write_text(beside, listing.to_csv())
        return beside
    except OSError:
        write_text(elsewhere, listing.to_csv())
        return elsewhere


def _say_left_out(listing: FolderListing) -> None:
    for paths, why in (
        (listing.not_videos, "not a video by its ending"),
        (listing.without_view, "no ego or exo as a word of its path"),
    ):
        if paths:
            note(f"skipped {pluralize(len(paths), 'file')}, {why}: {_some(paths)}")


def _some(paths: Sequence[PurePath]) -> str:
    more = f" and {len(paths) - SHOWN} more" if len(paths) > SHOWN else ""
    return ", ".join(map(str, paths[:SHOWN])) + more


def _summary(listing: FolderListing) -> str:
    """ "12 videos: train 4 ego + 4 exo, test 2 ego + 2 exo" """
    parts = []
    for split in SPLITS:
        counts = {view: sum((video.view, video.split) == (view, split) for video in listing.videos) for view in VIEWS}
        if any(counts.values()):
            parts.append(f"{split} " + " + ".join(f"{count} {view}" for view, count in counts.items() if count))
    return f"{pluralize(len(listing.videos), 'video')}: {', '.join(parts)}"
