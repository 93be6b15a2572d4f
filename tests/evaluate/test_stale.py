"""Check that byov-eval rejects and byov-cache verify reports mismatched features, embeddings and
models.
"""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
from tests.factories import CLIP, write_features

from byov.cache.digests import file_sha256
from byov.cache.hdf5 import read_array
from byov.cache.manifest import load_manifest
from byov.cli.cache import main as cache_main

FOLDER = "tea/openai--clip-vit-base-patch16"
EMBED = "byov-train --run first --embed-only"
TRAIN = "byov-train --config"
EXTRACT = "byov-extract"
OTHER_SOURCE = f"byov-extract with --encoder {CLIP} again"


@pytest.fixture
def folder(write_run):
    """Folder of a finished run whose features are in the cache."""
    folder = write_run("first")
    config = json.loads((folder / "config.json").read_text())
    config["training"]["files_sha256"] = {
        "model.safetensors": file_sha256(folder / "model.safetensors")
    }
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture
def verify(tmp_path, call):
    """Run byov-cache verify and return its exit code and output."""

    def run():
        ran = call(cache_main, "byov-cache", "verify", "--features-dir", tmp_path / "features")
        return ran.code, ran.out

    return run


def replace_video(name, column="merged/0.3", **provenance):
    """Overwrite the features of a video with those of another video of the same length."""

    def change(features, _):
        path = features / FOLDER / f"{name}.h5"
        values = read_array(path, "merged/0.3")[::-1].astype(np.float16)
        write_features(path, {float(column.removeprefix("merged/")): values}, **provenance)

    return change


def replace_all(column="merged/0.3", **provenance):
    def change(features, run):
        for path in sorted((features / FOLDER).rglob("*.h5")):
            name = path.relative_to(features / FOLDER).with_suffix("").as_posix()
            replace_video(name, column, **provenance)(features, run)

    return change


def swap_features(features, _):
    # Same length.
    first, second = (features / FOLDER / "ego" / f"{split}_ego_0.h5" for split in ("test", "val"))
    first.rename(first.with_suffix(".x"))
    second.rename(first)
    first.with_suffix(".x").rename(second)


def copy_embedding(_, run):
    shutil.copy(run / "embeddings/ego/test_ego_0.h5", run / "embeddings/ego/test_ego_1.h5")


def shift_times(features, _):
    """Write the same features with other frame times, as of a video with another frame rate."""
    path = features / FOLDER / "exo/test_exo_1.h5"
    write_features(path, {0.3: read_array(path, "merged/0.3")}, fps=25)


def describe_another_source(split):
    """Change the manifest as if another encoder had been run on another version of the videos."""

    def change(features, _):
        path = features / "tea/manifest.json"
        manifest = load_manifest(path)
        videos = [
            replace(video, source_sha256="ab" * 32) if video.split == split else video
            for video in manifest.videos
        ]
        replace(manifest, videos=tuple(videos)).save(path)

    return change


def delete(pattern):
    return lambda features, _: [path.unlink() for path in features.parent.glob(pattern)]


@pytest.mark.parametrize(
    ("change", "advice"),
    [
        pytest.param(replace_video("exo/test_exo_1"), EMBED, id="test video replaced"),
        pytest.param(replace_video("ego/train_ego_0"), TRAIN, id="train video replaced"),
        pytest.param(replace_video("exo/val_exo_0"), TRAIN, id="val video replaced"),
        pytest.param(replace_all("merged/0.5"), "--ratios 0.3", id="other ratios"),
        pytest.param(
            replace_all(encoder="other/encoder", encoder_sha256="cd" * 32),
            TRAIN,
            id="other encoder",
        ),
        pytest.param(swap_features, EXTRACT, id="features swapped"),
        pytest.param(
            delete(f"features/{FOLDER}/ego/test_ego_1.h5"), EXTRACT, id="test features deleted"
        ),
        pytest.param(
            delete(f"features/{FOLDER}/ego/train_ego_1.h5"), TRAIN, id="train features deleted"
        ),
        pytest.param(delete("features/tea/manifest.json"), EXTRACT, id="manifest deleted"),
        pytest.param(describe_another_source("train"), OTHER_SOURCE, id="other train videos"),
        pytest.param(describe_another_source("test"), OTHER_SOURCE, id="other test videos"),
        pytest.param(shift_times, EMBED, id="other frame times"),
        pytest.param(copy_embedding, EMBED, id="embedding copied over"),
        pytest.param(
            delete("runs/first/embeddings/ego/test_ego_1.h5"), EMBED, id="embedding deleted"
        ),
    ],
)
def test_stale_files_are_refused(byov_eval, verify, folder, features_dir, change, advice):
    assert verify()[0] == 0, verify()[1]
    assert byov_eval("--run", "first", "--task", "retrieval")[0] == 0
    change(features_dir, folder)
    code, out, err = byov_eval("--run", "first", "--task", "retrieval")
    assert (code, out) == (2, "")
    assert advice in err
    code, out = verify()
    assert code == 1
    assert advice in out


@pytest.mark.parametrize(
    "place", ["embeddings-trimmed", "embeddings-untrained", "embeddings-untrained-trimmed"]
)
def test_sub_clips_and_untrained_embeddings_are_checked(byov_eval, verify, folder, place):
    first, second = sorted(
        (folder / place / "ego").glob("test_ego_0*" if "trimmed" in place else "test_ego_?.h5")
    )[:2]
    shutil.copy(first, second)
    code, out, err = byov_eval("--run", "first", "--task", "retrieval", "--protocol", "both")
    if place == "embeddings-trimmed":
        assert (code, EMBED in err) == (2, True)
    else:  # rows of untrained models are optional
        assert (code, "Untrained" in out) == (0, False)
    assert f"{second.relative_to(folder.parent)}" in verify()[1]
    second.unlink()
    assert "1 of" in verify()[1]


def test_a_run_is_not_averaged_with_one_of_other_features(
    byov_eval, write_run, folder, features_dir
):
    replace_video("ego/train_ego_0")(features_dir, folder)
    write_run("second", seed=1)
    code, out, err = byov_eval("--run", "first", "--run", "second", "--task", "tau")
    assert (code, out, TRAIN in err) == (2, "", True)


def test_a_run_is_not_averaged_with_one_of_other_labels(byov_eval, write_run, folder):
    write_run("second", seed=1)
    assert (
        "Mean of first, second"
        in byov_eval("--run", "first", "--run", "second", "--task", "tau")[1]
    )
    config = (folder / "config.json").read_text()
    digest = json.loads(config)["training"]["labels_sha256"]
    (folder / "config.json").write_text(config.replace(digest, "ef" * 32))
    code, out, _ = byov_eval("--run", "first", "--run", "second", "--task", "tau")
    assert (code, "Mean of" in out) == (0, False)


@pytest.mark.usefixtures("folder")
def test_changed_labels_of_a_val_video_are_noted(byov_eval, features_dir):
    path = features_dir / "tea" / "manifest.json"
    manifest = load_manifest(path)
    videos = [
        replace(video, labels=(*video.labels[1:], 2)) if video.split == "val" else video
        for video in manifest.videos
    ]
    replace(manifest, videos=tuple(videos)).save(path)
    code, out, _ = byov_eval("--run", "first", "--task", "tau")
    assert code == 0
    assert "first: labels, pairs or order of the train and val videos changed after training" in out
