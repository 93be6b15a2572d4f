"""Tests that byov-train reproduces recorded losses.

recorded.json contains the settings and losses of short runs on `write_waves`, and the default
settings for datasets and recipes. It must never be regenerated to make a test pass.
"""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.factories import SOURCE_SHA256, write_features
from tests.train.runs.run_files import records

from byov.cache.manifest import Manifest, VideoEntry
from byov.cache.runs import read_run
from byov.train.registry import resolve

RECORDED = json.loads(Path(__file__).with_name("recorded.json").read_text())
OPTIONS = (
    *("--latent", "32", "--depth", "2", "--decoder-depth", "1", "--heads", "4", "--frames", "8"),
    *("--lr", "1e-3", "--epochs", "3"),
)
# Lengths of the training videos; one is shorter than a clip.
FRAMES = {"ego": (30, 22, 5), "exo": (41, 17, 26)}

# The order of summation depends on the CPU: with the kernels of PyTorch, oneDNN and MKL for older
# CPUs (SSE4, AVX2), the relative change of the losses is up to 1.5e-7.
ROUNDING = 1e-5


def write_waves(dataset):
    """Write features that are multiples of 1/128, so that they are bit-identical on every
    machine.
    """
    videos = []
    for view, lengths in FRAMES.items():
        for number, frames in enumerate(lengths):
            t = np.arange(frames)[:, None]
            d = np.arange(16)[None]
            values = (
                (t * t + 17 * t * d + 91 * d + 53 * number + 29 * (3 + (view == "exo"))) % 257
            ) / 128
            path = dataset / "random--tiny" / view / f"{view}_{number}.h5"
            write_features(path, {0.3: (values - 1).astype(np.float16)}, encoder="random/tiny")
            entry = VideoEntry(f"{view}_{number}", view, "train", frames, 30.0, None, None)
            videos.append(replace(entry, source_sha256=SOURCE_SHA256))
    Manifest(dataset.name, (), (), tuple(videos)).save(dataset / "manifest.json")


@pytest.mark.parametrize("recipe", RECORDED["runs"])
def test_losses_are_the_recorded_ones(byov_train, tmp_path, run, recipe):
    write_waves(tmp_path / "features" / "waves")
    ran = byov_train("--ratio", 0.3, "--run", "toy", "--recipe", recipe, *OPTIONS)
    assert ran.code == 0, ran
    recorded = RECORDED["runs"][recipe]
    settings = read_run(run.parent, run.name).settings
    assert {name: settings[name] for name in recorded["settings"]} == recorded["settings"]
    names = ("loss", "self", "cross", "cycle", "lr")
    losses = [
        {name: record[name] for name in names if name in record} for record in records(run)[1:]
    ]
    assert len(losses) == 3
    for now, before in zip(losses, recorded["losses"], strict=True):
        assert now == pytest.approx(before, rel=ROUNDING)


@pytest.mark.parametrize("dataset", RECORDED["defaults"])
@pytest.mark.parametrize("recipe", RECORDED["runs"])
def test_default_settings_are_the_recorded_ones(dataset, recipe):
    recorded = RECORDED["defaults"][dataset][recipe]
    now = json.loads(json.dumps(resolve("byov", dataset, {"recipe": recipe}).flat()))
    assert {name: now[name] for name in recorded} == recorded
