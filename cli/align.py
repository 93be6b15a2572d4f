"""byov-align: match the frames of two videos."""

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from byov.cache.runs import RunRecord, choose_run
from byov.cli import common
from byov.cli.common import UsageError, check_outputs
from byov.cli.terminal import PROGRESS
from byov.cli.videos import (
    DeviceOption,
    EncoderOption,
    MaxPixelsOption,
    OnCorruptOption,
    OnTruncatedOption,
    OverwriteOption,
    RunOption,
    check_videos_exist,
    in_scratch_folder,
    keep_freed_memory,
)
from byov.data.own_videos import read_events
from byov.data.video import MAX_PIXELS, DecodingPolicy, open_video
from byov.text import printable

if TYPE_CHECKING:  # imports torch, scipy and Pillow
    from byov.apply.align import AlignedVideos

MAX_HEIGHT = 1440  # keeps two wide panels within the frame size of H.264

app = common.new_app()


@app.command()
def align(
    a: Annotated[Path, typer.Argument(metavar="A", help="Reference video.", show_default=False)],
    b: Annotated[Path, typer.Argument(metavar="B", help="Video to match to A.", show_default=False)],
    out: Annotated[Path, typer.Option("--out", "-o", help="Output video, .mp4, .mov or .mkv; also writes a .csv.")],
    run: RunOption = None,
    method: Annotated[Literal["dtw", "nearest"], typer.Option(help="Time warping, or nearest frames.")] = "dtw",
    phases: Annotated[
        str | None, typer.Option(metavar="SECONDS", help='Key events of A to transfer to B, e.g. "2.5;7.1".')
    ] = None,
    height: Annotated[int, typer.Option(min=64, max=MAX_HEIGHT, help="Output height in pixels; even.")] = 360,
    encoder: EncoderOption = None,
    device: DeviceOption = "auto",
    on_truncated: OnTruncatedOption = "error",
    on_corrupt: OnCorruptOption = "error",
    max_pixels: MaxPixelsOption = MAX_PIXELS,
    overwrite: OverwriteOption = False,
    as_json: common.Json = False,
    runs_dir: common.RunsDir = Path("runs"),
    _config: common.Config = None,
    _version: common.Version = False,
) -> None:
    """Match the frames of two videos and show them side by side.

    In the output video, A plays at its own speed next to the matching frame of B. A CSV lists the pairs.

    Prints Kendall's tau of the nearest frames: 1 if they occur in the same order in both videos.
    """
    from byov.apply.video_writer import CONTAINERS  # imports torch and Pillow

    started = time.monotonic()
    table = out.with_suffix(".csv")
    events = None if phases is None else read_events(phases, "--phases")
    if out.suffix.lower() not in CONTAINERS:
        raise UsageError(f"-o {out}: the name must end in {', '.join(CONTAINERS)}.")
    if height % 2:
        raise UsageError(f"--height {height}: must be even.")
    check_videos_exist((a, b))
    for path in (a, b):
        with open_video(path):  # report an unreadable video before the encoder is loaded
            pass
    check_outputs((out, table), (a, b), overwrite=overwrite)
    policy = DecodingPolicy(on_truncated, on_corrupt, max_pixels)
    record = choose_run(runs_dir, run)

    def work(scratch: Path) -> "AlignedVideos":
        from byov.apply.align import align_videos
        from byov.apply.embedder import RunEmbedder

        embedder = RunEmbedder(record, encoder, device, PROGRESS)
        aligned = align_videos(embedder, a, b, scratch, method=method, events=events, policy=policy, progress=PROGRESS)
        aligned.write_video(out, scratch, height=height, policy=policy, progress=PROGRESS)
        aligned.write_table(table)
        return aligned

    aligned = in_scratch_folder(work)
    if as_json:
        summary = _summary(record, aligned, out, table) | {"seconds": round(time.monotonic() - started, 3)}
        print(json.dumps(summary, indent=1))
    else:
        for line in _lines(record, aligned, out, table):
            print(printable(line))


def _summary(run: RunRecord, aligned: "AlignedVideos", video: Path, table: Path) -> dict[str, Any]:
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
    match, frames_a, frames_b = aligned.match, len(aligned.a.embedding), len(aligned.b.embedding)
    lines = [
        f"{video}: {frames_a} frames of A, each next to the matching frame of B",
        f"{table}: the matching pairs",
        f"Kendall's tau of the nearest frames: A in B {_tau_text(match.tau_a_in_b, frames_a)}; "
        f"B in A {_tau_text(match.tau_b_in_a, frames_b)}",
    ]
    has_tau = match.tau_a_in_b is not None or match.tau_b_in_a is not None
    if has_tau and run.settings.get("position") != "none":
        lines.append(
            "This model encodes each frame's position in its video, which raises tau even for unrelated videos: "
            "check the output video."
        )
    events = _events(aligned)
    if events is None:
        return lines
    for name in ("a", "b"):
        seconds = ", ".join(f"{second:.3f} s" for second in events[f"{name}_seconds"])
        lines.append(f"events of {name.upper()}: {seconds}")
    if events["cell"] is None:
        lines.append("The events of B are not in order and cannot be used in a CSV. Try --method dtw.")
    else:
        lines.append(f"events column of your CSV for {aligned.b.path.name} (rounded down): {events['cell']}")
    return lines


def _tau_text(tau: float | None, frames: int) -> str:
    if tau is not None:
        return f"{tau:.4f}"
    return "undefined (only one frame)" if frames == 1 else "undefined (the nearest frame is always the same)"


def main() -> None:
    keep_freed_memory()
    common.run(app)
