"""Tests of both executors: results, exceptions, lost workers and stopping."""

import os
import shutil
import signal
import socket
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

import pytest

from byov.errors import ClusterError, Interrupted, ProcessLost
from byov.workers import ClusterOptions, LocalWorkers, RayWorkers, ray_session

needs_ray = pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed")
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


@pytest.fixture
def code(tmp_path, monkeypatch):
    """Return a task class that runs Python code, in a module that workers can import."""
    (tmp_path / "code_tasks.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "code_tasks", raising=False)
    import code_tasks

    return code_tasks.Code


@pytest.fixture(params=["local", pytest.param("ray", marks=[needs_ray, pytest.mark.slow])])
def workers(request, tmp_path, monkeypatch):
    """Executor with two workers."""
    if request.param == "local":
        with LocalWorkers(2) as workers:
            yield workers
        return
    folder = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))  # short enough for Ray's sockets
    monkeypatch.setenv("RAY_TMPDIR", str(folder))
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_AUTH_TOKEN", "a" * 32)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))  # of the workers
    handler = signal.getsignal(signal.SIGTERM)
    with RayWorkers(ClusterOptions(workers=2), tmp_path, [], tasks=9) as workers:
        yield workers
    signal.signal(signal.SIGTERM, handler)
    shutil.rmtree(folder, ignore_errors=True)


def test_results_exceptions_and_lost_workers(workers, code, tmp_path, caplog):
    caplog.set_level("INFO")
    started = str(tmp_path / "started")
    count = (
        f"with open({started!r}, 'a') as file: file.write('x')\nattempts = "
        f"os.path.getsize({started!r})\n"
    )
    tasks = [
        code(
            "environment",
            "result = os.environ['OMP_NUM_THREADS'], os.environ['MKL_NUM_THREADS'], os.getpgid(0)",
        ),
        code("raises", "raise ValueError('wrong')"),
        code("poison", "os.kill(os.getpid(), 9)"),
        code("recovers", f"{count}if attempts < 3: os.kill(os.getpid(), 9)\nresult = attempts"),
        *(code(f"square {number}", f"result = {number} ** 2") for number in range(5)),
    ]
    finished = {task.name: error or result for task, result, error in workers.run(tasks)}
    assert finished.keys() == {task.name for task in tasks}
    *threads, group = finished["environment"]
    assert threads == ["1", "1"]
    assert group != os.getpgid(0)  # Ctrl-C in the terminal does not reach it
    assert isinstance(finished["raises"], ValueError)
    assert isinstance(finished["poison"], ProcessLost)
    assert finished["recovers"] == 3
    assert [finished[f"square {number}"] for number in range(5)] == [0, 1, 4, 9, 16]
    assert caplog.text.count("poison: lost its worker") == 2


def test_split_tasks_run_instead_of_a_lost_one(workers, code):
    def split(task):
        return (
            [code(f"{task.name}{half}", "result = 'half'") for half in "ab"]
            if len(task.name) == 1
            else []
        )

    tasks = [code(name, "os.kill(os.getpid(), 9)") for name in "xy"]
    finished = {task.name: result for task, result, _ in workers.run(tasks, split=split)}
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
        list(workers.run(tasks, stop=stop, grace_seconds=60))
    assert seen[-1] == paths[:2]
    assert not any(path.exists() for path in paths)


@needs_ray
def test_an_address_without_a_cluster_is_refused():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with (
        pytest.raises(ClusterError, match=f"127.0.0.1:{port}: cannot connect .*ray start"),
        ray_session(ClusterOptions(f"127.0.0.1:{port}")),
    ):
        pass
