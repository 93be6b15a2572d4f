"""byov-embed: frame embeddings of any video."""

import json
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from byov.cache.layout import check_name
from byov.cache.runs import choose_run
from byov.cli import common
from byov.cli import videos as cli_videos
from byov.cli.common import UsageError, check_outputs, note_unfinished
from byov.cli.terminal import PROGRESS
from byov.data.dataset import View
from byov.data.video import MAX_PIXELS, DecodingPolicy
from byov.text import pluralize, printable

Format = Literal["h5", "npz"]
SUFFIXES = (".h5", ".npz")

app = common.new_app()


@app.command()
def embed(
    videos: Annotated[list[Path], typer.Argument(help="Video files.", show_default=False)],
    out: Annotated[Path, typer.Option("--out", "-o", help="Output folder; for one video also a .h5 or .npz file.")],
    run: cli_videos.RunOption = None,
    view: Annotated[View | None, typer.Option(help="Camera view of all videos, stored in the files.")] = None,
    file_format: Annotated[
        Format | None, typer.Option("--format", help="File format in an output folder.", show_default="h5")
    ] = None,
    encoder: cli_videos.EncoderOption = None,
    device: cli_videos.DeviceOption = "auto",
    on_truncated: cli_videos.OnTruncatedOption = "error",
    on_corrupt: cli_videos.OnCorruptOption = "error",
    max_pixels: cli_videos.MaxPixelsOption = MAX_PIXELS,
    overwrite: cli_videos.OverwriteOption = False,
    as_json: common.Json = False,
    runs_dir: common.RunsDir = Path("runs"),
    _config: common.Config = None,
    _version: common.Version = False,
) -> None:
    """Embed every frame of any videos with a trained model.

    Writes embeddings of shape (T, D) and the time of each frame. A video from the run's own dataset gets the same
    embeddings as during training, bit for bit on the same kind of device.

    HDF5 files have the format of byov-train. An .npz file holds embedding, pts_seconds, run, model_sha256, video,
    source_sha256 and, if given, view.
    """
    started = time.monotonic()
    cli_videos.check_videos_exist(videos)
    targets = _targets(videos, out, view, file_format)
    check_outputs([target for _, target in targets.values()], videos, overwrite=overwrite)
    policy = DecodingPolicy(on_truncated, on_corrupt, max_pixels)
    record = choose_run(runs_dir, run)
    note_unfinished([record])
    written: list[dict[str, Any]] = []

    def work(scratch: Path) -> dict[str, str]:
        from byov.apply.embedder import RunEmbedder

        embedder = RunEmbedder(record, encoder, device, PROGRESS)
        sources = {name: path for name, (path, _) in targets.items()}
        failures, embedded = embedder.embed(sources, scratch, policy, PROGRESS)
        for name, video in embedded:
            _, target = targets[name]
            video.write(target, view)
            frames, dimensions = video.embedding.shape
            written.append({"video": str(video.path), "file": str(target), "frames": frames, "dimensions": dimensions})
            if not as_json:
                print(printable(f"{target}: {pluralize(frames, 'frame')} x {dimensions} from {video.path}"))
        return {str(sources[name]): reason for name, reason in failures.items()}

    failures = cli_videos.in_scratch_folder(work)
    if as_json:
        summary = {
            "run": record.name,
            "view": view,
            "files": written,
            "failures": failures,
            "seconds": round(time.monotonic() - started, 3),
        }
        print(json.dumps(summary, indent=1))
    raise typer.Exit(common.FAILED if failures else 0)


def _targets(
    videos: Sequence[Path], out: Path, view: View | None, file_format: Format | None
) -> dict[str, tuple[Path, Path]]:
    """Return name → (video, output file)."""
    if out.suffix.lower() in SUFFIXES and not out.is_dir():
        if len(videos) > 1:
            raise UsageError(f"-o {out}: {len(videos)} videos cannot go into one file. Give a folder instead.")
        if file_format not in (None, out.suffix.lower()[1:]):
            raise UsageError(f"-o {out} contradicts --format {file_format}. Omit --format.")
        return {"video": (videos[0], out)}
    if len(videos) == 1 and not out.is_dir() and re.fullmatch(r"\.[A-Za-z][A-Za-z0-9]{1,4}", out.suffix):
        raise UsageError(f"-o {out}: the output must be a {' or '.join(SUFFIXES)} file or a folder.")
    folder = out if view is None else out / view
    targets: dict[str, tuple[Path, Path]] = {}
    for path in videos:
        name = check_name(path.stem, f"{path}: its name without suffix,")
        target = folder / f"{name}.{file_format or 'h5'}"
        if name in targets:
            raise UsageError(
                f"{targets[name][0]} and {path} would both be written to {target}. Embed them into different folders."
            )
        targets[name] = (path, target)
    return targets


def main() -> None:
    cli_videos.keep_freed_memory()
    common.run(app)
