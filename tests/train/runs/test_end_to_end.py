"""What one byov-train leaves behind."""

import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tests.train.runs.run_files import records

from byov.cache.embeddings import read_embedding
from byov.cache.hdf5 import read_array, read_digest
from byov.evaluate.protocols import trimmed_clips
from byov.train.methods.base import Method

pytestmark = pytest.mark.usefixtures("cache")


def untrained_model(run):
    from byov.cache.runs import read_run
    from byov.train.methods import build_method
    from byov.train.settings import settings_of

    return build_method(16, settings_of(read_run(run.parent, run.name))).eval()


def test_a_run_has_all_its_files_and_nothing_else(reference):
    names = {path.name for path in reference.iterdir()}
    folders = {f"embeddings{untrained}{trimmed}" for untrained in ("", "-untrained") for trimmed in ("", "-trimmed")}
    files = {"config.json", "model.safetensors", "model-last.safetensors", "metrics.jsonl", "README.md"}
    assert names == {*files, *folders, "checkpoint", ".lock"}
    assert list(reference.rglob("*.partial")) == []


def test_the_last_two_checkpoints_are_kept(reference):
    names = sorted(path.name for path in (reference / "checkpoint").iterdir())
    assert names == ["step-000000008.safetensors", "step-000000012.safetensors"]


def test_config_tells_the_later_stages_what_was_trained_on_what(reference):
    config = json.loads((reference / "config.json").read_text())
    training = config["training"]
    told = {key: training[key] for key in ("dataset", "encoder", "encoder_folder", "column", "recipe", "seed")}
    assert told == {
        "dataset": "toy",
        "encoder": "random/tiny",
        "encoder_folder": "random--tiny",
        "column": "merged/0.3",
        "recipe": "paper",
        "seed": 0,
    }
    assert config.keys() == {"file_sha256", "width", "settings", "training"}
    assert (config["width"], config["settings"]["method"]) == (16, "byov")
    assert (config["settings"]["latent"], config["settings"]["lr"]) == (32, 1e-3)


def test_the_kept_model_is_the_best_by_the_metrics(reference):
    best = max(records(reference)[1:], key=lambda record: record["retrieval"])
    validation = json.loads((reference / "config.json").read_text())["training"]["validation"]
    assert validation == {name: best[name] for name in validation}
    assert validation["retrieval"] == best["retrieval"]


def test_the_card_states_dataset_recipe_and_metrics(reference):
    card = (reference / "README.md").read_text()
    best = max(record["retrieval"] for record in records(reference)[1:])
    for fact in ("`toy`", "`random/tiny`", "`merged/0.3`", "`paper`", "`retrieval`", f"`{best:.4f}`"):
        assert fact in card


def test_metrics_have_a_record_of_the_untrained_model_and_one_per_epoch(reference):
    found = records(reference)
    assert [(record["epoch"], record["step"]) for record in found] == [(0, 0), (1, 4), (2, 8), (3, 12)]
    metrics = {"map@10_ego2exo", "map@10_exo2ego", "retrieval", "trimmed", "both", "tau"}
    assert found[0].keys() == {"epoch", "step", *metrics}
    for record in found[1:]:
        assert record.keys() == {"epoch", "step", "lr", "loss", "self", "cross", *metrics}
        assert record["loss"] == pytest.approx(record["self"] + record["cross"])
        assert record["both"] == pytest.approx((record["retrieval"] + record["trimmed"]) / 2)
    assert found[3]["loss"] < found[1]["loss"]


@pytest.mark.parametrize("untrained", [False, True])
def test_every_frame_of_every_video_is_embedded_as_the_model_embeds_the_cached_features(
    reference, shared_cache, untrained
):
    folder = reference / ("embeddings-untrained" if untrained else "embeddings")
    model = untrained_model(reference) if untrained else Method.from_pretrained(str(reference)).eval()
    videos = sorted(path.relative_to(shared_cache / "random--tiny") for path in shared_cache.rglob("*.h5"))
    assert sorted(path.relative_to(folder) for path in folder.rglob("*.h5")) == videos
    assert len(videos) == 8
    for video in videos:
        features = read_array(shared_cache / "random--tiny" / video, "merged/0.3")
        embedding, _ = read_embedding(folder / video)
        assert embedding.dtype == np.float32
        np.testing.assert_array_equal(embedding, model.embed(torch.from_numpy(features)).numpy())


@pytest.mark.parametrize("untrained", [False, True])
def test_sub_clips_of_val_and_test_videos_are_embedded_on_their_own(reference, shared_cache, untrained):
    folder = reference / ("embeddings-untrained-trimmed" if untrained else "embeddings-trimmed")
    model = untrained_model(reference) if untrained else Method.from_pretrained(str(reference)).eval()
    seen = set()
    for path in sorted((shared_cache / "random--tiny").rglob("*.h5")):
        if path.stem.startswith("train"):
            continue
        features, seconds = read_array(path, "merged/0.3"), read_array(path, "pts_seconds")
        clips = trimmed_clips("toy", path.parent.name, path.stem, len(features))
        assert len(clips) == 2
        for first, last in clips:
            written = folder / path.parent.name / f"{path.stem}@{first}-{last}.h5"
            embedding, source = read_embedding(written)
            alone = model.embed(torch.from_numpy(features[first : last + 1])).numpy()
            np.testing.assert_array_equal(embedding, alone)
            np.testing.assert_array_equal(read_array(written, "pts_seconds"), seconds[first : last + 1])
            assert source.first_frame == first
            seen.add(written)
    assert set(folder.rglob("*.h5")) == seen
    assert len(seen) == 8


def test_embeddings_say_which_model_and_which_features_made_them(reference, shared_cache):
    training = json.loads((reference / "config.json").read_text())["training"]
    digests = {
        "embeddings": hashlib.sha256((reference / "model.safetensors").read_bytes()).hexdigest(),
        "embeddings-untrained": training["untrained_sha256"],
    }
    assert len(set(digests.values())) == 2
    features = shared_cache / "random--tiny" / "exo" / "test_exo_0.h5"
    for folder, digest in digests.items():
        _, source = read_embedding(reference / folder / "exo" / "test_exo_0.h5")
        assert (source.run, source.model_sha256, source.dataset) == ("toy", digest, "toy")
        assert (source.video, source.encoder, source.column) == ("test_exo_0", "random/tiny", "merged/0.3")
        assert source.column_sha256 == read_digest(features, "merged/0.3")
        assert (source.encoder_sha256, source.preprocessing) == ("ab" * 32, "squash 224")
        assert source.first_frame == 0


def test_a_run_reproduces_itself_bit_for_bit(byov_train, tiny, reference, contents, run):
    assert byov_train("--ratio", 0.3, "--run", "toy", *tiny).code == 0
    assert contents(run) == contents(reference)


def test_features_that_are_read_as_needed_give_the_same_run(byov_train, tiny, reference, contents, run):
    ran = byov_train("--run", "toy", *tiny, "--preload-gib", 0)
    assert ran.code == 0
    assert "are read as they are needed" in ran.err
    assert contents(run) == contents(reference)


@pytest.mark.slow
def test_a_run_of_every_method_reproduces_itself_from_features_read_as_needed(
    byov_train, tiny_of_each, reference_of_each, contents, run
):
    assert byov_train("--ratio", 0.3, "--run", "toy", *tiny_of_each, "--preload-gib", 0).code == 0
    assert contents(run) == contents(reference_of_each)


def test_a_run_of_every_method_says_which_it_is_and_embeds_what_it_learned(
    reference_of_each, each_method, shared_cache
):
    config = json.loads((reference_of_each / "config.json").read_text())
    assert config["settings"]["method"] == each_method
    assert f"method `{each_method}`" in (reference_of_each / "README.md").read_text()
    found = records(reference_of_each)
    if each_method != "actor-observer":  # whose loss is measured against its own running mean
        assert found[-1]["loss"] < found[1]["loss"]
    model, untrained = Method.from_pretrained(reference_of_each), untrained_model(reference_of_each)
    features = torch.from_numpy(read_array(shared_cache / "random--tiny" / "ego" / "val_ego_0.h5", "merged/0.3"))
    for folder, embedder in (("embeddings", model), ("embeddings-untrained", untrained)):
        embedding, _ = read_embedding(reference_of_each / folder / "ego" / "val_ego_0.h5")
        np.testing.assert_array_equal(embedding, embedder.embed(features).numpy())
    assert not torch.equal(model.embed(features), untrained.embed(features))


def test_a_run_of_every_method_can_be_evaluated(reference_of_each, shared_cache, call, tmp_path):
    from byov.cli.evaluate import main

    shutil.copytree(reference_of_each, tmp_path / "runs" / "toy")
    folders = ("--features-dir", shared_cache.parent, "--runs-dir", tmp_path / "runs")
    ran = call(main, "byov-eval", *folders, "--run", "toy", "--task", "retrieval", "--json")
    assert ran.code == 0, ran


@pytest.mark.parametrize("option", [("--seed", "1"), ("--clip-grad", "0.01"), ("--ratio", "1.0")])
def test_another_seed_or_setting_gives_another_model(byov_train, tiny, reference, option, run):
    assert byov_train("--run", "toy", *tiny, *option).code == 0
    assert (run / "metrics.jsonl").read_bytes() != (reference / "metrics.jsonl").read_bytes()
    assert not same_weights(run, reference)


def test_a_gradient_that_is_short_enough_is_not_clipped(byov_train, tiny, reference, run):
    assert byov_train("--run", "toy", *tiny, "--clip-grad", "1e9").code == 0
    assert same_weights(run, reference)


def same_weights(run, other):
    """Of the last models; their files say too with which settings they were made."""
    ours, theirs = (load_file(folder / "model-last.safetensors") for folder in (run, other))
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_the_default_name_tells_dataset_recipe_ratio_and_seed(byov_train, tiny, tmp_path):
    assert byov_train(*tiny, "--recipe", "cycle", "--ratio", 1, "--seed", 7, "--epochs", 1).code == 0
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["toy-cycle-r1.0-s7"]


def test_json_is_one_object_on_standard_output(byov_train, tiny, run):
    ran = byov_train("--run", "toy", *tiny, "--epochs", 2, "--json")
    assert ran.code == 0
    summary = ran.json
    assert summary["run"] == "toy"
    assert summary["dataset"] == "toy"
    assert summary["steps"] == 8
    assert summary["embedding_files"] == len(list((run).rglob("*.h5")))
    assert Path(summary["folder"]) == run
    kept = max(records(run)[1:], key=lambda record: record["retrieval"])
    assert summary["validation"]["retrieval"] == kept["retrieval"]
    assert byov_train("--run", "toy", "--embed-only", "--json").json["embedding_files"] == summary["embedding_files"]


def test_what_was_left_out_is_said_and_standard_output_has_the_figures(byov_train, tiny):
    ran = byov_train(*tiny, "--epochs", 1)
    assert "random--tiny at ratio 0.3" in ran.err
    assert "retrieval 0." in ran.out
    assert "32 embedding files" in ran.out


def test_tensorboard_has_the_figures_of_metrics_jsonl(byov_train, tiny, run):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    assert byov_train("--run", "toy", *tiny, "--tensorboard").code == 0
    events = EventAccumulator(str(run / "tensorboard")).Reload()
    found = records(run)
    for name in ("retrieval", "loss", "lr"):
        expected = [(record["step"], pytest.approx(record[name])) for record in found if name in record]
        assert [(event.step, event.value) for event in events.Scalars(name)] == expected


@pytest.mark.parametrize("package", ["tensorboard", "wandb"])
def test_a_board_without_its_package_is_one_line(refused, tiny, package, tmp_path):
    assert f"pip install {package}" in refused(*tiny, f"--{package}", without=package)
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_the_installed_command_does_the_same(shared_cache, tiny, reference, contents, tmp_path):
    command = Path(sys.executable).with_name("byov-train")
    folders = ["--features-dir", str(shared_cache.parent), "--runs-dir", str(tmp_path)]
    ran = subprocess.run(
        [str(command), "--ratio", "0.3", "--run", "toy", *folders, *tiny],
        env={"OMP_NUM_THREADS": "1", "PYTHONSAFEPATH": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ran.returncode == 0, ran
    assert contents(tmp_path / "toy") == contents(reference)


@pytest.mark.parametrize("option", ["--help", "--version"])
def test_help_and_version_do_without_pytorch(option):
    script = f"import sys; sys.argv = ['byov-train', {option!r}]\nfrom byov.cli.train import main\ntry: main()\n"
    script += "finally: print('torch' in sys.modules, file=sys.stderr)"
    ran = subprocess.run(
        [sys.executable, "-c", script],
        env={"PYTHONSAFEPATH": "1", "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (ran.returncode, ran.stderr) == (0, "False\n")
    assert ("--ratio" if option == "--help" else "byov ") in ran.stdout


def test_copied_elsewhere_the_model_still_loads(reference, tmp_path):
    for name in ("config.json", "model.safetensors"):
        shutil.copy(reference / name, tmp_path)
    model = Method.from_pretrained(str(tmp_path))
    assert (model.width, model.settings.latent) == (16, 32)
    assert model.record["dataset"] == "toy"


def test_nothing_in_the_trainer_unpickles():
    import byov.train.official

    source = Path(byov.train.official.__file__).parent
    for path in source.rglob("*.py"):
        text = path.read_text()
        assert "pickle.load" not in text, path
        assert "allow_pickle=True" not in text, path
        loads = [line for line in text.splitlines() if "torch.load(" in line]
        assert all("weights_only=True" in line for line in loads), path
        assert not loads or path.name == "official.py"
