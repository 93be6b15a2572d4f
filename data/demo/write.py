"""Write the demo dataset: the list of its videos and the rendered videos themselves."""

import csv
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

from byov.data.demo.film import View, film_rng
from byov.data.demo.pool import RenderJob, render_all
from byov.data.demo.script import FPS, draw_performance, event_frames

DEFAULT_VIDEOS: Mapping[str, tuple[int, int]] = MappingProxyType({"train": (12, 12), "val": (3, 3), "test": (4, 4)})

_VIEWS: tuple[View, View] = ("ego", "exo")


@dataclass(frozen=True)
class DemoVideo:
    split: str
    view: View
    number: int  # within its view, over all splits
    paired: bool = False  # with the video of the same number of the other view

    @property
    def id(self) -> str:
        return f"pour_{self.view}_{self.number:03d}"

    @property
    def path(self) -> str:
        return f"{self.split}/{self.view}/{self.id}.mp4"

    @property
    def index(self) -> int:
        """Number over both views, not over the splits: unless paired, a video is the same whatever else there is."""
        return len(_VIEWS) * self.number + _VIEWS.index(self.view)

    @property
    def performance(self) -> int:
        """Index of the video whose performance this one shows: of a pair, the ego video's."""
        return replace(self, view="ego").index if self.paired else self.index

    @property
    def pair(self) -> str:
        return f"pour_{self.number:03d}" if self.paired else ""


def write_demo(
    root: Path,
    *,
    seed: int = 0,
    videos: Mapping[str, tuple[int, int]] = DEFAULT_VIDEOS,
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Render the demo dataset into root (a folder that does not exist yet): videos.csv and the mp4 files.

    `videos` gives the number of ego and exo videos of every split. `progress(done, total)` is called after
    every video. The folder appears whole or not at all; the same seed gives the same bytes.
    """
    if root.exists():
        raise FileExistsError(f"{root} exists already")
    listed = list_videos(videos)
    root.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=root.parent, prefix=f".{root.name}-") as scratch:
        # A folder within the private one gets the usual permissions.
        folder = Path(scratch) / root.name
        for video in listed:
            (folder / video.path).parent.mkdir(parents=True, exist_ok=True)
        _write_list(folder / "videos.csv", listed, seed)
        jobs = [
            RenderJob(seed, video.index, video.view, str(folder / video.path), video.performance) for video in listed
        ]
        render_all(jobs, progress)
        _publish(folder, root)


def list_videos(videos: Mapping[str, tuple[int, int]]) -> list[DemoVideo]:
    listed: list[DemoVideo] = []
    for place, view in enumerate(_VIEWS):
        splits = [split for split, counts in videos.items() for _ in range(counts[place])]
        listed += [DemoVideo(split, view, number) for number, split in enumerate(splits)]
    paired = _paired_numbers(listed)
    listed = [replace(video, paired=video.split == "train" and video.number in paired) for video in listed]
    return sorted(listed, key=lambda video: list(videos).index(video.split))


def _paired_numbers(listed: Sequence[DemoVideo]) -> list[int]:
    """The last third of the numbers that both views have in the train split: 4 of 12."""
    ego, exo = ({video.number for video in listed if (video.split, video.view) == ("train", view)} for view in _VIEWS)
    both = sorted(ego & exo)
    return both[len(both) - len(both) // 3 :]


def event_times_s(seed: int, index: int) -> list[float]:
    """Key-event times of a video: midway between the last frame before and the first frame after."""
    states = draw_performance(film_rng(seed, index))
    return [(frame - 0.5) / FPS for frame in event_frames(states)]


def _write_list(path: Path, listed: Sequence[DemoVideo], seed: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["path", "view", "split", "id", "events", "pair"])
        for video in listed:
            events = ";".join(f"{time_s:.6f}" for time_s in event_times_s(seed, video.performance))
            writer.writerow([video.path, video.view, video.split, video.id, events, video.pair])


def _publish(folder: Path, root: Path) -> None:
    try:
        folder.rename(root)
    except OSError:
        if not root.is_dir():
            raise
        # Another process was faster; what it wrote is as good as ours.
