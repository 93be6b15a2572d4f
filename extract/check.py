"""A look at each video of a plan without decoding it: byov-extract --check."""

import shutil
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from byov.cache.row_writer import stored_rows
from byov.data.video import Probe, probe
from byov.errors import VideoError
from byov.extract.plan import Job, Plan
from byov.progress import SILENT, Progress, track
from byov.text import counted

FILE_BYTES = 28_000  # of a feature file beside its rows: indices and attributes, as measured


@dataclass(frozen=True)
class VideoCheck:
    """One video: its state in the cache, what its file says, or why that cannot be read."""

    job: Job
    probe: Probe | None
    problem: str | None

    def as_dict(self) -> dict[str, Any]:
        return {
            "id": self.job.video.id,
            "view": self.job.video.view,
            "split": self.job.video.split,
            "state": self.job.state,
            "reason": self.job.reason,
            "decoded_frames": self.job.frames,
            "labels": self.job.label_count,
            "problem": self.problem,
            **(asdict(self.probe) if self.probe else {}),
        }


def check_videos(plan: Plan, progress: Progress = SILENT) -> list[VideoCheck]:
    """Probe every video of the plan."""
    with ThreadPoolExecutor() as pool:
        checks = pool.map(_check_video, plan.jobs)
        return list(track(checks, progress, "looking at videos", unit="video", total=len(plan.jobs)))


def _check_video(job: Job) -> VideoCheck:
    try:
        seen = probe(job.video.path)
    except VideoError as error:
        return VideoCheck(job, None, str(error))
    problem = None
    if seen.broken_off:
        problem = f"{job.video.path}: {seen.broken_off}"
    elif job.label_count not in (None, seen.packets) and job.frames is None:
        labels = counted(job.label_count or 0, "label")
        problem = f"{job.video.path}: {counted(seen.packets, 'frame')} in the file, {labels}"
    return VideoCheck(job, seen, problem)


def bytes_needed(checks: Sequence[VideoCheck], bytes_per_frame: int) -> int:
    """Disk that the videos still to be extracted will take."""
    return sum(
        stored_rows(check.probe.packets) * bytes_per_frame + FILE_BYTES
        for check in checks
        if check.probe and check.job.state != "cached"
    )


def bytes_per_frame(ratios: int, tokens: int, width: int, *, has_cls: bool) -> int:
    return 2 * width * (ratios + has_cls) + 2 * tokens + 8


def free_bytes(folder: Path) -> int:
    """Free space where `folder` is or will be."""
    there = next(parent for parent in (folder.absolute(), *folder.absolute().parents) if parent.exists())
    return shutil.disk_usage(there).free
