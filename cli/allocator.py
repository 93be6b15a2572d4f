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
    no_mappings = mallopt(M_MMAP_MAX, 0)  # of a large block, to be undone with it
    no_trimming = mallopt(M_TRIM_THRESHOLD, -1)
    # The one heap for all threads: others' cannot hold blocks above 64 MiB, which are then mapped all the same.
    one_heap = mallopt(M_ARENA_MAX, 1)
    return bool(no_mappings and no_trimming and one_heap)


def _steered_by_user() -> bool:
    tunables = os.environ.get("GLIBC_TUNABLES", "")
    return "glibc.malloc." in tunables or any(name.startswith("MALLOC_") for name in os.environ)
