import os
import signal
import threading

import pytest
from tests.cli.conftest import SCRIPTS

from byov.cli.signals import deferred_stop, interruptible

signals = pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])


def test_interruptible_returns_the_result_or_raises_the_error():
    assert interruptible(threading.current_thread) is not threading.main_thread()
    error = SystemExit(3)

    def work():
        raise error

    with pytest.raises(SystemExit) as caught:
        interruptible(work)
    assert caught.value is error


@signals
@pytest.mark.parametrize("wait", ["sys.stdin.readline()", "interruptible(lambda: os.read(0, 1))"])
def test_signal_ends_a_command_with_one_line(start_command, number, code, wait):
    process = start_command(f"print('ready', flush=True); {wait}; print('not reached')")
    process.send_signal(number)
    assert process.wait(timeout=60) == code
    assert (process.stdout.read(), process.stderr.read()) == ("", "interrupted\n")


def test_signal_removes_temporary_files(start_command, tmp_path):
    process = start_command(f"""
    from pathlib import Path
    from byov.cache.atomic import replacing
    with replacing(Path({str(tmp_path / "a.txt")!r})) as partial:
        partial.write_text("half")
        print("ready", flush=True)
        sys.stdin.readline()
""")
    assert list(tmp_path.iterdir()) != []
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=60) == 143
    assert list(tmp_path.iterdir()) == []


def test_signal_during_cleanup_gives_no_traceback(run_app):
    def work():
        try:
            os.kill(os.getpid(), signal.SIGINT)
        finally:
            os.kill(os.getpid(), signal.SIGINT)

    ran = run_app(work)
    assert (ran.code, ran.err) == (130, "interrupted\n")


@pytest.mark.parametrize(
    ("first", "second", "out", "code"),
    [
        (signal.SIGINT, None, "deferred True\ndone\n", 130),
        (signal.SIGINT, signal.SIGTERM, "deferred True\n", 143),
    ],
)
def test_first_signal_is_deferred_and_the_second_is_not(run_app, first, second, out, code):
    def work():
        with deferred_stop() as stop:
            os.kill(os.getpid(), first)
            print("deferred", stop())
            if second:
                os.kill(os.getpid(), second)
            print("done")
        print("not reached")

    ran = run_app(work)
    assert (ran.out, ran.err, ran.code) == (out, "interrupted\n", code)


@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS)
def test_ctrl_c_during_imports_gives_no_traceback(run_python, script):
    done = run_python(f"""
import os, signal, sys
sys.argv = ["/somewhere/bin/{script.name}", "--help"]
def interrupt(event, arguments):
    if event == "import" and arguments[0] == "pydantic":
        os.kill(os.getpid(), signal.SIGINT)
sys.addaudithook(interrupt)
from {script.module} import {script.attr}
{script.attr}()
""")
    assert (done.returncode, done.stderr) == (130, "interrupted\n"), done


def test_importing_the_commands_leaves_signal_handlers_alone(run_python):
    script = "import signal; was = signal.getsignal(signal.SIGINT); import byov.cli.train; "
    assert run_python(script + "print(signal.getsignal(signal.SIGINT) is was)").stdout == "True\n"
