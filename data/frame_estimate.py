"""How many frames a video will have, by its header: good enough for a progress bar, and for nothing else."""

from pathlib import Path

import av

from byov.data.video import open_video
from byov.errors import VideoError


def estimated_frames(path: Path) -> int | None:
    """As the header says; None where it does not, or cannot be read."""
    try:
        with open_video(path) as (container, stream):
            if stream.frames:
                return stream.frames
            if container.duration is None or not stream.average_rate:
                return None
            return round(container.duration / av.time_base * float(stream.average_rate))
    except VideoError:
        return None
