"""Evaluation protocols: which frames of which videos are scored. All protocols use complete training videos.

standard: whole videos. trimmed: two sub-clips of each test video instead, embedded separately. online: some
frames of each test video, each embedded using only the frames up to it.
"""

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from byov.cache.layout import CLIPS_PER_VIDEO, LONGEST, SHORTEST, clip_name, embedded_parts, prefix_ends
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
    """A whole video, a sub-clip, or the last frames of prefixes."""

    video: VideoEntry
    protocol: Protocol = "standard"
    clip: tuple[int, int] | None = None  # first and last frame of a sub-clip, inclusive

    @property
    def name(self) -> str:
        """ "ego/004", or "ego/004@12-90" for a sub-clip."""
        return f"{self.video.view}/{clip_name(self.video.id, *self.clip) if self.clip else self.video.id}"

    @property
    def frames(self) -> NDArray[np.int64]:
        """(T,) indices of its frames in the video."""
        if self.protocol == "online":
            return np.array(prefix_ends(self.video.frames or 0))
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
    wanted = "standard" if split == "train" else protocol
    return [
        Segment(video, part, clip)
        for video in videos
        for part, clip in embedded_parts(manifest.dataset, video.view, video.id, split, video.frames or 0)
        if part == wanted
    ]
