"""The sub-clips of the trimmed protocol: the same for every run, encoder and stage."""

import hashlib

import numpy as np

CLIPS_PER_VIDEO = 2
SHORTEST, LONGEST = 0.3, 0.6  # of the video's length
SEED = 0


def trimmed_clips(dataset: str, view: str, video_id: str, frames: int, *, seed: int = SEED) -> list[tuple[int, int]]:
    """(first, last) frame of each sub-clip of a video, both inclusive; drawn from its name and length alone.

    Very short videos may have fewer than CLIPS_PER_VIDEO, since equal draws count once.
    """
    name = hashlib.sha256("/".join((dataset, view, video_id)).encode()).digest()
    random = np.random.default_rng([seed, frames, int.from_bytes(name[:8], "big")])
    clips = set()
    for _ in range(CLIPS_PER_VIDEO):
        length = max(1, round(frames * random.uniform(SHORTEST, LONGEST)))
        first = int(random.integers(frames - length + 1))
        clips.add((first, first + length - 1))
    return sorted(clips)


def clip_name(video_id: str, first: int, last: int) -> str:
    """The file stem of a sub-clip's embeddings."""
    return f"{video_id}@{first}-{last}"
