"""train_run as a library: in a thread, twice in one process, in another process; silent, and deaf to signals."""

import json
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

from byov.errors import Interrupted
from byov.train.feature_store import open_training_data
from byov.train.methods.byov import ByovSettings
from byov.train.run import Machine, embed_again, train_run
from byov.train.settings import TrainSettings

SETTINGS = ByovSettings(latent=32, depth=1, decoder_depth=1, heads=4, frames=8, lr=1e-3, epochs=3, validate_every=1)
MACHINE = Machine(torch.device("cpu"), preload_bytes=2**30, checkpoint_every=1)


def train(features: Path, folder: Path, settings: TrainSettings = SETTINGS, **how) -> dict:
    torch.set_num_threads(1)
    return train_run(folder, open_training_data(features, "toy", None, 0.3), settings, MACHINE, **how)


IN_A_PROCESS = """
import sys, torch
from pathlib import Path
from byov.train.feature_store import open_training_data
from byov.train.methods.byov import ByovSettings
from byov.train.run import Machine, train_run
torch.set_num_threads(1)
data = open_training_data(Path(sys.argv[1]), "toy", None, 0.3)
settings = ByovSettings(latent=32, depth=1, decoder_depth=1, heads=4, frames=8, lr=1e-3, epochs=3, validate_every=1)
train_run(Path(sys.argv[2]), data, settings, Machine(torch.device("cpu"), 2**30, 1))
"""


def handlers():
    return [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]


def in_thread(work):
    """What it returns, run beside the main thread."""
    results = []
    thread = threading.Thread(target=lambda: results.append(work()))
    thread.start()
    thread.join()
    return results[0]


@pytest.mark.slow
def test_it_trains_in_threads_and_twice_in_one_process_and_in_another(shared_cache, tmp_path, contents, capfd):
    features, before = shared_cache.parent, handlers()
    first = in_thread(lambda: train(features, tmp_path / "first/toy"))
    second = in_thread(lambda: train(features, tmp_path / "second/toy"))
    subprocess.run(
        [sys.executable, "-c", IN_A_PROCESS, str(features), str(tmp_path / "third/toy")], check=True, timeout=300
    )
    assert first["steps"] == second["steps"] == 12
    assert contents(tmp_path / "first/toy") == contents(tmp_path / "second/toy") == contents(tmp_path / "third/toy")
    assert handlers() == before
    assert capfd.readouterr() == ("", "")


class Counting:
    """A progress that counts."""

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


def test_it_advances_what_it_is_handed_and_stops_when_it_is_told(shared_cache, tmp_path, contents):
    features, folder, counting = shared_cache.parent, tmp_path / "runs/toy", Counting()
    with pytest.raises(Interrupted, match="stopped after step 5 of 12"):
        train(features, folder, progress=counting, stop=lambda: counting.bars["training"]["done"] == 5)
    assert not (folder / "embeddings").exists()
    summary = train(features, folder, resume=True, progress=counting)
    assert counting.bars["training"] | {"latest": ""} == {"unit": "step", "total": 12, "done": 12, "latest": ""}
    assert counting.bars["training"]["latest"].startswith("epoch=3, val retrieval=")
    assert counting.bars["embedding"]["done"] == counting.bars["embedding"]["total"] == 8
    assert summary["embedding_files"] == len(list(folder.rglob("embeddings*/*/*.h5")))
    train(features, tmp_path / "whole/toy")
    assert contents(folder) == contents(tmp_path / "whole/toy")


@pytest.mark.slow
def test_every_method_stopped_after_every_step_goes_on_to_the_same_end(
    shared_cache, tmp_path, contents, reference_of_each, tiny_settings
):
    features, folder = shared_cache.parent, tmp_path / "runs/toy"
    steps = json.loads((reference_of_each / "metrics.jsonl").read_text().splitlines()[-1])["step"]
    assert steps >= 6
    for step in range(steps):
        with pytest.raises(Interrupted, match=f"stopped after step {step + 1} of {steps}"):
            train(features, folder, tiny_settings, resume=step > 0, stop=lambda: True)
    assert not (folder / "embeddings").exists()
    train(features, folder, tiny_settings, resume=True)
    assert contents(folder) == contents(reference_of_each)


def test_the_embedding_pass_stops_between_videos_and_is_done_again(shared_cache, tmp_path):
    features, folder, counting = shared_cache.parent, tmp_path / "runs/toy", Counting()
    train(features, folder)
    data = open_training_data(features, "toy", None, 0.3)
    with pytest.raises(Interrupted):
        embed_again(
            *(folder, data, SETTINGS, MACHINE), progress=counting, stop=lambda: counting.bars["embedding"]["done"] == 2
        )
    assert embed_again(folder, data, SETTINGS, MACHINE)["embedding_files"] > 0
    assert json.loads((folder / "config.json").read_text())["training"]["dataset"] == "toy"
