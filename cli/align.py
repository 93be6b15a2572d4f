"""byov-align: which frame of one video goes with which of another, to look at and to reuse."""

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from byov.apply.key_events import events_cell, rises, transfer
from byov.apply.run_encoder import encoder_of
from byov.apply.video_writer import CONTAINERS
from byov.cache.atomic import write_text
from byov.cache.runs import RunRecord
from byov.cli import command
from byov.cli.bars import BARS
from byov.cli.embedding_options import (
    DeviceOption,
    EncoderOption,
    OnTruncatedOption,
    Overwrite,
    RunOption,
    in_scratch,
    refuse_absent,
)
from byov.cli.outputs import refuse_outputs
from byov.cli.run_choice import choose_run
from byov.data.own_videos import read_events
from byov.data.video import OnTruncated, open_video
from byov.errors import ApplyError
from byov.text import printable

if TYPE_CHECKING:  # they import torch, scipy and Pillow
    from byov.apply.alignment import Match
    from byov.apply.run_embedder import EmbeddedVideo, RunEmbedder

MethodChoice = Literal["dtw", "nearest"]
TALLEST = 1440  # two panels of the widest shape are then within what H.264 takes
TAU_OF_PLACES = (
    "this model sees how far each frame is in its video, which raises tau by itself, even between videos that have "
    "nothing in common: judge by the pictures"
)

app = command.new_app()


@dataclass(frozen=True)
class Task:
    """What is asked for, checked as far as it can be before any work."""

    a: Path
    b: Path
    video: Path
    table: Path  # CSV
    method: MethodChoice
    events: tuple[float, ...] | None  # of A, in seconds
    height: int
    on_truncated: OnTruncated


@dataclass(frozen=True)
class Aligned:
    """What came of it."""

    run: RunRecord
    match: "Match"
    a: "EmbeddedVideo"
    b: "EmbeddedVideo"
    b_events: tuple[float, ...] | None


@app.command()
def align(
    a: Annotated[Path, typer.Argument(metavar="A", help="The video that plays at its own times.", show_default=False)],
    b: Annotated[Path, typer.Argument(metavar="B", help="The video that is matched to it.", show_default=False)],
    out: Annotated[
        Path, typer.Option("--out", "-o", help="The video to write, .mp4, .mov or .mkv; a .csv is written beside it.")
    ],
    run: RunOption = None,
    method: Annotated[
        MethodChoice,
        typer.Option(help="Match all frames in order (dynamic time warping), or each to its nearest."),
    ] = "dtw",
    phases: Annotated[
        str | None,
        typer.Option(metavar="SECONDS", help='Key events of A to carry over to B, like "2.5;7.1".', show_default=False),
    ] = None,
    height: Annotated[int, typer.Option(min=64, max=TALLEST, help="Of the video, in pixels; even.")] = 360,
    encoder: EncoderOption = None,
    device: DeviceOption = "auto",
    on_truncated: OnTruncatedOption = "error",
    overwrite: Overwrite = False,
    as_json: command.Json = False,
    runs_dir: command.RunsDir = Path("runs"),
    _version: command.Version = False,
) -> None:
    """Match the frames of two videos by the model of a run, and show them side by side.

    In the video, A plays at its own times and B shows the frame that goes with each of A; a CSV lists the pairs.

    Prints Kendall's tau of the nearest frames: 1 if they come in the same order in both videos.
    """
    started = time.monotonic()
    task = Task(a, b, out, out.with_suffix(".csv"), method, _parse_events(phases), height, on_truncated)
    _refuse(task, overwrite=overwrite)
    record = choose_run(runs_dir, run)
    run_encoder = encoder_of(record, encoder)

    def work(scratch: Path) -> Aligned:
        from byov.apply.run_embedder import RunEmbedder

        return _align(task, record, RunEmbedder(record, run_encoder, device), scratch)

    aligned = in_scratch(work)
    if as_json:
        summary = _summary(task, aligned) | {"seconds": round(time.monotonic() - started, 3)}
        print(json.dumps(summary, indent=1))
    else:
        for line in _lines(task, aligned):
            print(printable(line))


def _parse_events(text: str | None) -> tuple[float, ...] | None:
    return None if text is None else read_events(text, "--phases")


def _refuse(task: Task, *, overwrite: bool) -> None:
    if task.video.suffix.lower() not in CONTAINERS:
        raise command.UsageMistake(f"-o {task.video}: expected a name that ends in {', '.join(CONTAINERS)}")
    if task.height % 2:
        raise command.UsageMistake(f"--height {task.height}: must be even")
    refuse_absent((task.a, task.b))
    for path in (task.a, task.b):
        with open_video(path):
            pass
    refuse_outputs((task.video, task.table), (task.a, task.b), overwrite=overwrite)


def _align(task: Task, run: RunRecord, embedder: "RunEmbedder", scratch: Path) -> Aligned:
    from byov.apply.alignment import match
    from byov.apply.side_by_side import Side, write_side_by_side

    a, b = _embed(task, embedder, scratch)
    found = match(a.embedding, b.embedding, task.method)
    b_events = None if task.events is None else transfer(task.events, a.pts_seconds, b.pts_seconds, found.frames)
    write_side_by_side(
        task.video,
        Side("A", a.path, a.pts_seconds, task.events),
        Side("B", b.path, b.pts_seconds, b_events if b_events is not None and rises(b_events) else None),
        found.frames,
        height=task.height,
        on_truncated=task.on_truncated,
        scratch=scratch,
        progress=BARS,
    )
    aligned = Aligned(run, found, a, b, b_events)
    write_text(task.table, _table(aligned))
    return aligned


def _embed(task: Task, embedder: "RunEmbedder", scratch: Path) -> tuple["EmbeddedVideo", "EmbeddedVideo"]:
    failures, embedded = embedder.embed({"A": task.a, "B": task.b}, scratch, task.on_truncated, BARS)
    if failures:
        raise ApplyError(f"nothing to align without {' and '.join(sorted(failures))}")
    videos = dict(embedded)
    return videos["A"], videos["B"]


def _table(aligned: Aligned) -> str:
    """The CSV: a row for each frame of A."""
    match, b_seconds = aligned.match, aligned.b.pts_seconds
    columns = zip(aligned.a.pts_seconds, match.frames, b_seconds[match.frames], match.distances, strict=True)
    rows = [
        f"{a_frame},{a_seconds:.6f},{b_frame},{seconds:.6f},{distance:.6g}\n"
        for a_frame, (a_seconds, b_frame, seconds, distance) in enumerate(columns)
    ]
    return "a_frame,a_seconds,b_frame,b_seconds,distance\n" + "".join(rows)


def _summary(task: Task, aligned: Aligned) -> dict[str, Any]:
    """For machines."""
    return {
        "run": aligned.run.name,
        "a": str(task.a),
        "b": str(task.b),
        "method": task.method,
        "video": str(task.video),
        "csv": str(task.table),
        "a_frames": len(aligned.a.embedding),
        "b_frames": len(aligned.b.embedding),
        "tau": {"a_in_b": aligned.match.tau_a_in_b, "b_in_a": aligned.match.tau_b_in_a},
        "events": _events(task, aligned),
    }


def _events(task: Task, aligned: Aligned) -> dict[str, Any] | None:
    if task.events is None or aligned.b_events is None:
        return None
    cell = events_cell(aligned.b_events) if rises(aligned.b_events) else None
    return {"a_seconds": list(task.events), "b_seconds": list(aligned.b_events), "cell": cell}


def _lines(task: Task, aligned: Aligned) -> list[str]:
    """For people."""
    lines = [
        f"{task.video}: every frame of A ({len(aligned.a.embedding)}) beside the one of B that goes with it",
        f"{task.table}: the same as a table",
        f"Kendall's tau of the nearest frames: A in B {_tau_text(aligned.match.tau_a_in_b, len(aligned.a.embedding))}; "
        f"B in A {_tau_text(aligned.match.tau_b_in_a, len(aligned.b.embedding))}",
    ]
    has_tau = aligned.match.tau_a_in_b is not None or aligned.match.tau_b_in_a is not None
    if has_tau and aligned.run.settings.get("position") != "none":
        lines.append(TAU_OF_PLACES)
    events = _events(task, aligned)
    if events is None:
        return lines
    lines += [
        f"events of {name}: {_seconds_text(events[key])}" for name, key in (("A", "a_seconds"), ("B", "b_seconds"))
    ]
    if events["cell"] is None:
        return [*lines, "the events of B do not come in order, so they are none for a CSV; try --method dtw"]
    lines.append(f"for the events column of your CSV, in the row of {task.b.name}: {events['cell']}")
    return [*lines, "(rounded down, so that no phase begins a frame late)"]


def _tau_text(tau: float | None, frames: int) -> str:
    if tau is None:
        return "none: there is only one frame" if frames == 1 else "none: the nearest frame is always the same one"
    return f"{tau:.4f}"


def _seconds_text(seconds: Sequence[float]) -> str:
    return ", ".join(f"{second:.3f} s" for second in seconds)


def main() -> None:
    command.run(app)
