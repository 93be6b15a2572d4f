"""Charades-Ego reader, for the published layout CharadesEgo_v1_{train,test}.csv and <id>.mp4.

Labels are video-level actions (157 classes) instead of phases, and there is no val split. The two
videos of a pair show the same script performed twice, once per camera; they are not a simultaneous
recording.
"""

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from byov.data.dataset import Dataset, Video, read_csv, require_views
from byov.data.reader import DatasetReader
from byov.errors import DatasetError
from byov.progress import NO_PROGRESS, Progress
from byov.records import Split

NUM_CLASSES = 157


class CharadesEgo(DatasetReader):
    name = "charades_ego"
    download = "prior.allenai.org/projects/charades-ego"

    def read(self, folder: Path, _progress: Progress = NO_PROGRESS) -> Dataset:
        """Read Charades-Ego.

        Each video is paired with its partner if that is in the other view and the same split; the
        first match wins.
        """
        rows = [row for split in ("train", "test") for row in _read_list(folder, split)]
        by_id = {video.id: video for video, _ in rows}
        pairs: dict[str, str] = {}
        for video, partner in rows:
            other = by_id.get(partner)
            if other is None or other.view == video.view or other.split != video.split:
                continue
            if video.id not in pairs and other.id not in pairs:
                pairs[video.id] = pairs[other.id] = video.id
        videos = tuple(replace(video, pair=pairs.get(video.id)) for video, _ in rows)
        names = tuple(f"c{index:03d}" for index in range(NUM_CLASSES))
        dataset = Dataset(self.name, folder, videos, action_names=names)
        require_views(dataset, ("train", "test"))
        return dataset


def _read_list(root: Path, split: Split) -> Iterator[tuple[Video, str]]:
    """Yield each video in a split with the id of its partner ("" if it has none)."""
    for source, row in read_csv(
        root / f"CharadesEgo_v1_{split}.csv", ("id", "egocentric", "actions")
    ):
        if row["egocentric"] not in ("Yes", "No"):
            raise DatasetError(
                f"{source}: egocentric is {row['egocentric']!r}. Expected Yes or No."
            )
        actions = set()
        # Classes and times in seconds, such as "c092 11.90 21.20;c147 0.00 12.60".
        for part in filter(None, (row["actions"] or "").split(";")):
            match = re.fullmatch(r"c(\d{3}) \S+ \S+", part.strip())
            if match is None or int(match[1]) >= NUM_CLASSES:
                raise DatasetError(
                    f"{source}: action {part!r}. Expected a class and two times, as in 'c092 11.90 "
                    "21.20'."
                )
            actions.add(int(match[1]))
        video = Video(
            id=row["id"],
            view="ego" if row["egocentric"] == "Yes" else "exo",
            split=split,
            path=root / f"{row['id']}.mp4",
            actions=tuple(sorted(actions)),
        )
        yield video, row.get("charades_video") or ""  # missing in older releases
