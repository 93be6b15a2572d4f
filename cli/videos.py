"""Options and helpers of the commands that read videos: extract, embed and align."""

import ctypes
import os
import platform
from typing import Annotated

import typer

from byov.data.video import OnCorrupt, OnTruncated
from byov.device import Device

OnTruncatedOption = Annotated[
    OnTruncated,
    typer.Option("--on-truncated", help="Videos that end early: report an error, or keep the frames before the end."),
]
OnCorruptOption = Annotated[
    OnCorrupt,
    typer.Option("--on-corrupt", help="Videos with corrupt frames: report an error, or keep and count these frames."),
]
MaxPixelsOption = Annotated[
    int, typer.Option("--max-pixels", min=1, max=2**31 - 1, help="Maximum number of pixels per frame.")
]
EncoderOption = Annotated[
    str | None,
    typer.Option("--encoder", help="New location of the run's encoder, if it was a local folder that has moved."),
]
DeviceOption = Annotated[Device, typer.Option("--device", help="Device for the encoder and the model.")]
OverwriteOption = Annotated[bool, typer.Option("--overwrite", help="Replace existing output files.")]


# From glibc's malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -4, -8


def keep_freed_memory() -> bool:
    """Make glibc keep freed memory for the next batch, and return whether it does. Call before threads start.

    An encoder on the CPU allocates and frees hundreds of MiB per batch. By default glibc returns them to the system,
    which clears every page again for the next batch. Does nothing with another C library, or if the environment
    configures glibc's allocator.
    """
    tuned = "glibc.malloc." in os.environ.get("GLIBC_TUNABLES", "")
    if platform.libc_ver()[0] != "glibc" or tuned or any(name.startswith("MALLOC_") for name in os.environ):
        return False
    mallopt = ctypes.CDLL(None).mallopt
    # One arena, since blocks above 64 MiB do not fit into those of other threads and would be mapped after all.
    return all(mallopt(*setting) for setting in ((_M_MMAP_MAX, 0), (_M_TRIM_THRESHOLD, -1), (_M_ARENA_MAX, 1)))
