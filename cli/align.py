"""byov-align: match the frames of two videos."""

import json
import time
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import typer

import byov
from byov.cache.runs import choose_run
from byov.cli import videos as cli_videos
from byov.cli.app import App
from byov.cli.options import (
    Config,
    FeaturesDir,
    Json,
    RunOption,
    RunsDir,
    UsageError,
    Version,
    check_outputs,
)
from byov.cli.signals import interruptible
from byov.cli.terminal import PROGRESS
from byov.data.own_videos import format_events, read_events
from byov.data.video import MAX_PIXELS, WRITTEN_FORMATS, DecodingPolicy, open_video
from byov.text import printable

main = App()
video_argument = partial(typer.Argument, show_default=False, exists=True, dir_okay=False)


@main.command()
def align(
    a: Annotated[Path, video_argument(metavar="A", help="Reference video.")],
    b: Annotated[Path, video_argument(metavar="B", help="Video to match to A.")],
    out: Annotated[
        Path,
        typer.Option("--out", "-o", help="Output video (.mp4, .mov or .mkv); also writes .csv."),
    ],
    run: RunOption = None,
    method: Annotated[
        Literal["dtw", "nearest"], typer.Option(help="Dynamic time warping, or nearest frames.")
    ] = "dtw",
    phases: Annotated[
        str | None,
        typer.Option(
            metavar="SECONDS", help='Times of events in A to transfer to B, e.g. "2.5;7.1".'
        ),
    ] = None,
    # At 1440 pixels, two wide panels still fit into the maximum frame size of H.264.
    height: Annotated[
        int, typer.Option(min=64, max=1440, help="Output height in pixels (even).")
    ] = 360,
    encoder: cli_videos.EncoderOption = None,
    device: cli_videos.DeviceOption = "auto",
    on_truncated: cli_videos.OnTruncatedOption = "error",
    on_corrupt: cli_videos.OnCorruptOption = "error",
    max_pixels: cli_videos.MaxPixelsOption = MAX_PIXELS,
    overwrite: cli_videos.OverwriteOption = False,
    as_json: Json = False,
    runs_dir: RunsDir = Path("runs"),
    features_dir: FeaturesDir = Path("features"),
    _config: Config = None,
    _version: Version = False,
) -> None:
    """Match the frames of two videos and show them side by side.

    In the output video, A plays at its original speed next to the matching frames of B. A CSV file
    lists the pairs.

    Also prints Kendall's tau, which is 1 if the nearest frames occur in the same order in both
    videos, and reasons to doubt that a video shows the action of the training videos.
    """
    cli_videos.keep_freed_memory()
    started = time.monotonic()
    table = out.with_suffix(".csv")
    a_events = None if phases is None else read_events(phases, "--phases")
    if out.suffix.lower() not in WRITTEN_FORMATS:
        raise UsageError(f"-o {out}: the name must end in {', '.join(WRITTEN_FORMATS)}.")
    if height % 2:
        raise UsageError(f"--height {height}: must be even.")
    for path in (a, b):
        with open_video(path):  # report unreadable videos before loading the encoder
            pass
    check_outputs((out, table), (a, b), overwrite=overwrite)
    record = choose_run(runs_dir, run)

    def work() -> "byov.AlignedVideos":
        policy = DecodingPolicy(on_truncated, on_corrupt, max_pixels)
        options = vars(policy) | {"method": method, "events": a_events, "progress": PROGRESS}
        aligned = byov.align_videos(
            byov.Run(record, features_dir, device, encoder), a, b, **options
        )
        aligned.write_video(out, height=height, policy=policy, progress=PROGRESS)
        aligned.write_table(table)
        return aligned

    aligned = interruptible(work, "interrupted; finished output files are complete")
    cell = None if aligned.b_events is None else format_events(aligned.b_events)
    if as_json:
        events = {"a_seconds": aligned.a_events, "b_seconds": aligned.b_events, "cell": cell}
        summary = {
            "run": record.name,
            "method": method,
            "video": str(out),
            "csv": str(table),
            "a": str(a),
            "b": str(b),
            "a_frames": len(aligned.a.embedding),
            "b_frames": len(aligned.b.embedding),
            "problems": {"a": aligned.a_problems, "b": aligned.b_problems},
            "tau": {"a_in_b": aligned.tau_a_in_b, "b_in_a": aligned.tau_b_in_a},
            "events": None if cell is None else events,
            "seconds": round(time.monotonic() - started, 3),
        }
        print(json.dumps(summary, indent=1))
        return
    print(
        printable(f"{out}: {len(aligned.frames)} frames of A, each next to the matching frame of B")
    )
    print(printable(f"{table}: matching pairs of frames"))
    taus = (aligned.tau_a_in_b, aligned.tau_b_in_a)
    a_in_b, b_in_a = ("undefined" if tau is None else f"{tau:.4f}" for tau in taus)
    print(f"Kendall's tau of the nearest frames: A in B {a_in_b}; B in A {b_in_a}")
    if aligned.a_problems is None and record.settings.get("position") != "none":
        print(
            "This model encodes each frame's position in its video, which raises tau even for "
            "unrelated videos:\ncheck the output video."
        )
    for letter, problems in (("A", aligned.a_problems), ("B", aligned.b_problems)):
        if problems:
            print(f"{letter} may not show the action of the training videos: {'; '.join(problems)}")
    if cell is not None:
        print(
            printable(f"value for {b.name} in the events column of your CSV (rounded down): {cell}")
        )
