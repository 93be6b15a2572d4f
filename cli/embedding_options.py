"""What byov-embed and byov-align have in common: their options, their scratch folder, and how they are stopped."""

from collections.abc import Callable, Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, TypeVar

import typer

from byov.cli.command import interruptible
from byov.device import Device
from byov.errors import ApplyError

T = TypeVar("T")

RunOption = Annotated[str | None, typer.Option("--run", help="The run whose model embeds. Default: the newest.")]
EncoderOption = Annotated[
    str | None,
    typer.Option(
        "--encoder", help="Where the run's encoder is, if it was a local folder. Default: as the run's record says."
    ),
]
DeviceOption = Annotated[Device, typer.Option("--device", help="Where encoder and model run.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace output files that are there.")]


def refuse_absent(videos: Iterable[Path]) -> None:
    for path in videos:
        if not path.is_file():
            raise ApplyError(f"{path}: {'a folder, not a video' if path.is_dir() else 'no such file'}")


def in_scratch(work: Callable[[Path], T]) -> T:
    """The result of work(scratch folder). Ctrl-C leaves neither that folder nor outputs that are half written."""
    with TemporaryDirectory(prefix="byov-", ignore_cleanup_errors=True) as scratch:
        return interruptible(
            lambda: work(Path(scratch)),
            "interrupted; files that were written before are whole",
            scratch=Path(scratch),
        )
