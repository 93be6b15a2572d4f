"""Tests of keep_freed_memory, in subprocesses because it affects the whole process."""

import platform

import pytest

glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")

# A thread allocates and frees a block three times; the third time must not cause page faults.
REUSE = """
import ctypes, resource, sys, threading
from byov.cli.videos import keep_freed_memory

kept = keep_freed_memory()
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.malloc.argtypes = [ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]
faults = []

def work():
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        block = libc.malloc(100 << 20)
        ctypes.memset(block, 1, 100 << 20)
        libc.free(block)
        faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)

thread = threading.Thread(target=work)
thread.start()
thread.join()
print(kept, faults[2] < faults[0] / 10)
"""


@glibc
@pytest.mark.parametrize(
    ("environment", "kept"),
    [
        ({}, True),
        ({"MALLOC_TRIM_THRESHOLD_": "131072"}, False),
        ({"GLIBC_TUNABLES": "glibc.malloc.mmap_threshold=1048576"}, False),
    ],
)
def test_freed_memory_is_kept_unless_the_environment_configures_malloc(
    run_python, monkeypatch, clean_environment, environment, kept
):
    for name in [
        name for name in clean_environment if name.startswith("MALLOC_") or name == "GLIBC_TUNABLES"
    ]:
        monkeypatch.delitem(clean_environment, name)
    assert run_python(REUSE, **environment).stdout == f"{kept} {kept}\n"


def test_other_c_libraries_are_left_alone(monkeypatch):
    from byov.cli.videos import keep_freed_memory

    monkeypatch.setattr(platform, "libc_ver", lambda: ("musl", ""))
    assert keep_freed_memory() is False
