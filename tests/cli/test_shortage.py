"""What a command says when it is stopped before it has begun, and when there is no memory."""

import resource
import subprocess
import sys
from importlib.metadata import entry_points

import pytest

from byov.cli.command import is_shortage


@pytest.mark.parametrize(("number", "code"), [("SIGINT", 130), ("SIGTERM", 143)])
def test_a_signal_during_the_imports_ends_like_any_other(run_python, number, code):
    script = f"""
import os, signal, sys
sys.argv = ["/somewhere/bin/byov-train"]
import byov.cli
os.kill(os.getpid(), signal.{number})
print("not reached")
"""
    ran = run_python(script)
    assert (ran.returncode, ran.stdout, ran.stderr) == (code, "", "interrupted\n")


COMMANDS = [point for point in entry_points(group="console_scripts") if point.name.startswith("byov-")]


@pytest.mark.parametrize("module", ["typer", "numpy"])
@pytest.mark.parametrize("point", COMMANDS, ids=lambda point: point.name)
def test_ctrl_c_while_a_command_imports_what_it_needs_ends_like_any_other(run_python, point, module):
    """As the script of the command begins, and a signal comes as it imports a module."""
    script = f"""
import os, signal, sys
sys.argv = ["/somewhere/bin/{point.name}", "--help"]
def interrupt(event, arguments):
    if event == "import" and arguments[0] == {module!r}:
        os.kill(os.getpid(), signal.SIGINT)
sys.addaudithook(interrupt)
from {point.module} import {point.attr}
{point.attr}()
"""
    ran = run_python(script)
    assert (ran.returncode, ran.stderr) == (130, "interrupted\n"), ran


def test_who_imports_the_commands_keeps_ctrl_c(run_python):
    script = "import signal; was = signal.getsignal(signal.SIGINT); import byov.cli.command; "
    assert run_python(script + "print(signal.getsignal(signal.SIGINT) is was)").stdout == "True\n"


def test_the_version_is_there_when_it_is_asked_for(run_python):
    script = "import sys, byov; print('importlib.metadata' in sys.modules, byov.__version__[0])"
    assert run_python(script).stdout == "False 0\n"


def test_words_of_a_shortage_are_told_from_others():
    for words in (
        "DefaultCPUAllocator: can't allocate memory: you tried",
        "can't start new thread",
        "CUDA out of memory.",
    ):
        assert is_shortage(RuntimeError(words))
    assert is_shortage(MemoryError())
    assert not is_shortage(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))


def test_under_a_limit_of_memory_the_message_says_memory(tmp_path, clean_environment):
    script = """
import typer
from byov.cli import command
app = command.new_app()

@app.command()
def take() -> None:
    bytearray(1 << 40)

command.run(app)
"""
    ran = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=300,
        env=clean_environment,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (1 << 32, 1 << 32)),
    )
    assert ran.returncode == 1
    assert ran.stderr.startswith("error: not enough memory")
    assert ran.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_model_that_memory_does_not_hold_twice_is_no_panic_of_the_library_that_writes_it(run_python):
    script = """
import os, resource, torch
from pathlib import Path
from byov.train.checkpoint import model_bytes
model = torch.nn.Linear(5000, 5000)
size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (size + 150_000_000,) * 2)
try:
    model_bytes(model)
except MemoryError:
    os.write(1, b"memory")
os._exit(0)
"""
    ran = run_python(script)
    assert (ran.stdout, ran.stderr) == ("memory", "")
