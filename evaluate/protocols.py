"""Evaluation protocols: which segments of which videos are scored.

standard: whole videos. trimmed: two sub-clips of each test video in its place. Training videos are whole in both.
"""

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from byov.cache.layout import CLIPS_PER_VIDEO, LONGEST, SHORTEST, clip_name, trimmed_clips
from byov.cache.manifest import Manifest, VideoEntry
from byov.errors import EvaluationError

Protocol = Literal["standard", "trimmed"]
PROTOCOLS: tuple[Protocol, ...] = get_args(Protocol)
ScoredSplit = Literal["test", "val"]
TRIMMED_CLIPS = {"seed": 0, "per_video": CLIPS_PER_VIDEO, "shortest": SHORTEST, "longest": LONGEST}


@dataclass(frozen=True)
class Segment:
    """A whole video, or a sub-clip in its place."""

    video: VideoEntry
    clip: tuple[int, int] | None = None  # first and last frame, inclusive

    @property
    def name(self) -> str:
        """ "ego/004", or "ego/004@12-90" for a sub-clip."""
        return f"{self.video.view}/{clip_name(self.video.id, *self.clip) if self.clip else self.video.id}"

    @property
    def frames(self) -> NDArray[np.int64]:
        """(T,) indices of its frames in the video."""
        first, last = self.clip or (0, (self.video.frames or 0) - 1)
        return np.arange(first, last + 1)

    def __len__(self) -> int:
        return len(self.frames)


def segments(manifest: Manifest, split: str, protocol: Protocol = "standard") -> list[Segment]:
    """Return the scored segments of a split, in the order of the manifest; videos never extracted are left out."""
    videos = [video for video in manifest.videos if video.split == split]
    if not videos:
        splits = ", ".join(sorted({video.split for video in manifest.videos})) or "no videos at all"
        raise EvaluationError(f"{manifest.dataset} has no {split} videos; it has {splits}")
    videos = [video for video in videos if video.frames]
    if not videos:
        raise EvaluationError(f"{manifest.dataset}: no {split} video is extracted; run byov-extract")
    if protocol == "standard" or split == "train":
        return [Segment(video) for video in videos]
    return [
        Segment(video, clip)
        for video in videos
        for clip in trimmed_clips(manifest.dataset, video.view, video.id, video.frames or 0)
    ]
