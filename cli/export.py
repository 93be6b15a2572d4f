"""byov-export: export models to ONNX or torch.export files."""

import json
from pathlib import Path
from typing import Annotated

import typer

import byov
from byov.cache.runs import choose_run
from byov.cli import videos as cli_videos
from byov.cli.app import App
from byov.cli.options import (
    Config,
    FeaturesDir,
    Json,
    RunsDir,
    UsageError,
    Version,
    check_outputs,
)
from byov.cli.terminal import note_unfinished
from byov.text import printable

main = App()


@main.command()
def export(
    run: Annotated[
        str, typer.Argument(metavar="RUN", help="Name of the run to export.", show_default=False)
    ],
    out: Annotated[
        Path, typer.Argument(metavar="OUT", help="Output file (.onnx or .pt2).", show_default=False)
    ],
    frames: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Output file for the encoder (frames to tokens)."),
    ] = None,
    progress: Annotated[
        bool,
        typer.Option("--progress", help="Add the progress of each frame as a second output."),
    ] = False,
    encoder: cli_videos.EncoderOption = None,
    overwrite: cli_videos.OverwriteOption = False,
    as_json: Json = False,
    runs_dir: RunsDir = Path("runs"),
    features_dir: FeaturesDir = Path("features"),
    _config: Config = None,
    _version: Version = False,
) -> None:
    """Export a trained model for another runtime.

    The exported model maps (T, width) features to (T, D) embeddings, float32, for any T. With
    --progress, it also returns the (T,) progress of the frames, estimated from the training frames
    in the feature cache, which become part of the file. A .pt2 file is a torch.export program. Each
    file is compared with PyTorch on several lengths; a difference above 1e-4 is an error.
    """
    if frames is not None and frames.absolute() == out.absolute():
        raise UsageError(
            f"{out}: the model and the encoder need two files. Choose another name with --frames."
        )
    check_outputs([out] if frames is None else [out, frames], (), overwrite=overwrite, option="OUT")
    record = choose_run(runs_dir, run)
    note_unfinished([record])
    loaded = byov.Run(record, features_dir, "cpu", encoder)
    written = byov.export_run(loaded, out, frames, with_progress=progress)
    if as_json:
        errors = {str(path): error for path, error in written.items()}
        print(json.dumps({"run": record.name, "max_error": errors}, indent=1))
        return
    for path, error in written.items():
        print(printable(f"{path}: differs from PyTorch by at most {error:.1g}"))
