"""Tests of `train_run` as a library function: in threads and processes, without output, with
progress and stop.
"""

import signal
import subprocess
import sys
import threading
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch
from tests.train.runs.conftest import tiny_options
from tests.train.runs.run_files import contents, train_run

from byov.errors import Interrupted

TINY = tiny_options("byov")


def train(features, runs, **options):
    torch.set_num_threads(1)
    return train_run("toy", features_dir=features, runs_dir=runs, **(options or TINY))


IN_A_PROCESS = f"""
import sys, torch
from byov.apply.run import train_run
torch.set_num_threads(1)
train_run("toy", features_dir=sys.argv[1], runs_dir=sys.argv[2], **{TINY})
"""


@pytest.mark.slow
def test_threads_and_processes_train_the_same_run_silently(
    shared_cache, reference, tmp_path, capfd
):
    features = shared_cache.parent
    before = signal.getsignal(signal.SIGINT)
    thread = threading.Thread(target=train, args=(features, tmp_path / "thread"))
    thread.start()
    thread.join()
    subprocess.run(
        [sys.executable, "-c", IN_A_PROCESS, features, tmp_path / "process"],
        check=True,
        timeout=300,
    )
    for name in ("thread", "process"):
        assert contents(tmp_path / name / "toy") == contents(reference)
    assert signal.getsignal(signal.SIGINT) is before
    assert capfd.readouterr() == ("", "")


class CountingProgress:
    """Progress that records the state of each bar under its name."""

    def __init__(self):
        self.bars = {}

    @contextmanager
    def bar(self, name, *, unit, total=None, done=0, brief=False):  # noqa: ARG002
        bar = self.bars[name] = SimpleNamespace(unit=unit, total=total, done=done, latest="")

        def advance(count=1, *, latest=""):
            bar.done = bar.done + count
            bar.latest = latest

        bar.advance = advance
        yield bar


def test_progress_advances_and_stop_interrupts(shared_cache, reference, tmp_path):
    features = shared_cache.parent
    counting = CountingProgress()
    with pytest.raises(
        Interrupted, match="stopped after step 5 of 12; resume with byov-train --run toy --resume"
    ):
        train(
            features,
            tmp_path,
            progress=counting,
            stop=lambda: counting.bars["training"].done == 5,
            **TINY,
        )
    assert not (tmp_path / "toy" / "embeddings").exists()
    summary = train(features, tmp_path, resume=True, progress=counting)
    bar = counting.bars["training"]
    assert (bar.unit, bar.total, bar.done) == ("step", 12, 12)
    assert bar.latest.startswith("epoch=3, val retrieval=")
    assert counting.bars["embedding"].done == counting.bars["embedding"].total == 8
    assert summary["embedding_files"] == len(list((tmp_path / "toy").rglob("embeddings*/*/*.h5")))
    assert contents(tmp_path / "toy") == contents(reference)
