"""Processes that work for us: what they answer, and what is left when they or we die."""

import os
import select
import signal
import tempfile
import time
from contextlib import suppress

import pytest

from byov.cluster.ray_session import ClusterOptions, ray_session
from byov.cluster.ray_workers import RayWorkers
from byov.cluster.shared_marker import marker_in
from byov.cluster.workers import LocalWorkers

SECONDS = 60  # of patience; what is waited for takes a part of one


@pytest.fixture(scope="module")
def modules(tmp_path_factory):
    """A folder of modules that workers can import."""
    folder = tmp_path_factory.mktemp("modules")
    (folder / "work_of_tests.py").write_text(
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
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        patch.setenv("PYTHONPATH", str(folder))
        yield folder


@pytest.fixture(scope="module")
def code(modules):  # noqa: ARG001
    """code(name, body): work whose body is `body`."""
    import work_of_tests

    return work_of_tests.Code


@pytest.fixture(scope="module")
def ray_here(modules):  # noqa: ARG001
    """A Ray of two workers on this machine, for all tests of it."""
    pytest.importorskip("ray")
    with (
        tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp", ignore_cleanup_errors=True) as folder,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("RAY_TMPDIR", folder)
        cluster, before = ClusterOptions(workers=2), signal.getsignal(signal.SIGTERM)
        with ray_session(cluster):
            signal.signal(signal.SIGTERM, before)
            yield cluster


@pytest.fixture(params=["local", "ray"])
def workers(request, tmp_path):
    if request.param == "local":
        workers = LocalWorkers(2)
        yield workers
        workers.close()
        return
    cluster = request.getfixturevalue("ray_here")
    with marker_in(tmp_path) as marker:
        workers = RayWorkers(cluster, marker)
        yield workers
        workers.close()


@pytest.fixture
def is_ray(workers):
    return isinstance(workers, RayWorkers)


def answers(workers, count):
    found = {}
    deadline = time.monotonic() + SECONDS
    while len(found) < count:
        assert time.monotonic() < deadline
        found |= {answer.name: answer for answer in workers.wait(1)}
    return found


def test_each_piece_of_work_is_answered_once(workers, code):
    for number in range(5):
        workers.submit(code(str(number), f"result = {number} ** 2"))
    assert {name: answer.result for name, answer in answers(workers, 5).items()} == {
        str(number): number**2 for number in range(5)
    }
    assert workers.running() == []
    assert workers.wait(0) == []


def test_workers_have_one_thread_and_ctrl_c_in_a_terminal_does_not_reach_them(workers, code):
    workers.submit(code("it", "result = os.environ['OMP_NUM_THREADS'], os.environ['MKL_NUM_THREADS'], os.getpgid(0)"))
    *threads, group = answers(workers, 1)["it"].result
    assert threads == ["1", "1"]
    assert group != os.getpgid(0)


def test_an_exception_is_one_line_and_its_trace(workers, code):
    workers.submit(code("it", "raise ValueError('first\\nsecond')"))
    answer = answers(workers, 1)["it"]
    assert answer.error == "ValueError: first"
    assert "Traceback" in answer.trace


def test_a_worker_that_dies_loses_its_work_alone(workers, is_ray, code):
    workers.submit(code("dies", "os.write(2, b'the last words'); os.kill(os.getpid(), 9)"))
    for number in range(3):
        workers.submit(code(str(number), "result = 'whole'"))
    found = answers(workers, 4)
    said = "its worker is lost (WorkerCrashedError)" if is_ray else "its process is gone (signal 9: the last words)"
    assert found.pop("dies").error == said
    assert {answer.result for answer in found.values()} == {"whole"}


def test_stop_is_heard_by_what_is_under_way_and_nothing_more_is_begun(workers, code):
    until_stop = "while not stop(): time.sleep(0.001)\nresult = 'stopped'"
    for number in range(4):
        workers.submit(code(str(number), until_stop))
    assert len(workers.running()) == 2
    workers.stop()
    assert [answer.result for answer in answers(workers, 2).values()] == ["stopped"] * 2
    assert workers.running() == []


@pytest.mark.parametrize("workers", ["ray"], indirect=True)
@pytest.mark.parametrize(("deaths", "tries"), [(2, 3), (9, 3)])
def test_on_a_cluster_work_whose_worker_is_lost_is_begun_again_three_times_in_all(
    workers, code, tmp_path, caplog, deaths, tries
):
    caplog.set_level("INFO")
    begun = tmp_path / "begun"
    lines = [
        f"with open({str(begun)!r}, 'a') as file: file.write('x')",
        f"if os.path.getsize({str(begun)!r}) <= {deaths}: os.kill(os.getpid(), 9)",
        "result = 'whole'",
    ]
    workers.submit(code("it", "\n".join(lines)))
    (answer,) = answers(workers, 1).values()
    assert len(begun.read_text()) == tries
    assert caplog.text.count("it: its worker is lost (WorkerCrashedError); it is gone on with") == 2
    lost = "its worker is lost (WorkerCrashedError)"
    assert (answer.result, answer.error) == (("whole", "") if deaths < tries else (None, lost))


def test_workers_end_when_nobody_is_left_to_work_for(start_python, tmp_path, modules):
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
    process = start_python(script, begun, ended, modules)
    assert process.stdout.readline() == "at work\n", process.communicate()
    process.send_signal(signal.SIGKILL)
    process.wait()
    with suppress(ProcessLookupError):  # gone already
        worker = os.pidfd_open(int(begun.read_text()))
        assert select.select([worker], [], [], SECONDS)[0]
        os.close(worker)
    assert ended.exists()
