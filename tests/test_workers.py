"""Tests of tasks in local processes: results, exceptions, lost workers and stopping."""

import os
import sys

import pytest

from byov.errors import Interrupted, ProcessLost
from byov.workers import LocalWorkers

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


@pytest.fixture
def workers():
    with LocalWorkers(2) as workers:
        yield workers


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
