"""Tasks in local processes and in Ray actors: results, exceptions, lost workers, stopping."""

import os
import select
import signal
import tempfile
from contextlib import suppress
from importlib.util import find_spec

import pytest

from byov.cluster.ray_pool import ClusterOptions, RayWorker, Requirements, ray_session
from byov.cluster.worker_pool import environment, local_workers, run_tasks
from byov.errors import Interrupted, ProcessLost

MODULE = """
import os, time
from dataclasses import dataclass
from pathlib import Path

@dataclass
class Code:
    name: str
    body: str

    def __call__(self, stop):
        names = {"stop": stop}
        exec(self.body, globals(), names)
        return names.get("result")
"""


@pytest.fixture(scope="module")
def modules(tmp_path_factory):
    """A folder with a module of tasks that workers can import."""
    folder = tmp_path_factory.mktemp("modules")
    (folder / "code_tasks.py").write_text(MODULE)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        patch.setenv("PYTHONPATH", str(folder))
        yield folder


@pytest.fixture
def code(modules):  # noqa: ARG001
    """code(name, body): a task that runs some Python code."""
    import code_tasks

    return code_tasks.Code


@pytest.fixture(scope="module")
def ray_cluster(modules):  # noqa: ARG001
    """A Ray session on this machine, for all tests of this module."""
    if find_spec("ray") is None:
        pytest.skip("Ray is not installed")
    before = signal.getsignal(signal.SIGTERM)
    with (
        tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp", ignore_cleanup_errors=True) as folder,
        environment({"RAY_TMPDIR": folder}),
        ray_session(cluster := ClusterOptions(workers=2)),
    ):
        signal.signal(signal.SIGTERM, before)
        yield cluster


@pytest.fixture(params=["local", "ray"])
def workers(request, modules, tmp_path):  # noqa: ARG001
    """Two workers."""
    if request.param == "local":
        with local_workers(2) as workers:
            yield workers
        return
    cluster = request.getfixturevalue("ray_cluster")
    (tmp_path / "marker").touch()
    workers = [RayWorker(cluster, Requirements({}, tmp_path / "marker", ())) for _ in range(2)]
    yield workers
    for worker in workers:
        worker.close()


def test_results_exceptions_and_lost_workers(workers, code, tmp_path, caplog):
    caplog.set_level("INFO")
    started = tmp_path / "started"
    count = f"with open({str(started)!r}, 'a') as file: file.write('x')\nattempts = os.path.getsize({str(started)!r})\n"
    tasks = [
        code("environment", "result = os.environ['OMP_NUM_THREADS'], os.environ['MKL_NUM_THREADS'], os.getpgid(0)"),
        code("raises", "raise ValueError('wrong')"),
        code("poison", "os.kill(os.getpid(), 9)"),
        code("recovers", f"{count}if attempts < 3: os.kill(os.getpid(), 9)\nresult = attempts"),
        *(code(f"square {number}", f"result = {number} ** 2") for number in range(5)),
    ]
    finished = {one.task.name: one for one in run_tasks(workers, tasks)}
    assert finished.keys() == {task.name for task in tasks}
    *threads, group = finished["environment"].result
    assert threads == ["1", "1"]
    assert group != os.getpgid(0)  # Ctrl-C in the terminal does not reach it
    assert isinstance(finished["raises"].error, ValueError)
    assert isinstance(finished["poison"].error, ProcessLost)
    assert finished["recovers"].result == 3
    assert [finished[f"square {number}"].result for number in range(5)] == [0, 1, 4, 9, 16]
    assert caplog.text.count("poison: lost its worker") == 2


def test_split_tasks_run_instead_of_a_lost_one(workers, code):
    def split(task):
        return [code(f"{task.name}{half}", "result = 'half'") for half in "ab"] if len(task.name) == 1 else []

    tasks = [code(name, "os.kill(os.getpid(), 9)") for name in "xy"]
    finished = {one.task.name: one.result for one in run_tasks(workers, tasks, split=split)}
    assert finished == dict.fromkeys(("xa", "xb", "ya", "yb"), "half")


def test_stop_reaches_running_tasks_and_starts_no_others(workers, code, tmp_path):
    body = "Path({0!r}).touch()\nwhile not stop(): time.sleep(0.001)\nPath({0!r}).unlink()"
    paths = [tmp_path / str(number) for number in range(4)]
    tasks = [code(path.name, body.format(str(path))) for path in paths]
    seen = []

    def stop():
        seen.append([path for path in paths if path.exists()])
        return len(seen[-1]) == 2

    with pytest.raises(Interrupted):
        list(run_tasks(workers, tasks, stop=stop, grace_seconds=60))
    assert seen[-1] == paths[:2]
    assert not any(path.exists() for path in paths)


def test_local_workers_end_after_their_parent_is_killed(start_python, tmp_path, modules):
    script = """
import os, sys
started, ended, modules = sys.argv[1:]
sys.path.insert(0, modules)
os.environ["PYTHONPATH"] = modules
from byov.cluster.worker_pool import local_workers, run_tasks
from code_tasks import Code
lines = (f"Path({started!r}).write_text(str(os.getpid()))", "while not stop(): pass", f"Path({ended!r}).touch()")
tasks = [Code("it", "\\n".join(lines))]
with local_workers(1) as workers:
    list(run_tasks(workers, tasks, on_step=lambda _: print(open(started).read(), flush=True)))
"""
    started, ended = tmp_path / "started", tmp_path / "ended"
    started.touch()
    process = start_python(script, started, ended, modules)
    pid = ""
    while not pid:
        pid = process.stdout.readline().strip()
        assert process.poll() is None, process.communicate()
    process.kill()
    process.wait()
    with suppress(ProcessLookupError):
        worker = os.pidfd_open(int(pid))
        assert select.select([worker], [], [], 60)[0]
        os.close(worker)
    assert ended.exists()
