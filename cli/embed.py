"""byov-embed: embed the frames of any video."""

import json
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

import byov
from byov.cache.layout import check_name
from byov.cache.runs import choose_run
from byov.cli import videos as cli_videos
from byov.cli.app import FAILED, App
from byov.cli.options import Config, Json, RunOption, RunsDir, UsageError, Version, check_outputs
from byov.cli.signals import interruptible
from byov.cli.terminal import PROGRESS, note, note_unfinished
from byov.data.video import MAX_PIXELS
from byov.data.video_folder import video_files
from byov.errors import VideoError
from byov.progress import track
from byov.records import View
from byov.text import pluralize, printable

Format = Literal["h5", "npz"]
SUFFIXES = (".h5", ".npz")

main = App()


@main.command()
def embed(
    videos: Annotated[
        list[Path],
        typer.Argument(help="Video files or folders of videos.", show_default=False, exists=True),
    ],
    out: Annotated[
        Path, typer.Option("--out", "-o", help="Output folder or, for one video, .h5 or .npz file.")
    ],
    run: RunOption = None,
    view: Annotated[
        View | None, typer.Option(help="Camera view of the videos, stored in the output files.")
    ] = None,
    file_format: Annotated[
        Format | None,
        typer.Option("--format", help="Format of files in an output folder.", show_default="h5"),
    ] = None,
    encoder: cli_videos.EncoderOption = None,
    device: cli_videos.DeviceOption = "auto",
    on_truncated: cli_videos.OnTruncatedOption = "error",
    on_corrupt: cli_videos.OnCorruptOption = "error",
    max_pixels: cli_videos.MaxPixelsOption = MAX_PIXELS,
    overwrite: cli_videos.OverwriteOption = False,
    as_json: Json = False,
    runs_dir: RunsDir = Path("runs"),
    _config: Config = None,
    _version: Version = False,
) -> None:
    """Embed every frame of one or more videos with a trained model.

    Writes embeddings of shape (T, D) and the time of each frame. Videos from the run's dataset get
    the same embeddings as from byov-train, bit for bit on the same type of device.

    HDF5 files have the same format as those from byov-train. An .npz file contains embedding,
    pts_seconds, run, model_sha256, video, source_sha256 and, if given, view.
    """
    cli_videos.keep_freed_memory()
    started = time.monotonic()
    targets = _targets(videos, out, view, file_format)
    check_outputs([*targets], targets.values(), overwrite=overwrite)
    record = choose_run(runs_dir, run)
    note_unfinished([record])
    files = list[dict[str, Any]]()
    failures = dict[str, str]()

    def work() -> None:
        loaded = byov.Run(record, Path(), device, encoder)
        loaded.frame_encoder(PROGRESS)
        for target, path in track(
            targets.items(), PROGRESS, "videos", unit="video", total=len(targets)
        ):
            try:
                video = loaded.embed_video(
                    path,
                    on_truncated=on_truncated,
                    on_corrupt=on_corrupt,
                    max_pixels=max_pixels,
                    progress=PROGRESS,
                )
            except VideoError as error:
                failures[str(path)] = str(error)
                note(f"failed: {error}")
                continue
            video.write(target, view)
            frames, dimensions = video.embedding.shape
            files.append(
                {
                    "video": str(path),
                    "file": str(target),
                    "frames": frames,
                    "dimensions": dimensions,
                }
            )
            if not as_json:
                print(
                    printable(f"{target}: {pluralize(frames, 'frame')} x {dimensions} from {path}")
                )

    interruptible(work, "interrupted; finished output files are complete")
    if as_json:
        summary = {"run": record.name, "view": view, "files": files, "failures": failures}
        print(json.dumps(summary | {"seconds": round(time.monotonic() - started, 3)}, indent=1))
    raise typer.Exit(FAILED if failures else 0)


def _targets(
    given: Sequence[Path], out: Path, view: View | None, file_format: Format | None
) -> dict[Path, Path]:
    """Map output files to videos; videos in a folder keep their relative paths."""
    sources: list[tuple[Path, Path]] = []  # (video, its path relative to the output folder)
    for path in given:
        if path.is_dir():
            videos, _ = video_files(path)
            if not videos:
                raise UsageError(f"{path}: no videos in this folder.")
            sources += [(path / video, video) for video in videos]
        else:
            sources.append((path, Path(path.name)))
    if out.suffix.lower() in SUFFIXES and not out.is_dir():
        if len(sources) > 1:
            raise UsageError(
                f"-o {out}: {len(sources)} videos cannot be written to one file. Pass a folder "
                "instead."
            )
        if file_format not in (None, out.suffix.lower()[1:]):
            raise UsageError(f"-o {out} contradicts --format {file_format}. Omit --format.")
        return {out: sources[0][0]}
    if not out.is_dir() and re.fullmatch(r"\.[A-Za-z][A-Za-z0-9]{1,9}", out.suffix):
        raise UsageError(
            f"-o {out}: the output must be a {' or '.join(SUFFIXES)} file or a folder."
        )
    folder = out if view is None else out / view
    targets: dict[Path, Path] = {}
    for path, below in sources:
        name = check_name(below.stem, f"{path}: its name without suffix,")
        target = folder / below.parent / f"{name}.{file_format or 'h5'}"
        if target in targets:
            raise UsageError(
                f"{targets[target]} and {path} would both be written to {target}. Embed them into "
                "different folders."
            )
        targets[target] = path
    return targets
