"""Evaluation protocols, which define the test frames that are scored. All protocols use whole
training videos.

The standard protocol scores whole videos. The trimmed protocol scores two sub-clips of each video,
embedded separately. The online protocol scores some frames of each video, each embedded using only
the frames up to it.
"""

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from byov.cache.layout import (
    CLIPS_PER_VIDEO,
    LONGEST,
    SHORTEST,
    clip_name,
    embedded_parts,
    prefix_lengths,
)
from byov.cache.layout import Protocol as Protocol
from byov.cache.manifest import Manifest, VideoEntry
from byov.errors import EvaluationError

PROTOCOLS: tuple[Protocol, ...] = get_args(Protocol)
ProtocolChoice = Literal["standard", "trimmed", "online", "both", "all"]
CHOICES: dict[str, tuple[str, ...]] = {"both": ("standard", "trimmed"), "all": PROTOCOLS}
ScoredSplit = Literal["test", "val"]
TRIMMED_CLIPS = {"seed": 0, "per_video": CLIPS_PER_VIDEO, "shortest": SHORTEST, "longest": LONGEST}


@dataclass(frozen=True)
class Segment:
    """Scored part of a video: all frames, a sub-clip, or the last frames of prefixes (online
    protocol).
    """

    video: VideoEntry
    protocol: Protocol = "standard"
    clip: tuple[int, int] | None = None  # half-open interval of a sub-clip's frames

    @property
    def name(self) -> str:
        """Name such as "ego/004", or "ego/004@12-90" for a sub-clip."""
        name = clip_name(self.video.id, *self.clip) if self.clip else self.video.id
        return f"{self.video.view}/{name}"

    @property
    def frames(self) -> NDArray[np.int64]:
        """Indices of the scored frames in the video, shape (T,)."""
        if self.protocol == "online":
            return np.array(prefix_lengths(self.video.frames or 0)) - 1
        return np.arange(*(self.clip or (0, self.video.frames or 0)))

    def __len__(self) -> int:
        return len(self.frames)


def segments(manifest: Manifest, split: str, protocol: Protocol = "standard") -> list[Segment]:
    """Return the scored segments of a split in manifest order, except for videos that were never
    extracted.
    """
    videos = [video for video in manifest.videos if video.split == split]
    if not videos:
        splits = ", ".join(sorted({video.split for video in manifest.videos})) or "no videos at all"
        raise EvaluationError(f"{manifest.dataset} has no {split} videos; it has {splits}")
    videos = [video for video in videos if video.frames]
    if not videos:
        raise EvaluationError(
            f"{manifest.dataset}: no {split} video has been extracted; run byov-extract"
        )
    return [
        Segment(video, part, clip)
        for video in videos
        for part, clip in embedded_parts(
            manifest.dataset, video.view, video.id, split, video.frames or 0
        )
        if part == ("standard" if split == "train" else protocol)
    ]
