"""What is said before videos that are cached are extracted once more."""

from collections.abc import Sequence

from byov.extract.plan import Job
from byov.text import pluralize

LACKS = "lacks ratio "


def why_again(jobs: Sequence[Job]) -> list[str]:
    """The reason for each, and of a ratio that is added, which costs as much as all of them, once and with its cost."""
    added = [job for job in jobs if job.reason.startswith(LACKS)]
    lines = [f"{job.video.id}: to be extracted again ({job.reason})" for job in jobs if job not in added]
    if added:
        ratios = sorted({ratio for job in added for ratio in job.reason.removeprefix(LACKS).split()}, key=float)
        frames = sum(job.frames or 0 for job in added)
        lines.append(
            f"to add ratio {' '.join(ratios)}, {pluralize(len(added), 'video')} with {pluralize(frames, 'frame')} go "
            "through the encoder again, as the tokens themselves are not kept; Ctrl-C leaves what is cached as it is"
        )
    return lines
