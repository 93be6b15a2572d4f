"""Stop commands by a signal right before they name a file; repeating them leads to the same files
as if they had not been stopped.
"""

import os
import random
import shutil
import signal
from itertools import product

import pytest
from tests.chaos.conftest import EXTRACT, TINY_OPTIONS
from tests.factories import read_files

from byov.cli import train

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)
TRAIN = ("train", "--dataset", "mine", "--run", "new", "--checkpoint-every", 1, *TINY_OPTIONS)
# Parts of the names of files, and how many files with this name are named before the signal.
EXTRACTED = [(".h5", count) for count in range(1, 7)] + [("manifest.json", 1), ("index.json", 1)]
TRAINED = [("config.json", 1), ("config.json", 2), ("model.safetensors", 1), ("model-last", 1)]
TRAINED += [("metrics", 1), ("metrics", 3), ("step-", 1), ("step-", 2), (".h5", 1), (".h5", 40)]


def sample(points):
    cases = list(product(points, SIGNALS))
    return cases if "CHAOS" in os.environ else random.Random(0).sample(cases, 3)


@pytest.fixture
def stop(start_command, project):
    """Return a function that starts a command and stops it at a point, if it gets there."""
    folders = {"BYOV_FEATURES": str(project / "features"), "BYOV_RUNS": str(project / "runs")}

    def run(words, point, number):
        name, *words = words
        command = start_command((f"byov-{name}", *words), pause_before=point, environment=folders)
        if command.paused():
            command.send(number)
        return command.finish().code

    return run


@pytest.mark.slow
@pytest.mark.parametrize(("point", "number"), sample(EXTRACTED))
def test_stopped_extraction(intact, project, stop, byov, record, point, number):
    shutil.rmtree(project / "features/mine")
    stopped = stop(EXTRACT, point, number)
    again = byov(*EXTRACT)
    is_same = read_files(project / "features/mine") == read_files(intact / "features/mine")
    is_survived = stopped in (0, 128 + number, -number) and again.code == 0 and is_same
    record("command stopped", 1, [] if is_survived else [point])
    assert is_survived, (stopped, again)


@pytest.fixture(scope="session")
def uninterrupted(tmp_path_factory, intact, call):
    """Files of the run `new`, trained without a stop."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    call(
        train.app,
        "byov-train",
        *TRAIN[1:],
        "--features-dir",
        intact / "features",
        "--runs-dir",
        folder,
    )
    return read_files(folder / "new")


@pytest.mark.slow
@pytest.mark.parametrize(("point", "number"), sample(TRAINED))
def test_stopped_training(project, uninterrupted, stop, byov, record, point, number):
    stopped = stop(TRAIN, point, number)
    is_started = (project / "runs/new/config.json").exists()
    resume = ("train", "--run", "new", "--resume", "--checkpoint-every", 1)
    again = byov(*(resume if is_started else TRAIN))
    is_same = read_files(project / "runs/new") == uninterrupted
    is_survived = stopped in (0, 128 + number, -number) and again.code == 0 and is_same
    record("command stopped", 1, [] if is_survived else [point])
    assert is_survived, (stopped, again)
