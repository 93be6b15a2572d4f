"""byov-annotate: progress, phases and events of any video."""

import json
import os
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Annotated, Any

import typer

import byov
from byov.cache.layout import (
    EVENTS_NAME,
    FRAMES_NAME,
    MOMENTS_NAME,
    PROGRESS_NAME,
    REVIEW_NAME,
    SHEET_NAME,
    SUMMARY_NAME,
)
from byov.cache.runs import choose_run
from byov.cli import videos as cli_videos
from byov.cli.app import FAILED, App
from byov.cli.options import (
    Cluster,
    Config,
    Cpus,
    FeaturesDir,
    Gpus,
    Json,
    RunOption,
    RunsDir,
    UsageError,
    Version,
    Workers,
    check_outputs,
    parse_cluster,
)
from byov.cli.signals import interruptible, run_stoppable
from byov.cli.terminal import PROGRESS, note, note_unfinished, print_rows
from byov.data.dataset import Video
from byov.data.own_videos import read_labels
from byov.data.video import MAX_PIXELS, DecodingPolicy
from byov.progress import Stop, Stoppable, never
from byov.records import View
from byov.text import pluralize, printable

TABLE_SUFFIXES = (".csv", ".parquet")
SHOWN = 10  # number of videos listed after the command
RESUME = "interrupted; features of finished videos are kept; run the same command to resume"

lerobot_option = partial(typer.Option, rich_help_panel="LeRobot datasets")

main = App()


@main.command()
def annotate(
    out: Annotated[
        Path,
        typer.Option("--out", "-o", help="Output folder, or .csv or .parquet table of frames."),
    ],
    videos: Annotated[
        list[Path] | None,
        typer.Argument(help="Video files or folders of videos.", show_default=False),
    ] = None,
    run: RunOption = None,
    lerobot: Annotated[
        Path | None, lerobot_option(help="Folder of a LeRobot dataset, instead of videos.")
    ] = None,
    camera: Annotated[
        str | None,
        lerobot_option(
            metavar="KEY",
            help="Key of the camera.",
            show_default="the only one, or the one that the run was trained on",
        ),
    ] = None,
    task: Annotated[
        str | None,
        lerobot_option(help="Task, or a unique part of its text; required if there are several."),
    ] = None,
    labels: Annotated[
        Path | None,
        typer.Option(
            help="CSV with path,events of labeled videos.",
            show_default="labels of the training videos",
        ),
    ] = None,
    repeat: Annotated[
        bool, typer.Option("--repeat", help="Find all occurrences in long recordings.")
    ] = False,
    find: Annotated[
        str | None,
        typer.Option(metavar="VIDEO@TIME", help="Find a moment, such as a.mp4@3.2s or a.mp4@48f."),
    ] = None,
    no_review: Annotated[
        bool, typer.Option("--no-review", help="Do not write a page to check the events on.")
    ] = False,
    view: Annotated[
        View | None,
        typer.Option(help="Camera view of the videos.", show_default="from the path, else ego"),
    ] = None,
    encoder: cli_videos.EncoderOption = None,
    device: cli_videos.DeviceOption = "auto",
    on_truncated: cli_videos.OnTruncatedOption = "error",
    on_corrupt: cli_videos.OnCorruptOption = "error",
    max_pixels: cli_videos.MaxPixelsOption = MAX_PIXELS,
    overwrite: cli_videos.OverwriteOption = False,
    cluster: Cluster = None,
    workers: Workers = None,
    cpus_per_worker: Cpus = None,
    gpus_per_worker: Gpus = None,
    as_json: Json = False,
    runs_dir: RunsDir = Path("runs"),
    features_dir: FeaturesDir = Path("features"),
    _config: Config = None,
    _version: Version = False,
) -> None:
    """Annotate videos with progress, phases and events.

    The phases come from labeled videos of either view: those in --labels or the training videos.
    Without labels, only progress is estimated.

    Writes annotations.csv (events, to edit and to pass to byov-extract --manifest), frames.csv
    (every frame), annotations.json (confidence, and what to check), captions/ (subtitles) and
    review.html (a page to check and correct events). For a LeRobot dataset, also writes
    progress.parquet and, with labels, meta/ (phases as subtasks).
    """
    cli_videos.keep_freed_memory()
    started = time.monotonic()
    cluster_options = parse_cluster(cluster, workers, cpus_per_worker, gpus_per_worker, device)
    is_table = out.suffix.lower() in TABLE_SUFFIXES and not out.is_dir()
    folder = out.parent if is_table else out
    _check_source(out, lerobot, {"VIDEOS": videos, "--find": find}, [camera, task])
    loaded = byov.Run(choose_run(runs_dir, run), features_dir, device, encoder)
    episodes = (
        None
        if lerobot is None
        else byov.list_episodes(loaded, lerobot, camera, task, view or "ego")
    )
    listed = [*episodes.videos] if episodes else _list_videos(videos, view)
    names = _output_names(find=bool(find), review=not no_review, lerobot=lerobot is not None)
    outputs = [out] if is_table else [folder / name for name in names]
    check_outputs(outputs, [video.path for video in listed], overwrite=overwrite)
    root = lerobot or _common_folder(listed)
    given = None if labels is None else read_labels(labels, root)
    query = None if find is None else _parse_moment(find, listed, view)
    note_unfinished([loaded.record])
    policy = DecodingPolicy(on_truncated, on_corrupt, max_pixels)

    def work(stop: Stop = never) -> dict[str, Any]:
        annotated = byov.AnnotatedVideos(
            loaded,
            listed,
            out.with_suffix(".cache") if is_table else out / "cache",
            labels=given,
            repeat=repeat,
            policy=policy,
            cluster=cluster_options,
            progress=PROGRESS,
            stop=stop,
        )
        if query is not None:
            moments = byov.find_moment(annotated, *query, PROGRESS)
            byov.write_moments(moments, folder, policy)
            return {
                "moments": [asdict(each) | {"video": each.video.id} for each in moments],
                "failures": annotated.failures,
            }
        frames_path = out if is_table else folder / FRAMES_NAME
        summary = byov.write_annotations(
            annotated, frames_path, None if is_table else folder, root=root, lerobot=episodes
        )
        has_order = annotated.annotator.is_ordered or not summary["phases"]
        if has_order and not no_review and not is_table:
            summary["reviewed"] = byov.write_review(
                annotated,
                summary,
                folder / REVIEW_NAME,
                root=root,
                progress=Stoppable(PROGRESS, stop),
            )
        return summary

    summary = (
        interruptible(work, RESUME) if cluster_options is None else run_stoppable(work, RESUME)
    )
    if as_json:
        summary |= {"seconds": round(time.monotonic() - started, 3)}
        print(json.dumps(summary, indent=1))
    else:
        _print_summary(summary, out, root)
    raise typer.Exit(FAILED if summary["failures"] else 0)


def _output_names(*, find: bool, review: bool, lerobot: bool) -> list[str]:
    if find:
        return [MOMENTS_NAME, SHEET_NAME]
    names = [EVENTS_NAME, SUMMARY_NAME, FRAMES_NAME]
    return names + review * [REVIEW_NAME] + lerobot * [PROGRESS_NAME]


def _check_source(
    out: Path, lerobot: Path | None, others: Mapping[str, Any], details: Sequence[str | None]
) -> None:
    """Raise UsageError if --lerobot is given with `others` or an unsuitable output, or `details` is
    given without it.
    """
    if lerobot is None:
        if any(details):
            raise UsageError("--camera and --task need --lerobot.")
        return
    for name, value in others.items():
        if value:
            raise UsageError(f"{name} cannot be combined with --lerobot.")
    if out.suffix.lower() in TABLE_SUFFIXES and not out.is_dir():
        raise UsageError(f"-o {out}: --lerobot writes several files. Pass a folder with -o.")
    if out.resolve().is_relative_to(lerobot.resolve()):
        raise UsageError(
            f"-o {out}: inside of the dataset, which is never changed. Choose another folder."
        )


def _list_videos(paths: Sequence[Path] | None, view: View | None) -> list[Video]:
    if not paths:
        raise UsageError("no videos. Pass files and folders, or a dataset with --lerobot.")
    videos = byov.list_videos(paths, view)
    if not videos:
        raise UsageError(f"{paths[0]}: no videos in this folder.")
    return videos


def _common_folder(videos: Sequence[Video]) -> Path:
    """Return the folder that contains all videos."""
    folder = os.path.commonpath([video.path.absolute().parent for video in videos])
    return Path(os.path.relpath(folder))


def _parse_moment(text: str, videos: list[Video], view: View | None) -> tuple[Video, str]:
    """Parse VIDEO@TIME; append the video to `videos` if it is not one of them."""
    name, _, moment = text.rpartition("@")
    if not re.fullmatch(r"\d+f|\d*\.?\d+s?", moment):
        raise UsageError(f"--find {text}: expected a video and a time, such as a.mp4@3.2s.")
    (query,) = byov.list_videos([Path(name)], view) if Path(name).is_file() else (None,)
    if query is None:
        raise UsageError(f"--find {text}: {name} is not a video file.")
    for video in videos:
        if video.path.samefile(query.path):
            return video, moment
    videos.append(replace(query, id=f"query--{query.id}"))
    return videos[-1], moment


def _print_summary(summary: dict[str, Any], out: Path, root: Path) -> None:
    for path, reason in summary["failures"].items():
        note(f"failed: {reason or path}")
    if "moments" in summary:
        moments = summary["moments"]
        rows = [
            [each["video"], f"{each['seconds']:.2f} s", f"{each['confidence']:.0%}"]
            for each in moments[:SHOWN]
        ]
        print_rows(["video", "time", "confidence"], rows)
        print(printable(f"{out / MOMENTS_NAME}: {pluralize(len(moments), 'video')}"))
        print(printable(f"{out / SHEET_NAME}: the frames"))
        return
    videos = sorted(summary["videos"], key=itemgetter("confidence"))
    flagged = [video for video in videos if video["problems"]]
    occurrences = sum(len(video["occurrences"]) for video in videos)
    phases = ", ".join(summary["phases"]) or "none (no labels)"
    print(printable(f"{pluralize(len(videos), 'video')}, {pluralize(occurrences, 'occurrence')}"))
    print(printable(f"phases: {phases}"))
    if flagged:
        print(f"\n{pluralize(len(flagged), 'video')} to check, least confident first:")
        for video in flagged[:SHOWN]:
            reasons = "; ".join(video["problems"])
            print(printable(f"  {video['video']} ({video['confidence']:.0%}): {reasons}"))
        if len(flagged) > SHOWN:
            print(f"  and {len(flagged) - SHOWN} more in {SUMMARY_NAME}")
    if summary["phases"] and summary["label_next"]:
        print(printable(f"to improve the phases, label {summary['label_next']} next"))
    if out.suffix.lower() in TABLE_SUFFIXES:
        print(printable(f"{out}: every frame"))
        return
    if "lerobot" in summary:
        _print_files(summary["lerobot"], out)
        print(printable(f"{out / EVENTS_NAME}: events; edit them and pass them with --labels"))
    else:
        print(printable(f"{out / EVENTS_NAME}: events; use them for training with"))
        print(printable(f"  byov-extract --manifest {out / EVENTS_NAME} --videos {root}"))
    print(printable(f"{out / FRAMES_NAME}: every frame"))
    _print_review(summary, out)


def _print_files(written: dict[str, Any], out: Path) -> None:
    """Print the files for LeRobot."""
    episodes = pluralize(written["annotated"], "episode")
    print(printable(f"{out / PROGRESS_NAME}: progress of {episodes} of {written['episodes']}"))
    for path in written["files"][1:]:
        print(printable(f"{path}: subtasks"))


def _print_review(summary: dict[str, Any], out: Path) -> None:
    if "reviewed" in summary:
        count = summary["reviewed"]
        total = len(summary["videos"])
        shown = f" ({count} of {pluralize(total, 'video')})" if count < total else ""
        print(printable(f"{out / REVIEW_NAME}: check and correct the events in a browser{shown}"))
