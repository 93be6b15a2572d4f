"""byov-extract --check, for people."""

from collections.abc import Sequence
from pathlib import Path

from rich.markup import escape
from rich.table import Table

from byov.cli.extracted_again import why_again
from byov.cli.tables import wide_console
from byov.extract.plan import Plan, VideoCheck, free_bytes
from byov.text import format_size, pluralize, printable

STATE_NAMES = {"missing": "to do"}  # for people, whose videos are not what is missing


def print_checks(checks: Sequence[VideoCheck]) -> None:
    """What each video is, and what is wrong with some."""
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("video", overflow="fold")
    for name in ("view", "split", "state"):
        table.add_column(name, no_wrap=True)
    for name in ("header", "packets", "decoded", "labels", "size", "fps", "turned"):
        table.add_column(name, justify="right", no_wrap=True)
    for check in checks:
        table.add_row(*_row(check))
    console = wide_console()
    console.print(table)
    for check in checks:
        if check.problem:
            console.print(f"problem: {escape(printable(check.problem))}", soft_wrap=True)
        if check.job.state == "conflict":
            said = f"conflict: {check.job.video.id}: {check.job.reason}"
            console.print(escape(printable(said)), soft_wrap=True)
    for line in why_again([check.job for check in checks if check.job.state == "stale"]):
        console.print(escape(printable(line)), soft_wrap=True)


def print_plan(plan: Plan, needed_bytes: int | None, features_dir: Path) -> None:
    """How many videos are to be done, and the disk that they need."""
    counts = ", ".join(f"{count} {STATE_NAMES.get(state, state)}" for state, count in plan.count().items())
    needed = "an unknown amount" if needed_bytes is None else format_size(needed_bytes)
    wide_console().print(
        f"\n{plan.dataset.name} with {plan.encoder.id}: {pluralize(len(plan.jobs), 'video')}: {counts}; "
        f"needs {needed} of disk, {format_size(free_bytes(features_dir))} free",
        soft_wrap=True,
    )


def _row(check: VideoCheck) -> list[str]:
    job, seen = check.job, check.probe
    decoded = "-" if job.frames is None else str(job.frames)
    events = job.video.event_seconds
    labels = str(job.label_count or "-") if events is None else pluralize(len(events), "event")
    start = [escape(job.video.id), job.video.view, job.video.split, STATE_NAMES.get(job.state, job.state)]
    if seen is None:
        return [*start, "-", "-", decoded, labels, "unreadable", "-", "-"]
    rate = f"{seen.fps:.2f}" + (" var" if seen.variable_rate else "")
    rotation = f"{seen.rotation_degrees}°" if seen.rotation_degrees else ""
    size = f"{seen.width}x{seen.height}"
    return [*start, str(seen.header_frames), str(seen.packets), decoded, labels, size, rate, rotation]
