"""A small project to damage, and the table of faults that is printed after the tests."""

import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from importlib import import_module
from itertools import product
from pathlib import Path

import pytest
from tests.factories import write_file, write_noise_video
from tests.processes import Ran

from byov.apply.run import train_run
from byov.extract.extraction import extract_features
from byov.records import SPLITS, VIEWS

# Options of a run that takes a second.
TINY = {"latent": 8, "depth": 1, "decoder_depth": 1, "heads": 2, "frames": 4, "epochs": 2}
TINY_OPTIONS = tuple(
    word for name, value in TINY.items() for word in (f"--{name.replace('_', '-')}", value)
)
EXTRACT = ("extract", "--manifest", "mine.csv", "--encoder", "random/tiny", "--ratios", "0.3")
EVALUATE = ("eval", "--run", "first", "--task", "retrieval", "--json")
tried: Counter[str] = Counter()
survived: Counter[str] = Counter()


def pytest_terminal_summary(terminalreporter):
    if tried:
        terminalreporter.write_line("\n| fault | tried | survived |\n|---|---|---|")
    for fault, count in tried.items():
        terminalreporter.write_line(f"| {fault} | {count:,} | {survived[fault]:,} |")


@pytest.fixture
def record() -> Callable[[str, int, Sequence[object]], None]:
    """Return a function that counts the tried cases of a fault and those that were not survived."""

    def add(fault, count, failed):
        assert count > 0
        tried[fault] += count
        survived[fault] += count - len(failed)

    return add


@pytest.fixture(scope="session")
def intact(tmp_path_factory) -> Path:
    """Folder with two datasets, their features, two runs on the first and one on the second."""
    folder = tmp_path_factory.mktemp("intact")
    for seed, dataset in ((0, "mine"), (10, "other")):
        lines = ["path,view,split,events,phases"]
        for number, (split, view) in enumerate(product(SPLITS, VIEWS), start=seed):
            path = f"{dataset}/{split}_{view}.mp4"
            write_noise_video(folder / path, 20, seed=number)
            lines.append(f"{path},{view},{split},0.5,reach;pour")
        write_file(folder / f"{dataset}.csv", "\n".join(lines) + "\n")
        extract_features(
            manifest=folder / f"{dataset}.csv",
            encoder="random/tiny",
            ratios=(0.3,),
            features_dir=folder / "features",
        )
    for name, dataset, seed in (("other", "other", 0), ("second", "mine", 1), ("first", "mine", 0)):
        train_run(
            name,
            dataset=dataset,
            seed=seed,
            checkpoint_every=1,
            features_dir=folder / "features",
            runs_dir=folder / "runs",
            **TINY,
        )
    return folder


@pytest.fixture
def project(intact, tmp_path, monkeypatch) -> Path:
    """Copy of the intact project, which is the working directory."""
    folder = shutil.copytree(intact, tmp_path / "project")
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def restore(intact, project) -> Callable[[], None]:
    """Return a function that restores the features and runs of the project."""

    def undo():
        for name in ("features", "runs"):
            shutil.rmtree(project / name)
            shutil.copytree(intact / name, project / name)

    return undo


@pytest.fixture
def byov(call) -> Callable[..., Ran]:
    """Return a function that runs a command, such as `byov("cache", "verify")`, in this process."""

    def run(name, *words):
        module = import_module(f"byov.cli.{'evaluate' if name == 'eval' else name}")
        return call(module.app if name == "train" else module.main, f"byov-{name}", *words)

    return run
