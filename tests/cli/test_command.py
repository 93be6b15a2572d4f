import errno
import signal
import threading
import time

import pytest

from byov.cli.command import describe, run_in_thread
from byov.text import printable

APP = """
import os, signal, sys
from byov.cli import command
from byov.cli.command import deferred_stop, exit_at_once, interruptible, run_in_thread
from byov.cli.command import note
from byov.errors import CacheError
app = command.new_app()

@app.command()
def work() -> None:
    {body}

command.run(app)
"""


@pytest.fixture
def app(run_python):
    """Run a command of one line of Python."""
    return lambda body: run_python(APP.format(body=body))


def test_a_missing_file_is_described_by_path_and_reason(tmp_path):
    with pytest.raises(OSError, match="none") as caught:
        (tmp_path / "none").read_bytes()
    assert describe(caught.value) == f"{tmp_path / 'none'}: No such file or directory"


def test_errors_without_path_or_number_are_described_by_what_they_have():
    assert describe(OSError(errno.ENOSPC, "No space left on device")) == "No space left on device"
    assert describe(OSError("Unable to open file")) == "Unable to open file"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Küche ビデオ [1]", "Küche ビデオ [1]"),
        ("\x1b[2J\r\n\t\x00\x7f", r"\x1b[2J\r\n\t\x00\x7f"),
        ("\x9b\u202e\u2028", r"\x9b\u202e\u2028"),
        ("b\udcff", r"b\udcff"),
        ("", ""),
    ],
)
def test_printable_spells_out_what_steers_a_terminal_and_nothing_else(text, shown):
    assert printable(text) == shown


def test_work_in_a_thread_returns_what_it_returns():
    threads = []
    assert run_in_thread(lambda: threads.append(threading.current_thread()) or "done") == "done"
    assert threads != [threading.main_thread()]
    assert run_in_thread(lambda: None) is None


@pytest.mark.parametrize("error", [ValueError("x"), SystemExit(3), KeyboardInterrupt()])
def test_work_in_a_thread_raises_what_it_raises(error):
    def work():
        raise error

    with pytest.raises(type(error)) as caught:
        run_in_thread(work)
    assert caught.value is error


@pytest.mark.parametrize(
    ("body", "out", "err", "code"),
    [
        ("raise CacheError('a\\x1b[2J\\nb')", "", "error: a\\x1b[2J\\nb\n", 2),
        ("print('before'); raise CacheError('x')", "before\n", "error: x\n", 2),
        ("open('/nowhere/\\x1b')", "", "error: /nowhere/\\x1b: No such file or directory\n", 1),
        ("note('to the person')", "", "to the person\n", 0),
    ],
)
def test_how_a_command_ends(app, body, out, err, code):
    done = app(body)
    assert (done.stdout, done.stderr, done.returncode) == (out, err, code)


def test_our_own_bugs_keep_their_traceback(app):
    done = app("raise ValueError('a bug')")
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert done.stderr.endswith("ValueError: a bug\n")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize(
    "wait",
    [
        "sys.stdin.readline()",
        "run_in_thread(lambda: os.read(0, 1))",
    ],
)
def test_a_signal_ends_a_command_with_one_line_and_its_code(start_python, number, code, wait):
    process = start_python(APP.format(body=f"print('at work', flush=True); {wait}; print('went on')"))
    assert process.stdout.readline() == "at work\n"
    process.send_signal(number)
    assert process.stderr.readline() == "interrupted\n"
    assert process.wait(timeout=60) == code
    assert (process.stdout.read(), process.stderr.read()) == ("", "")


def test_a_signal_lets_the_work_clean_up(start_python, tmp_path):
    body = f"""
    from pathlib import Path
    from byov.cache.atomic import replacing
    with replacing(Path({str(tmp_path / "a.txt")!r})) as partial:
        partial.write_text("half")
        print("at work", flush=True)
        sys.stdin.readline()
"""
    process = start_python(APP.format(body=body))
    assert process.stdout.readline() == "at work\n"
    assert len(list(tmp_path.iterdir())) == 1
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=60) == 143
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("attempt", range(3))
def test_a_scratch_folder_goes_although_others_write_there(start_python, tmp_path, attempt):
    body = """
    from threading import Thread
    from byov.cache.atomic import write_text
    from byov.cli.embedding_options import in_scratch

    def write(scratch, writer):
        for number in range(10**9):
            write_text(scratch / str(writer) / str(number), "text")

    def many(scratch):
        for writer in range(8):
            Thread(target=write, args=(scratch, writer), daemon=True).start()
        print("at work", flush=True)
        sys.stdin.readline()

    in_scratch(many)
"""
    process = start_python(APP.format(body=body), TMPDIR=str(tmp_path))
    assert process.stdout.readline() == "at work\n"
    time.sleep(0.05 * attempt)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=60) == 130
    assert list(tmp_path.iterdir()) == []


def test_a_second_signal_while_the_first_is_answered_gives_no_traceback(start_python):
    body = """
    try:
        print("at work", flush=True)
        sys.stdin.readline()
    finally:
        os.kill(os.getpid(), signal.SIGINT)
"""
    process = start_python(APP.format(body=body))
    assert process.stdout.readline() == "at work\n"
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=60) == 130
    assert process.stderr.read() == "interrupted\n"


def test_a_command_without_standard_output_still_ends_well(run_python):
    done = run_python(
        "import os, sys; python = sys.executable; os.close(1); os.execv(python, [python, '-c', "
        + repr(APP.format(body="print('x')"))
        + "])"
    )
    assert (done.stdout, done.stderr, done.returncode) == ("", "", 0)


DEFERRED = """
    with deferred_stop() as stop:
        os.kill(os.getpid(), signal.{first})
        print("went on", stop.signal_number == signal.{first})
        {then}
        print("done")
    print("after")
"""


@pytest.mark.parametrize(("first", "code"), [("SIGINT", 130), ("SIGTERM", 143)])
def test_a_deferred_stop_waits_until_the_work_obeys(app, first, code):
    done = app(DEFERRED.format(first=first, then="stop.obey()"))
    assert (done.stdout, done.stderr, done.returncode) == ("went on True\n", "interrupted\n", code)


def test_a_deferred_stop_is_obeyed_at_the_end_at_the_latest(app):
    done = app(DEFERRED.format(first="SIGINT", then="pass"))
    assert (done.stdout, done.stderr, done.returncode) == ("went on True\ndone\n", "interrupted\n", 130)


@pytest.mark.parametrize(("second", "code"), [("SIGINT", 130), ("SIGTERM", 143)])
def test_a_second_signal_is_not_deferred(app, second, code):
    done = app(DEFERRED.format(first="SIGINT", then=f"os.kill(os.getpid(), signal.{second})"))
    assert (done.stdout, done.stderr, done.returncode) == ("went on True\n", "interrupted\n", code)


def test_after_a_deferred_stop_signals_stop_at_once_again(app):
    done = app("""
    with deferred_stop() as stop:
        stop.obey()
    try:
        with deferred_stop():
            raise CacheError("x")
    except CacheError:
        print("as before", flush=True)
    os.kill(os.getpid(), signal.SIGTERM)
    print("went on")
""")
    assert (done.stdout, done.stderr, done.returncode) == ("as before\n", "interrupted\n", 143)
