"""byov-train learns what it learned before there were other methods than byov.

recorded.json: the settings and the losses of short runs of byov 0.2.0 on `write_waves`, one thread, and the settings
that it chose by itself. It is data, never made anew to make a test pass.
"""

import json
from pathlib import Path

import numpy as np
import pytest

from byov.cache.manifest import Manifest, VideoEntry
from byov.train.settings import resolve_settings

RECORDED = json.loads(Path(__file__).with_name("recorded.json").read_text())
OPTIONS = (
    *("--latent", "32", "--depth", "2", "--decoder-depth", "1", "--heads", "4", "--frames", "8"),
    *("--lr", "1e-3", "--epochs", "3"),
)
FRAMES = {"ego": (30, 22, 5), "exo": (41, 17, 26)}  # of the training videos; one is shorter than a clip

# Another CPU sums in another order: with the code that PyTorch, oneDNN and MKL have for older CPUs (SSE4, AVX2) the
# losses here change by up to 1.5e-7 of their values.
ROUNDING = 1e-5


def write_waves(dataset, write_features):
    """Features whose values are fractions of 128: the same bits on every machine."""
    videos = []
    for view, lengths in FRAMES.items():
        for number, frames in enumerate(lengths):
            t, d = np.arange(frames)[:, None], np.arange(16)[None]
            values = ((t * t + 17 * t * d + 91 * d + 53 * number + 29 * (3 + (view == "exo"))) % 257) / 128
            write_features(dataset / "random--tiny" / view / f"{view}_{number}.h5", (values - 1).astype(np.float16))
            videos.append(VideoEntry(f"{view}_{number}", view, "train", frames, 30.0, None, None))
    Manifest(dataset.name, (), (), tuple(videos)).save(dataset / "manifest.json")


def losses(run):
    names = ("loss", "self", "cross", "cycle", "lr")
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{name: record[name] for name in names if name in record} for record in records[1:]]


@pytest.mark.parametrize("recipe", RECORDED["runs"])
def test_a_recipe_has_the_losses_that_it_had(byov_train, write_features, tmp_path, run, recipe):
    write_waves(tmp_path / "features" / "waves", write_features)
    ran = byov_train("--ratio", 0.3, "--run", "toy", "--recipe", recipe, *OPTIONS)
    assert ran.code == 0, ran
    then = RECORDED["runs"][recipe]
    settings = json.loads((run / "config.json").read_text())["settings"]
    assert {name: settings[name] for name in then["settings"]} == then["settings"]
    assert len(then["losses"]) == 3
    for now, before in zip(losses(run), then["losses"], strict=True):
        assert now == pytest.approx(before, rel=ROUNDING)


@pytest.mark.parametrize("dataset", RECORDED["defaults"])
@pytest.mark.parametrize("recipe", RECORDED["runs"])
def test_what_is_left_out_is_chosen_as_it_was(dataset, recipe):
    then = RECORDED["defaults"][dataset][recipe]
    now = resolve_settings("byov", dataset, {"recipe": recipe}).model_dump(mode="json")
    assert {name: now[name] for name in then} == then
    assert now.keys() - then.keys() == {"method", "position_in", "optimizer"}
