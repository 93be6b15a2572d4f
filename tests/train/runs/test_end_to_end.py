"""The files of a run, and the options that change them."""

import hashlib
import json
import math
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tests.train.runs.run_files import contents, records

import byov.train
from byov.cache.embeddings import read_embedding
from byov.cache.hdf5 import read_array, read_digest
from byov.cache.runs import read_run
from byov.cli.evaluate import main as byov_eval
from byov.evaluate.protocols import trimmed_clips
from byov.train.methods import build_method
from byov.train.methods.base import Method
from byov.train.settings import settings_of

METRICS = {"map@10_ego2exo", "map@10_exo2ego", "retrieval", "trimmed", "both", "tau"}

pytestmark = pytest.mark.usefixtures("cache")


def training_record(run):
    return json.loads((run / "config.json").read_text())["training"]


def load_model(run, *, untrained):
    if untrained:
        return build_method(16, settings_of(read_run(run.parent, run.name))).eval()
    return Method.from_pretrained(run)


def same_weights(run, other, name="model-last.safetensors"):
    ours, theirs = (load_file(folder / name) for folder in (run, other))
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_a_run_has_all_its_files(reference):
    folders = {f"embeddings{untrained}{trimmed}" for untrained in ("", "-untrained") for trimmed in ("", "-trimmed")}
    files = {"config.json", "model.safetensors", "model-last.safetensors", "metrics.jsonl", "README.md"}
    assert {path.name for path in reference.iterdir()} == {*files, *folders, "checkpoint", ".lock"}
    checkpoints = sorted(path.name for path in (reference / "checkpoint").iterdir())
    assert checkpoints == ["step-000000008.safetensors", "step-000000012.safetensors"]


def test_config_records_settings_and_features(reference):
    config = json.loads((reference / "config.json").read_text())
    expected = {"dataset": "toy", "encoder": "random/tiny", "encoder_folder": "random--tiny"}
    expected |= {"column": "merged/0.3", "recipe": "paper", "seed": 0}
    assert config["training"].items() >= expected.items()
    assert config["width"] == 16
    assert config["settings"].items() >= {"method": "byov", "latent": 32, "lr": 1e-3}.items()


def test_metrics_have_a_record_of_the_untrained_model_and_of_each_epoch(reference):
    found = records(reference)
    assert [(record["epoch"], record["step"]) for record in found] == [(0, 0), (1, 4), (2, 8), (3, 12)]
    assert found[0].keys() == {"epoch", "step", *METRICS}
    for record in found[1:]:
        assert record.keys() == {"epoch", "step", "lr", "loss", "self", "cross", *METRICS}
        assert record["loss"] == pytest.approx(record["self"] + record["cross"])
        assert record["lr"] == 1e-3
    assert found[3]["loss"] < found[1]["loss"]


@pytest.mark.parametrize("untrained", [False, True])
def test_embeddings_are_those_of_the_model(reference, shared_cache, untrained):
    """Of all videos, and of the sub-clips of val and test videos on their own."""
    model, suffix = load_model(reference, untrained=untrained), "-untrained" if untrained else ""
    model_file = reference / "model.safetensors"
    digest = hashlib.sha256(model_file.read_bytes()).hexdigest()
    written = set()
    for path in (shared_cache / "random--tiny").rglob("*.h5"):
        features, seconds = read_array(path, "merged/0.3"), read_array(path, "pts_seconds")
        clips = trimmed_clips("toy", path.parent.name, path.stem, len(features))
        assert len(clips) == 2
        for first, last in [(0, len(features) - 1), *(() if path.stem.startswith("train") else clips)]:
            whole = (first, last) == (0, len(features) - 1)
            name = path.name if whole else f"{path.stem}@{first}-{last}.h5"
            folder = f"embeddings{suffix}" if whole else f"embeddings{suffix}-trimmed"
            written.add(reference / folder / path.parent.name / name)
            embedding, source = read_embedding(reference / folder / path.parent.name / name)
            expected = model.embed(torch.from_numpy(features[first : last + 1])).numpy()
            np.testing.assert_array_equal(embedding, expected)
            seconds_written = read_array(reference / folder / path.parent.name / name, "pts_seconds")
            np.testing.assert_array_equal(seconds_written, seconds[first : last + 1])
            assert (source.run, source.dataset, source.video) == ("toy", "toy", path.stem)
            assert (source.first_frame, source.column_sha256) == (first, read_digest(path, "merged/0.3"))
            assert (source.model_sha256 == digest) is not untrained
    assert set(reference.glob(f"embeddings{suffix}/*/*")) | set(reference.glob(f"embeddings{suffix}-trimmed/*/*")) == (
        written
    )


@pytest.mark.parametrize(
    "options",
    [(), ("--preload-gib", 0), ("--checkpoint-every", 50)],
    ids=["repeated", "lazy", "few checkpoints"],
)
def test_a_run_is_reproducible_bit_for_bit(byov_train, tiny, reference, run, options):
    assert byov_train("--ratio", 0.3, "--run", "toy", *tiny, *options).code == 0
    assert contents(run) == contents(reference)


@pytest.mark.slow
def test_a_run_of_every_method_is_reproducible(byov_train, tiny_of_each, reference_of_each, run):
    assert byov_train("--ratio", 0.3, "--run", "toy", *tiny_of_each, "--preload-gib", 0).code == 0
    assert contents(run) == contents(reference_of_each)


def test_a_run_of_every_method_learns_embeds_and_evaluates(
    reference_of_each, each_method, shared_cache, call, tmp_path
):
    assert f"method `{each_method}`" in (reference_of_each / "README.md").read_text()
    features = torch.from_numpy(read_array(shared_cache / "random--tiny" / "ego" / "val_ego_0.h5", "merged/0.3"))
    embeddings = []
    for untrained in (False, True):
        folder = reference_of_each / ("embeddings-untrained" if untrained else "embeddings")
        embeddings.append(read_embedding(folder / "ego" / "val_ego_0.h5")[0])
        model = load_model(reference_of_each, untrained=untrained)
        np.testing.assert_array_equal(embeddings[-1], model.embed(features).numpy())
    assert not np.array_equal(*embeddings)
    shutil.copytree(reference_of_each, tmp_path / "runs" / "toy")
    folders = ("--features-dir", shared_cache.parent, "--runs-dir", tmp_path / "runs")
    ran = call(byov_eval, "byov-eval", *folders, "--run", "toy", "--task", "retrieval", "--json")
    assert ran.code == 0, ran


@pytest.mark.parametrize("option", [("--seed", "1"), ("--clip-grad", "0.01"), ("--ratio", "1.0")])
def test_other_settings_give_another_model(byov_train, tiny, reference, option, run):
    assert byov_train("--run", "toy", *tiny, *option).code == 0
    assert not same_weights(run, reference)


def test_a_small_gradient_is_not_clipped(byov_train, tiny, reference, run):
    assert byov_train("--run", "toy", *tiny, "--clip-grad", "1e9").code == 0
    assert same_weights(run, reference)


@pytest.mark.parametrize("metric", ["retrieval", "trimmed", "both", "tau", "last"])
def test_the_kept_model_is_the_best_by_the_chosen_metric(byov_train, tiny, run, metric):
    assert byov_train("--run", "toy", *tiny, "--epochs", 4, "--select", metric).code == 0
    found = records(run)[1:]
    best = found[-1] if metric == "last" else max(found, key=lambda record: record[metric])
    assert training_record(run)["validation"] == {name: best[name] for name in METRICS}
    assert f"`{best['retrieval']:.4f}`" in (run / "README.md").read_text()
    # A run that ends with that epoch has the same model.
    assert byov_train("--run", "short", *tiny, "--epochs", best["epoch"], "--select", "last").code == 0
    assert same_weights(run, run.parent / "short", "model.safetensors")


def test_validation_schedule_and_learning_rate(byov_train, tiny, run):
    options = ("--epochs", 5, "--validate-every", 2, "--warmup", 2, "--schedule", "cosine")
    assert byov_train("--run", "toy", *tiny, *options).code == 0
    assert [record["epoch"] for record in records(run) if "retrieval" in record] == [0, 2, 4, 5]
    warmup, total = 8, 20
    expected = [
        1e-3 * (step + 1) / (warmup + 1)
        if step < warmup
        else 1e-3 * (1 + math.cos(math.pi * (step - warmup) / (total - warmup))) / 2
        for step in (3, 7, 11, 15, 19)  # the last step of each epoch
    ]
    assert [record["lr"] for record in records(run)[1:]] == pytest.approx(expected, rel=1e-12)


def test_unused_parameters_do_not_prevent_resuming(start_train, byov_train, tiny, run):
    options = (*tiny, "--cycle", 1, "--no-self", "--no-cross")  # no loss reaches the decoder
    assert byov_train("--run", "whole", *options).code == 0
    command = start_train("--run", "toy", *options, pause_before=("metrics.jsonl", 3))
    assert command.paused()
    command.kill()
    ran = byov_train("--run", "toy", "--resume")
    assert ran.code == 0, ran
    assert "resuming from step 4 of 12" in ran.err
    for name in ("model.safetensors", "model-last.safetensors", "metrics.jsonl"):
        assert (run / name).read_bytes() == (run.parent / "whole" / name).read_bytes()


def test_omitted_options_are_inferred_and_shown(byov_train, tiny, tmp_path):
    ran = byov_train(*tiny, "--recipe", "cycle", "--seed", 7, "--epochs", 1)
    assert ran.code == 0
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["toy-cycle-r0.3-s7"]
    assert "random--tiny at ratio 0.3" in ran.err
    assert "retrieval 0." in ran.out
    assert "32 embedding files" in ran.out


def test_json_is_one_object_on_standard_output(byov_train, tiny, run):
    summary = byov_train("--run", "toy", *tiny, "--epochs", 2, "--json").json
    assert (summary["run"], summary["dataset"], summary["steps"]) == ("toy", "toy", 8)
    assert summary["embedding_files"] == len(list(run.rglob("*.h5")))
    assert Path(summary["folder"]) == run
    assert summary["validation"]["retrieval"] == max(record["retrieval"] for record in records(run)[1:])


def test_tensorboard_has_the_metrics(byov_train, tiny, run):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    assert byov_train("--run", "toy", *tiny, "--tensorboard").code == 0
    events = EventAccumulator(str(run / "tensorboard")).Reload()
    for name in ("retrieval", "loss", "lr"):
        expected = [(record["step"], pytest.approx(record[name])) for record in records(run) if name in record]
        assert [(event.step, event.value) for event in events.Scalars(name)] == expected


@pytest.mark.slow
def test_the_installed_command_trains_the_same_run(shared_cache, tiny, reference, tmp_path):
    command = Path(sys.executable).with_name("byov-train")
    folders = ["--features-dir", str(shared_cache.parent), "--runs-dir", str(tmp_path)]
    subprocess.run(
        [str(command), "--ratio", "0.3", "--run", "toy", *folders, *tiny],
        env={"OMP_NUM_THREADS": "1", "PYTHONSAFEPATH": "1"},
        timeout=300,
        check=True,
    )
    assert contents(tmp_path / "toy") == contents(reference)


def test_nothing_in_the_trainer_unpickles():
    for path in Path(byov.train.__path__[0]).rglob("*.py"):
        text = path.read_text()
        assert "pickle.load" not in text, path
        assert "allow_pickle=True" not in text, path
        loads = [line for line in text.splitlines() if "torch.load(" in line]
        assert all("weights_only=True" in line for line in loads), path
