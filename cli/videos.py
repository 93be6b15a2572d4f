"""Options and helpers for the commands that read videos: extract, embed and align."""

import ctypes
import os
import platform
from typing import Annotated

import typer

from byov.data.video import OnDamage
from byov.device import Device

OnTruncatedOption = Annotated[
    OnDamage,
    typer.Option(
        "--on-truncated",
        help="Handling of videos that end early: report an error, or keep the frames.",
    ),
]
OnCorruptOption = Annotated[
    OnDamage,
    typer.Option(
        "--on-corrupt", help="Handling of corrupt frames: report an error, or keep and count them."
    ),
]
MaxPixelsOption = Annotated[
    int,
    typer.Option("--max-pixels", min=1, max=2**31 - 1, help="Maximum number of pixels per frame."),
]
EncoderOption = Annotated[
    str | None,
    typer.Option(
        "--encoder", help="Folder of the run's encoder, if it is not built in or on the Hub."
    ),
]
DeviceOption = Annotated[
    Device, typer.Option("--device", help="Device for the encoder and the model.")
]
OverwriteOption = Annotated[
    bool, typer.Option("--overwrite", help="Replace existing output files.")
]


def keep_freed_memory() -> bool:
    """Make glibc keep freed memory for the next batch, and return whether it does. Call this before
    starting threads.

    An encoder on the CPU allocates and frees hundreds of MiB per batch. By default, glibc returns
    this memory to the system, which has to clear every page for the next batch. Other C libraries
    are not changed, nor is glibc if the environment configures its allocator.
    """
    if (
        platform.libc_ver()[0] != "glibc"
        or "glibc.malloc." in os.environ.get("GLIBC_TUNABLES", "")
        or any(name.startswith("MALLOC_") for name in os.environ)
    ):
        return False
    mallopt = ctypes.CDLL(None).mallopt
    # Constants from glibc's malloc.h. Use one arena: blocks above 64 MiB do not fit into the arenas
    # of other threads and would still be mapped.
    options = {"M_MMAP_MAX": (-4, 0), "M_TRIM_THRESHOLD": (-1, -1), "M_ARENA_MAX": (-8, 1)}
    return all(mallopt(*setting) for setting in options.values())
