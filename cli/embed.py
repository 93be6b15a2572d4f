"""byov-embed: frame embeddings of any videos, by the model of a run."""

import json
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from byov.cache.layout import check_name
from byov.cache.runs import choose_run
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
from byov.cli.unfinished import say_unfinished
from byov.data.dataset import View
from byov.data.video import MAX_PIXELS, DecodingPolicy
from byov.errors import ApplyError
from byov.text import pluralize, printable

if TYPE_CHECKING:
    from byov.apply.embedder import EmbeddedVideo

Format = Literal["h5", "npz"]
ENDINGS = (".h5", ".npz")
_LIKE_AN_ENDING = re.compile(r"\.[A-Za-z][A-Za-z0-9]{1,4}")

app = command.new_app()


@app.command()
def embed(
    videos: Annotated[list[Path], typer.Argument(help="Video files, of a dataset or of none.", show_default=False)],
    out: Annotated[
        Path,
        typer.Option("--out", "-o", help="A folder for a file per video; or, for one video, a file .h5 or .npz."),
    ],
    run: RunOption = None,
    view: Annotated[
        View | None, typer.Option(help="Of all the videos: the files say it, and lie in a folder of that name.")
    ] = None,
    file_format: Annotated[
        Format | None, typer.Option("--format", help="Of the files in a folder. Default h5.", show_default=False)
    ] = None,
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
    """Embed every frame of any videos with the model of a run: (T, D) embeddings and the times of the frames.

    A video of the run's own dataset gets the run's own embeddings (on the same kind of device, bit for bit).

    HDF5 files are as byov-train writes them; an .npz holds embedding, pts_seconds, run, model_sha256, video, and, if it
    is given, view.
    """
    started = time.monotonic()
    refuse_absent(videos)
    outputs = _outputs(videos, out, view, file_format)
    refuse_outputs([path for _, path in outputs.values()], videos, overwrite=overwrite)
    policy = DecodingPolicy(on_truncated, on_corrupt, max_pixels)
    record = choose_run(runs_dir, run)
    say_unfinished([record])
    written: list[dict[str, str | int]] = []

    def work(scratch: Path) -> dict[str, str]:
        from byov.apply.embedder import RunEmbedder

        embedder = RunEmbedder(record, encoder, device, BARS)
        sources = {name: path for name, (path, _) in outputs.items()}
        failures, embedded = embedder.embed(sources, scratch, policy, BARS)
        for name, video in embedded:
            _, target = outputs[name]
            video.write(target, view)
            written.append(_entry(video, target))
            if not as_json:
                frames, dimensions = video.embedding.shape
                print(printable(f"{target}: {pluralize(frames, 'frame')} x {dimensions} of {video.path}"))
        return {str(sources[name]): reason for name, reason in failures.items()}

    failures = in_scratch(work)
    if as_json:
        summary = {
            "run": record.name,
            "view": view,
            "files": written,
            "failures": failures,
            "seconds": round(time.monotonic() - started, 3),
        }
        print(json.dumps(summary, indent=1))
    raise typer.Exit(command.FAILED if failures else 0)


def _outputs(
    videos: Sequence[Path], out: Path, view: View | None, file_format: Format | None
) -> dict[str, tuple[Path, Path]]:
    """Name → (video, file to write)."""
    if out.suffix.lower() in ENDINGS and not out.is_dir():
        if len(videos) > 1:
            raise command.UsageMistake(f"-o {out}: one file for {len(videos)} videos; give a folder")
        if file_format not in (None, out.suffix.lower()[1:]):
            raise command.UsageMistake(f"-o {out}: not a file of --format {file_format}; leave --format out")
        return {"video": (videos[0], out)}
    if len(videos) == 1 and _LIKE_AN_ENDING.fullmatch(out.suffix) and not out.is_dir():
        raise command.UsageMistake(f"-o {out}: expected a file that ends in {' or '.join(ENDINGS)}, or a folder")
    folder = out if view is None else out / view
    outputs: dict[str, tuple[Path, Path]] = {}
    for path in videos:
        name = check_name(path.stem, f"{path}: its name without ending,")
        if name in outputs:
            raise ApplyError(
                f"{outputs[name][0]} and {path} would both become {name}.{file_format or 'h5'}; "
                "embed them into different folders"
            )
        outputs[name] = (path, folder / f"{name}.{file_format or 'h5'}")
    return outputs


def _entry(video: "EmbeddedVideo", target: Path) -> dict[str, str | int]:
    frames, dimensions = video.embedding.shape
    return {"video": str(video.path), "file": str(target), "frames": frames, "dimensions": dimensions}


def main() -> None:
    keep_freed_memory()
    command.run(app)
