"""Tests of the files of a run, and of the options that change them."""

import hashlib
import json
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tests.train.runs.run_files import contents, records

from byov.cache.embeddings import read_embedding
from byov.cache.hdf5 import read_array, read_digest
from byov.cache.layout import prefix_lengths, trimmed_clips
from byov.cache.runs import read_run
from byov.cli.evaluate import main as byov_eval
from byov.train.feature_store import FeatureStore, open_training_data
from byov.train.methods.base import Method, build_method, training_batches
from byov.train.registry import run_config

DIAGNOSTICS = {
    f"diagnostics/{name}"
    for name in ("self", "cross", "cross/other", "cross/reversed", "cross/mean")
}
DIAGNOSTICS |= {f"diagnostics/trivial/{name}" for name in ("constant", "view", "video")}
METRICS = {"map@10_ego2exo", "map@10_exo2ego", "retrieval", "trimmed", "both", "tau"}

pytestmark = pytest.mark.usefixtures("cache")


def training_record(run):
    return json.loads((run / "config.json").read_text())["training"]


def load_model(run, *, untrained):
    if untrained:
        return build_method(16, run_config(read_run(run.parent, run.name))).eval()
    return Method.from_pretrained(run)


def same_weights(run, other, name="model-last.safetensors"):
    ours, theirs = (load_file(folder / name) for folder in (run, other))
    return ours.keys() == theirs.keys() and all(
        torch.equal(ours[name], theirs[name]) for name in ours
    )


def test_a_run_has_all_its_files(reference):
    protocols = ("", "-trimmed", "-online")
    folders = {
        f"embeddings{untrained}{protocol}"
        for untrained in ("", "-untrained")
        for protocol in protocols
    }
    files = {
        "config.json",
        "model.safetensors",
        "model-last.safetensors",
        "metrics.jsonl",
        "README.md",
    }
    assert {path.name for path in reference.iterdir()} == {*files, *folders, "checkpoint", ".lock"}
    checkpoints = sorted(path.name for path in (reference / "checkpoint").iterdir())
    assert checkpoints == ["step-000000008.safetensors", "step-000000012.safetensors"]


def test_metrics_have_a_record_of_the_untrained_model_and_of_each_epoch(reference):
    epochs = records(reference)
    assert [(record["epoch"], record["step"]) for record in epochs] == [
        (0, 0),
        (1, 4),
        (2, 8),
        (3, 12),
    ]
    assert epochs[0].keys() == {"epoch", "step", *METRICS, *DIAGNOSTICS}
    for record in epochs[1:]:
        assert record.keys() == {
            "epoch",
            "step",
            "lr",
            "loss",
            "self",
            "cross",
            *METRICS,
            *DIAGNOSTICS,
        }
        assert record["loss"] == pytest.approx(record["self"] + record["cross"])
        assert record["lr"] == 1e-3
    assert epochs[3]["loss"] < epochs[1]["loss"]


@pytest.mark.parametrize("untrained", [False, True])
def test_embeddings_are_those_of_the_model(reference, shared_cache, untrained):
    """Check the embeddings of all videos, and those of sub-clips and prefixes of val and test
    videos.
    """
    model = load_model(reference, untrained=untrained)
    suffix = "-untrained" if untrained else ""
    digest = hashlib.sha256((reference / "model.safetensors").read_bytes()).hexdigest()
    written = set()
    for path in (shared_cache / "random--tiny").rglob("*.h5"):
        features = read_array(path, "merged/0.3")
        seconds = read_array(path, "pts_seconds")
        view = path.parent.name
        clips = {f"embeddings{suffix}/{path.parent.name}/{path.name}": (0, len(features))}
        if not path.stem.startswith("train"):
            for start, stop in trimmed_clips("toy", view, path.stem, len(features)):
                clips[f"embeddings{suffix}-trimmed/{view}/{path.stem}@{start}-{stop - 1}.h5"] = (
                    start,
                    stop,
                )
            assert len(clips) == 3
            online, source = read_embedding(
                reference / f"embeddings{suffix}-online" / view / path.name
            )
            prefixes = [features[:length] for length in prefix_lengths(len(features))]
            np.testing.assert_array_equal(
                online, [model.embed(prefix).numpy()[-1] for prefix in prefixes]
            )
            assert (source.first_frame, source.column_sha256) == (
                0,
                read_digest(path, "merged/0.3"),
            )
        for name, (start, stop) in clips.items():
            embedding, source = read_embedding(reference / name)
            np.testing.assert_array_equal(embedding, model.embed(features[start:stop]).numpy())
            np.testing.assert_array_equal(
                read_array(reference / name, "pts_seconds"), seconds[start:stop]
            )
            assert (source.run, source.dataset, source.video) == ("toy", "toy", path.stem)
            assert (source.first_frame, source.column_sha256) == (
                start,
                read_digest(path, "merged/0.3"),
            )
            assert (source.model_sha256 == digest) is not untrained
        written |= clips.keys()
    embedded = {
        *reference.glob(f"embeddings{suffix}/*/*"),
        *reference.glob(f"embeddings{suffix}-trimmed/*/*"),
    }
    assert {str(path.relative_to(reference)) for path in embedded} == written


@pytest.mark.parametrize(
    "options",
    [(), ("--preload-gib", 0), ("--checkpoint-every", 50)],
    ids=["repeated", "lazy", "few checkpoints"],
)
def test_a_run_is_reproducible_bit_for_bit(byov_train, tiny, reference, run, options):
    assert byov_train("--ratio", 0.3, "--run", "toy", *tiny, *options).code == 0
    assert contents(run) == contents(reference)


def training_loss(model, data):
    """Compute the mean loss over the first training batches."""
    videos = data.split("train")
    store = FeatureStore(data, videos, 2**30)
    if model.config.method.name == "actor-observer":
        model.heads = None  # with score heads, the loss is relative to its running mean
    batches = training_batches(model, videos, store, model.config)
    with torch.no_grad():
        losses = [
            model(batches.batch(step), torch.Generator().manual_seed(step))["loss"]
            for step in range(12)
        ]
    return torch.stack(losses).mean()


def test_a_run_of_every_method_learns_and_evaluates(
    reference_of_each, each_method, shared_cache, call, tmp_path
):
    assert f"method `{each_method}`" in (reference_of_each / "README.md").read_text()
    data = open_training_data(shared_cache.parent, None, None, 0.3)
    trained, untrained = (
        load_model(reference_of_each, untrained=untrained) for untrained in (False, True)
    )
    trained.load_state_dict(load_file(reference_of_each / "model-last.safetensors"))
    assert training_loss(trained, data) < training_loss(untrained, data)
    shutil.copytree(reference_of_each, tmp_path / "runs" / "toy")
    folders = ("--features-dir", shared_cache.parent, "--runs-dir", tmp_path / "runs")
    ran = call(byov_eval, "byov-eval", *folders, "--run", "toy", "--task", "retrieval", "--json")
    assert ran.code == 0, ran


@pytest.mark.parametrize(
    ("option", "same"),
    [
        (("--seed", 1), False),
        (("--clip-grad", 0.01), False),
        (("--ratio", 1.0), False),
        (("--clip-grad", 1e9), True),
        (("--precision", "bf16"), False),
    ],
    ids=str,
)
def test_settings_change_the_model(byov_train, tiny, reference, run, option, same):
    assert byov_train("--run", "toy", *tiny, *option).code == 0
    assert same_weights(run, reference) is same


@pytest.mark.parametrize("metric", ["retrieval", "trimmed", "both", "tau", "last"])
def test_the_kept_model_is_the_best_by_the_chosen_metric(byov_train, tiny, run, metric):
    assert byov_train("--run", "toy", *tiny, "--epochs", 4, "--select", metric).code == 0
    epochs = records(run)[1:]
    best = epochs[-1] if metric == "last" else max(epochs, key=lambda record: record[metric])
    assert training_record(run)["validation"] == {name: best[name] for name in METRICS}
    assert str(best["retrieval"]) in (run / "README.md").read_text()
    # A run that ends after the best epoch must have the same model.
    assert (
        byov_train("--run", "short", *tiny, "--epochs", best["epoch"], "--select", "last").code == 0
    )
    assert same_weights(run, run.parent / "short", "model.safetensors")


def test_validation_schedule(byov_train, tiny, run):
    assert (
        byov_train("--run", "toy", *tiny, "--epochs", 5, "--validate-every", 2, "--warmup", 2).code
        == 0
    )
    assert [record["epoch"] for record in records(run) if "retrieval" in record] == [0, 2, 4, 5]
    assert [record["lr"] for record in records(run)[1:]] == pytest.approx(
        [1e-3 * 4 / 9, 1e-3 * 8 / 9, *[1e-3] * 3]
    )


def test_omitted_options_are_inferred_and_shown(byov_train, tiny, tmp_path):
    ran = byov_train(*tiny, "--recipe", "cycle", "--seed", 7, "--epochs", 1)
    assert ran.code == 0
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["toy-cycle-r0.3-s7"]
    assert "random--tiny at ratio 0.3" in ran.err
    assert "retrieval 0." in ran.out
    assert "40 embedding files" in ran.out


def test_tensorboard_has_the_metrics(byov_train, tiny, run):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    assert byov_train("--run", "toy", *tiny, "--tensorboard").code == 0
    events = EventAccumulator(str(run / "tensorboard")).Reload()
    for name in ("retrieval", "loss", "lr"):
        expected = [
            (record["step"], pytest.approx(record[name]))
            for record in records(run)
            if name in record
        ]
        assert [(event.step, event.value) for event in events.Scalars(name)] == expected
