"""Processes that work for us: what they answer, and what is left when they or we die."""

import os
import select
import signal
from contextlib import suppress

import pytest

from byov.cluster.workers import LocalWorkers

SECONDS = 30  # of patience; what is waited for takes a part of one


@pytest.fixture
def code(tmp_path, monkeypatch):
    """code(name, body): work whose body is `body`, in a module that workers can import."""
    (tmp_path / "work_of_tests.py").write_text(
        "import os, time\n"
        "from pathlib import Path\n"
        "from dataclasses import dataclass\n"
        "@dataclass\n"
        "class Code:\n"
        "    name: str\n"
        "    body: str\n"
        "    def __call__(self, stop):\n"
        "        names = {'stop': stop}\n"
        "        exec(self.body, globals(), names)\n"
        "        return names.get('result')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    import work_of_tests

    return work_of_tests.Code


@pytest.fixture
def workers():
    workers = LocalWorkers(2)
    yield workers
    workers.close()


def answers(workers, count):
    found = {}
    while len(found) < count:
        came = workers.wait(SECONDS)
        assert came
        found |= {answer.name: answer for answer in came}
    return found


def test_each_piece_of_work_is_answered_once(workers, code):
    for number in range(5):
        workers.submit(code(str(number), f"result = {number} ** 2"))
    assert {name: answer.result for name, answer in answers(workers, 5).items()} == {
        str(number): number**2 for number in range(5)
    }
    assert workers.running() == []
    assert workers.wait(0) == []


def test_workers_have_one_thread_and_a_session_of_their_own(workers, code):
    workers.submit(code("it", "result = os.environ['OMP_NUM_THREADS'], os.getsid(0), os.getpid()"))
    threads, session, process = answers(workers, 1)["it"].result
    assert threads == "1"
    assert session == process  # so that Ctrl-C in a terminal does not reach it


def test_an_exception_is_one_line_and_its_trace(workers, code):
    workers.submit(code("it", "raise ValueError('first\\nsecond')"))
    answer = answers(workers, 1)["it"]
    assert answer.error == "ValueError: first"
    assert "Traceback" in answer.trace


def test_a_worker_that_dies_loses_its_work_alone(workers, code):
    workers.submit(code("dies", "os.write(2, b'the last words'); os.kill(os.getpid(), 9)"))
    for number in range(3):
        workers.submit(code(str(number), "result = 'whole'"))
    found = answers(workers, 4)
    assert found.pop("dies").error == "its process is gone (signal 9: the last words)"
    assert {answer.result for answer in found.values()} == {"whole"}


def test_stop_is_heard_by_what_is_under_way_and_nothing_more_is_begun(workers, code):
    until_stop = "while not stop(): time.sleep(0.001)\nresult = 'stopped'"
    for number in range(4):
        workers.submit(code(str(number), until_stop))
    assert len(workers.running()) == 2
    workers.stop()
    assert [answer.result for answer in answers(workers, 2).values()] == ["stopped"] * 2
    assert workers.running() == []


@pytest.mark.usefixtures("code")
def test_workers_end_when_nobody_is_left_to_work_for(start_python, tmp_path):
    """Killed as hard as can be, the parent cannot tell them."""
    script = """
import os, sys
from pathlib import Path
begun, ended, modules = sys.argv[1:]
sys.path.insert(0, modules)
os.environ["PYTHONPATH"] = modules
from byov.cluster.workers import LocalWorkers
from work_of_tests import Code
workers = LocalWorkers(1)
body = (f"Path({begun!r}).write_text(str(os.getpid()))", "while not stop(): pass", f"Path({ended!r}).touch()")
workers.submit(Code("it", "\\n".join(body)))
while not Path(begun).read_text():
    pass
print("at work", flush=True)
sys.stdin.read()
"""
    begun, ended = tmp_path / "begun", tmp_path / "ended"
    begun.touch()
    process = start_python(script, begun, ended, tmp_path)
    assert process.stdout.readline() == "at work\n", process.communicate()
    process.send_signal(signal.SIGKILL)
    process.wait()
    with suppress(ProcessLookupError):  # gone already
        worker = os.pidfd_open(int(begun.read_text()))
        assert select.select([worker], [], [], SECONDS)[0]
        os.close(worker)
    assert ended.exists()
