"""byov-align: which frame of one video goes with which of another, to look at and to reuse."""

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from byov.apply.video_writer import CONTAINERS
from byov.cache.runs import RunRecord, choose_run
from byov.cli import command
from byov.cli.allocator import keep_freed_memory
from byov.cli.command import BARS
from byov.cli.decoding_options import MaxPixelsOption, OnCorruptOption, OnTruncatedOption
from byov.cli.embedding_options import (
    DeviceOption,
    EncoderOption,
    Overwrite,
    RunOption,
    in_scratch,
    refuse_absent,
)
from byov.cli.outputs import refuse_outputs
from byov.data.own_videos import read_events
from byov.data.video import MAX_PIXELS, DecodingPolicy, open_video
from byov.text import printable

if TYPE_CHECKING:  # it imports torch, scipy and Pillow
    from byov.apply.align import AlignedVideos

MethodChoice = Literal["dtw", "nearest"]
MAX_HEIGHT = 1440  # two panels of the widest shape are then within what H.264 takes
TAU_OF_PLACES = (
    "this model sees how far each frame is in its video, which raises tau by itself, even between videos that have "
    "nothing in common: judge by the pictures"
)

app = command.new_app()


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
    height: Annotated[int, typer.Option(min=64, max=MAX_HEIGHT, help="Of the video, in pixels; even.")] = 360,
    encoder: EncoderOption = None,
    device: DeviceOption = "auto",
    on_truncated: OnTruncatedOption = "error",
    on_corrupt: OnCorruptOption = "error",
    max_pixels: MaxPixelsOption = MAX_PIXELS,
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
    table = out.with_suffix(".csv")
    events = None if phases is None else read_events(phases, "--phases")
    if out.suffix.lower() not in CONTAINERS:
        raise command.UsageMistake(f"-o {out}: expected a name that ends in {', '.join(CONTAINERS)}")
    if height % 2:
        raise command.UsageMistake(f"--height {height}: must be even")
    refuse_absent((a, b))
    for path in (a, b):
        with open_video(path):
            pass
    refuse_outputs((out, table), (a, b), overwrite=overwrite)
    policy = DecodingPolicy(on_truncated, on_corrupt, max_pixels)
    record = choose_run(runs_dir, run)

    def work(scratch: Path) -> "AlignedVideos":
        from byov.apply.align import align_videos
        from byov.apply.embedder import RunEmbedder

        aligned = align_videos(
            RunEmbedder(record, encoder, device, BARS),
            a,
            b,
            scratch,
            method=method,
            events=events,
            policy=policy,
            progress=BARS,
        )
        aligned.write_video(out, scratch, height=height, policy=policy, progress=BARS)
        aligned.write_table(table)
        return aligned

    aligned = in_scratch(work)
    if as_json:
        summary = _summary(record, aligned, out, table) | {"seconds": round(time.monotonic() - started, 3)}
        print(json.dumps(summary, indent=1))
    else:
        for line in _lines(record, aligned, out, table):
            print(printable(line))


def _summary(run: RunRecord, aligned: "AlignedVideos", video: Path, table: Path) -> dict[str, Any]:
    """For machines."""
    return {
        "run": run.name,
        "a": str(aligned.a.path),
        "b": str(aligned.b.path),
        "method": aligned.method,
        "video": str(video),
        "csv": str(table),
        "a_frames": len(aligned.a.embedding),
        "b_frames": len(aligned.b.embedding),
        "tau": {"a_in_b": aligned.match.tau_a_in_b, "b_in_a": aligned.match.tau_b_in_a},
        "events": _events(aligned),
    }


def _events(aligned: "AlignedVideos") -> dict[str, Any] | None:
    from byov.apply.align import events_cell, in_order

    if aligned.a_events is None or aligned.b_events is None:
        return None
    cell = events_cell(aligned.b_events) if in_order(aligned.b_events) else None
    return {"a_seconds": list(aligned.a_events), "b_seconds": list(aligned.b_events), "cell": cell}


def _lines(run: RunRecord, aligned: "AlignedVideos", video: Path, table: Path) -> list[str]:
    """For people."""
    lines = [
        f"{video}: every frame of A ({len(aligned.a.embedding)}) beside the one of B that goes with it",
        f"{table}: the same as a table",
        f"Kendall's tau of the nearest frames: A in B {_tau_text(aligned.match.tau_a_in_b, len(aligned.a.embedding))}; "
        f"B in A {_tau_text(aligned.match.tau_b_in_a, len(aligned.b.embedding))}",
    ]
    has_tau = aligned.match.tau_a_in_b is not None or aligned.match.tau_b_in_a is not None
    if has_tau and run.settings.get("position") != "none":
        lines.append(TAU_OF_PLACES)
    events = _events(aligned)
    if events is None:
        return lines
    lines += [
        f"events of {name}: {_seconds_text(events[key])}" for name, key in (("A", "a_seconds"), ("B", "b_seconds"))
    ]
    if events["cell"] is None:
        return [*lines, "the events of B do not come in order, so they are none for a CSV; try --method dtw"]
    lines.append(f"for the events column of your CSV, in the row of {aligned.b.path.name}: {events['cell']}")
    return [*lines, "(rounded down, so that no phase begins a frame late)"]


def _tau_text(tau: float | None, frames: int) -> str:
    if tau is None:
        return "none: there is only one frame" if frames == 1 else "none: the nearest frame is always the same one"
    return f"{tau:.4f}"


def _seconds_text(seconds: Sequence[float]) -> str:
    return ", ".join(f"{second:.3f} s" for second in seconds)


def main() -> None:
    keep_freed_memory()
    command.run(app)
