"""The evaluation as a library: in a thread, twice in one process, in another process; it prints nothing."""

import logging
import signal
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context

import pytest

from byov.cache.runs import read_run
from byov.evaluate.embedding_files import evaluate_own
from byov.evaluate.embeddings import RunEmbeddings
from byov.evaluate.evaluation import compare, entries, evaluate, scope_of_all
from byov.evaluate.task import EvaluationOptions

OPTIONS = EvaluationOptions(bootstrap=10)
SIGNALS = (signal.SIGINT, signal.SIGTERM)


@pytest.fixture
def arguments(runs_dir, features_dir, write_run):
    write_run()
    return runs_dir, features_dir, "first"


class Recorded:
    """A progress that remembers what it was told."""

    def __init__(self):
        self.bars = []

    @contextmanager
    def bar(self, name, *, unit, total=None, done=0, brief=False):  # noqa: ARG002
        self.bars.append([name, unit, total, done])
        yield _RecordedBar(self.bars[-1])


class _RecordedBar:
    def __init__(self, bar):
        self._bar = bar

    def advance(self, count=1, *, latest=""):  # noqa: ARG002
        self._bar[3] += count


@pytest.mark.slow
def test_in_threads_twice_and_in_another_process(arguments, capfd):
    handlers = [signal.getsignal(number) for number in SIGNALS]
    here = evaluate(RunEmbeddings(*arguments), options=OPTIONS)
    with ThreadPoolExecutor(2) as pool:
        there = list(pool.map(lambda _: evaluate(RunEmbeddings(*arguments), options=OPTIONS), range(2)))
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        elsewhere = pool.submit(evaluate, RunEmbeddings(*arguments), options=OPTIONS).result()
    assert [here, *there] == [elsewhere] * 3
    assert [signal.getsignal(number) for number in SIGNALS] == handlers
    captured = capfd.readouterr()
    assert (captured.out, captured.err) == ("", "")


def test_a_table_and_somebodys_file_print_nothing(arguments, manifest, golden, capfd, caplog):
    caplog.set_level(logging.INFO, "byov")
    runs_dir, features_dir, run = arguments
    wanted = entries(runs_dir, features_dir, manifest.dataset, [read_run(runs_dir, run)], frozen=[("absent", "cls")])
    scope = scope_of_all(manifest, "test", EvaluationOptions())
    with ThreadPoolExecutor(1) as pool:
        comparison = pool.submit(compare, manifest, wanted, scope).result()
        pool.submit(evaluate_own, golden / "three_phases.npz", ["tau"], EvaluationOptions()).result()
    assert [row.name for row in comparison.rows["trimmed"]] == ["Time only", "Untrained (first)", "first"]
    assert "absent, cls: left out of the table" in caplog.text
    captured = capfd.readouterr()
    assert (captured.out, captured.err) == ("", "")


def test_progress_is_told_to_who_asks(arguments):
    progress = Recorded()
    evaluate(RunEmbeddings(*arguments), tasks=["classification", "tau"], options=OPTIONS, progress=progress)
    assert progress.bars == [
        ["reading first", "video", 6, 6],
        ["reading first", "video", 6, 6],
        ["scoring first", "task", 2, 2],
        ["resampling", "task", 2, 2],
    ]
