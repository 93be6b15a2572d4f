"""train_run as a library: in threads and processes, without output, with progress and stop."""

import signal
import subprocess
import sys
import threading

import pytest
import torch
from tests.train.runs.run_files import contents, records

from byov.errors import Interrupted
from byov.train.run import train_run

TINY = {"latent": 32, "depth": 1, "decoder_depth": 1, "heads": 4, "frames": 8, "lr": 1e-3, "epochs": 3}
TINY |= {"validate_every": 1, "checkpoint_every": 1}


def train(features, runs, **options):
    torch.set_num_threads(1)
    return train_run("toy", features_dir=features, runs_dir=runs, **(options or TINY))


IN_A_PROCESS = f"""
import sys, torch
from byov.train.run import train_run
torch.set_num_threads(1)
train_run("toy", features_dir=sys.argv[1], runs_dir=sys.argv[2], **{TINY})
"""


@pytest.mark.slow
def test_threads_and_processes_train_the_same_run_silently(shared_cache, tmp_path, capfd):
    features = shared_cache.parent
    before = signal.getsignal(signal.SIGINT)
    for name in ("first", "second"):
        thread = threading.Thread(target=train, args=(features, tmp_path / name))
        thread.start()
        thread.join()
    subprocess.run([sys.executable, "-c", IN_A_PROCESS, features, tmp_path / "third"], check=True, timeout=300)
    first, second, third = (contents(tmp_path / name / "toy") for name in ("first", "second", "third"))
    assert first == second == third
    assert signal.getsignal(signal.SIGINT) is before
    assert capfd.readouterr() == ("", "")


class CountingProgress:
    def __init__(self):
        self.bars = {}

    def bar(self, name, *, unit, total=None, done=0, brief=False):  # noqa: ARG002
        counted = self.bars[name] = {"unit": unit, "total": total, "done": done, "latest": ""}

        class Bar:
            def __enter__(self):
                return self

            def __exit__(self, *_):
                pass

            def advance(self, count=1, *, latest=""):
                counted["done"] += count
                counted["latest"] = latest

        return Bar()


def test_progress_advances_and_stop_interrupts(shared_cache, tmp_path):
    features, counting = shared_cache.parent, CountingProgress()
    with pytest.raises(Interrupted, match="stopped after step 5 of 12; resume with byov-train --run toy --resume"):
        train(features, tmp_path, progress=counting, stop=lambda: counting.bars["training"]["done"] == 5, **TINY)
    assert not (tmp_path / "toy" / "embeddings").exists()
    summary = train(features, tmp_path, resume=True, progress=counting)
    assert counting.bars["training"].items() >= {"unit": "step", "total": 12, "done": 12}.items()
    assert counting.bars["training"]["latest"].startswith("epoch=3, val retrieval=")
    assert counting.bars["embedding"]["done"] == counting.bars["embedding"]["total"] == 8
    assert summary["embedding_files"] == len(list((tmp_path / "toy").rglob("embeddings*/*/*.h5")))
    train(features, tmp_path / "whole")
    assert contents(tmp_path / "toy") == contents(tmp_path / "whole" / "toy")


@pytest.mark.slow
def test_every_method_interrupted_after_every_step_ends_the_same(
    shared_cache, tmp_path, reference_of_each, tiny_settings
):
    features = shared_cache.parent
    steps = records(reference_of_each)[-1]["step"]
    assert steps >= 6
    for step in range(steps):
        options = {"resume": True} if step else tiny_settings
        with pytest.raises(Interrupted, match=f"stopped after step {step + 1} of {steps}"):
            train(features, tmp_path, stop=lambda: True, **options)
    train(features, tmp_path, resume=True)
    assert contents(tmp_path / "toy") == contents(reference_of_each)


def test_an_interrupted_embedding_pass_can_be_repeated(shared_cache, tmp_path):
    features, counting = shared_cache.parent, CountingProgress()
    train(features, tmp_path)
    before = contents(tmp_path / "toy")
    with pytest.raises(Interrupted, match="stopped while embedding"):
        train(
            features, tmp_path, embed_only=True, progress=counting, stop=lambda: counting.bars["embedding"]["done"] == 2
        )
    assert train(features, tmp_path, embed_only=True)["embedding_files"] == 32
    assert contents(tmp_path / "toy") == before
