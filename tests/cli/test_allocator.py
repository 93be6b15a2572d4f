"""keep_freed_memory in processes of their own: it holds for a whole process."""

import platform

import pytest

glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")

# A thread, as the commands have it encode, takes and frees a block thrice: does it get pages that need no clearing?
REUSE = """
import ctypes, resource, sys, threading
from byov.cli.allocator import keep_freed_memory

kept = keep_freed_memory()
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]
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

STUBBED = """
import ctypes, platform

def refuse(*_):
    raise AssertionError("the C library must not be loaded")

platform.libc_ver, ctypes.CDLL = lambda: ({library!r}, ""), refuse
from byov.cli.allocator import keep_freed_memory
print(keep_freed_memory())
"""


@pytest.fixture
def usual_malloc(monkeypatch, clean_environment):
    """Whoever runs the tests may steer theirs."""
    for name in [name for name in clean_environment if name.startswith("MALLOC_") or name == "GLIBC_TUNABLES"]:
        monkeypatch.delitem(clean_environment, name)


@glibc
@pytest.mark.usefixtures("usual_malloc")
def test_a_thread_gets_its_freed_memory_back(run_python):
    assert run_python(REUSE).stdout == "True True\n"


@glibc
@pytest.mark.usefixtures("usual_malloc")
@pytest.mark.parametrize(
    "theirs",
    [
        {"MALLOC_TRIM_THRESHOLD_": "131072"},
        {"MALLOC_ARENA_MAX": "4"},
        {"GLIBC_TUNABLES": "glibc.malloc.mmap_threshold=1048576"},
    ],
)
def test_what_the_user_has_set_is_left_alone(run_python, theirs):
    assert run_python(REUSE, **theirs).stdout == "False False\n"


@pytest.mark.parametrize("library", ["", "musl"])
def test_other_c_libraries_are_left_alone(run_python, library):
    assert run_python(STUBBED.format(library=library)).stdout == "False\n"
