"""How videos are decoded: the options that byov-extract, byov-embed and byov-align have in common."""

from typing import Annotated

import typer

from byov.data.video import OnCorrupt, OnTruncated

OnTruncatedOption = Annotated[
    OnTruncated,
    typer.Option("--on-truncated", help="A file that breaks off: fail it, or keep the frames before the break."),
]
OnCorruptOption = Annotated[
    OnCorrupt,
    typer.Option("--on-corrupt", help="Frames marked as corrupt, wrong checksums: fail the video, or keep and count."),
]
MaxPixelsOption = Annotated[
    int, typer.Option("--max-pixels", min=1, max=2**31 - 1, help="Frames of more pixels are refused.")
]
