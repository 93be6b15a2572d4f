"""What the commands that run an encoder ask of the C library's allocator."""

import ctypes
import os
import platform

# glibc's malloc.h
M_TRIM_THRESHOLD, M_MMAP_MAX, M_ARENA_MAX = -1, -4, -8


def keep_freed_memory() -> bool:
    """Keep memory that is freed for the next batch; whether that is so now. To be called before there are threads.

    An encoder on the CPU takes and frees hundreds of MiB a batch, which glibc hands back to the system, and the system
    clears again page by page for the next one. Other C libraries are left as they are, and so is glibc if the user's
    environment steers it.
    """
    if platform.libc_ver()[0] != "glibc" or _steered_by_user():
        return False
    mallopt = ctypes.CDLL(None).mallopt
    options = (
        (M_MMAP_MAX, 0),  # no mapping of its own for a large block, to be undone with it
        (M_TRIM_THRESHOLD, -1),  # the heap never shrinks
        (
            M_ARENA_MAX,
            1,
        ),  # the one heap for all threads: others' cannot hold blocks above 64 MiB, which are then mapped
    )
    return [mallopt(option, value) for option, value in options] == [1, 1, 1]


def _steered_by_user() -> bool:
    return any(name.startswith("MALLOC_") for name in os.environ) or "glibc.malloc." in os.environ.get(
        "GLIBC_TUNABLES", ""
    )
