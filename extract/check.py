"""byov-extract --check: the plan, and what can be said of each video without decoding it."""

import shutil
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from tqdm import tqdm

from byov.cache.command import printable, size_text
from byov.data.errors import VideoError
from byov.data.video import Probe, probe
from byov.extract.plan import Job, Plan

WIDE = 160  # columns, where the output is no terminal
STATE_NAMES = {"missing": "to do"}  # for people, whose videos are not what is missing


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
            "decoded_frames": self.job.header.frames if self.job.header else None,
            "labels": self.job.label_count,
            "problem": self.problem,
            **(asdict(self.probe) if self.probe else {}),
        }


def check_videos(plan: Plan) -> list[VideoCheck]:
    """Probe every video of the plan."""
    with ThreadPoolExecutor() as pool:
        checks = pool.map(_check_video, plan.jobs)
        return list(tqdm(checks, desc="looking at videos", total=len(plan.jobs), unit="video", disable=None))


def _check_video(job: Job) -> VideoCheck:
    try:
        seen = probe(job.video.path)
    except VideoError as error:
        return VideoCheck(job, None, str(error))
    problem = None
    if seen.missing_bytes:
        problem = f"{job.video.path}: the file is {seen.missing_bytes} bytes short"
    elif job.label_count not in (None, seen.packets) and job.header is None:
        problem = f"{job.video.path}: {seen.packets} frames in the file, {job.label_count} labels"
    return VideoCheck(job, seen, problem)


def bytes_needed(checks: Sequence[VideoCheck], bytes_per_frame: int) -> int:
    """Disk that the videos still to be extracted will take."""
    return sum(check.probe.packets * bytes_per_frame for check in checks if check.probe and check.job.state != "cached")


def bytes_per_frame(ratios: int, tokens: int, width: int, *, has_cls: bool) -> int:
    return 2 * width * (ratios + has_cls) + 2 * tokens + 8


def print_checks(plan: Plan, checks: Sequence[VideoCheck], needed_bytes: int, features_dir: Path) -> None:
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("video", overflow="fold")
    for name in ("view", "split", "state"):
        table.add_column(name, no_wrap=True)
    for name in ("header", "packets", "decoded", "labels", "size", "fps", "turned"):
        table.add_column(name, justify="right", no_wrap=True)
    for check in checks:
        table.add_row(*_row(check))
    console = Console() if sys.stdout.isatty() else Console(width=WIDE)
    console.print(table)
    for check in checks:
        if check.problem:
            console.print(f"problem: {escape(printable(check.problem))}", soft_wrap=True)
        if check.job.state in ("stale", "conflict"):
            console.print(
                f"{check.job.state}: {escape(check.job.video.id)}: {escape(printable(check.job.reason))}",
                soft_wrap=True,
            )
    counts = ", ".join(f"{count} {STATE_NAMES.get(state, state)}" for state, count in plan.count().items())
    console.print(
        f"\n{plan.dataset.name} with {plan.encoder.id}: {len(plan.jobs)} videos: {counts}; "
        f"needs {size_text(needed_bytes)} of disk, {size_text(free_bytes(features_dir))} free",
        soft_wrap=True,
    )


def _row(check: VideoCheck) -> list[str]:
    job, seen = check.job, check.probe
    decoded = str(job.header.frames) if job.header else "-"
    events = job.video.event_seconds
    labels = str(job.label_count or "-") if events is None else f"{len(events)} events"
    start = [escape(job.video.id), job.video.view, job.video.split, STATE_NAMES.get(job.state, job.state)]
    if seen is None:
        return [*start, "-", "-", decoded, labels, "unreadable", "-", "-"]
    rate = f"{seen.fps:.2f}" + (" var" if seen.variable_rate else "")
    rotation = f"{seen.rotation_degrees}°" if seen.rotation_degrees else ""
    size = f"{seen.width}x{seen.height}"
    return [*start, str(seen.header_frames), str(seen.packets), decoded, labels, size, rate, rotation]


def free_bytes(folder: Path) -> int:
    """Free space where `folder` is or will be."""
    there = next(parent for parent in (folder.absolute(), *folder.absolute().parents) if parent.exists())
    return shutil.disk_usage(there).free
