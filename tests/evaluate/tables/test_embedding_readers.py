from dataclasses import replace

import numpy as np
import pytest

from byov.cache.embeddings import read_embedding
from byov.errors import CacheError, EvaluationError
from byov.evaluate.embeddings import RunEmbeddings, TimeOnly
from byov.evaluate.protocols import trimmed_clips


def change_videos(features_dir, manifest, change):
    """Save the manifest with `change` applied to its test videos."""
    videos = tuple(change(video) if video.split == "test" else video for video in manifest.videos)
    replace(manifest, videos=videos).save(features_dir / manifest.dataset / "manifest.json")


def test_a_runs_embeddings_come_in_the_manifests_order(runs_dir, features_dir, manifest, write_run):
    folder = write_run()
    frames = RunEmbeddings(runs_dir, features_dir, "first").frames("test")
    videos = [video for video in manifest.videos if video.split == "test"]
    assert frames.names == tuple(f"{video.view}/{video.id}" for video in videos)
    assert frames.lengths.tolist() == [video.frames for video in videos]
    assert frames.is_ego.tolist() == [True] * 3 + [False] * 3
    assert frames.labels.tolist() == [label for video in videos for label in video.labels]
    last = read_embedding(folder / "embeddings" / "exo" / f"{videos[-1].id}.h5")[0]
    np.testing.assert_array_equal(frames.embeddings[-len(last) :], last)


def test_untrained_embeddings_are_their_own(runs_dir, features_dir, write_run):
    write_run()
    trained = RunEmbeddings(runs_dir, features_dir, "first")
    untrained = RunEmbeddings(runs_dir, features_dir, "first", untrained=True)
    assert not np.array_equal(trained.frames("test").embeddings, untrained.frames("test").embeddings)
    assert untrained.origin()["model_sha256"] == untrained.run.untrained_sha256
    assert (trained.kind, untrained.kind) == ("run", "untrained")


def test_a_runs_sub_clips_stand_for_its_videos(runs_dir, features_dir, manifest, write_run):
    write_run()
    source = RunEmbeddings(runs_dir, features_dir, "first")
    frames = source.frames("val", "trimmed")
    first = next(video for video in manifest.videos if video.split == "val")
    clips = trimmed_clips(manifest.dataset, first.view, first.id, first.frames)
    assert frames.names[:2] == tuple(f"ego/{first.id}@{start}-{end}" for start, end in clips)
    start, end = clips[0]
    assert frames.labels[: frames.lengths[0]].tolist() == list(first.labels[start : end + 1])
    assert source.training_frames().names[0] == "ego/train_ego_0"


def test_origin_says_run_model_and_features(runs_dir, features_dir, write_run):
    write_run(seed=3)
    source = RunEmbeddings(runs_dir, features_dir, "first")
    source.frames("test")
    origin = source.origin()
    assert origin["run"] == "first"
    assert origin["seed"] == 3
    assert origin["encoder"] == "openai/clip-vit-base-patch16"
    assert origin["column"] == "merged/0.3"
    assert len(origin["model_sha256"]) == len(origin["features_sha256"]) == 64


def test_embeddings_that_are_not_there_name_the_command(runs_dir, features_dir, write_run):
    folder = write_run()
    (folder / "embeddings" / "exo" / "test_exo_1.h5").unlink()
    message = r"no embeddings of 1 of 6 test videos \(exo/test_exo_1\); .*byov-train --run first --embed-only"
    with pytest.raises(EvaluationError, match=message):
        RunEmbeddings(runs_dir, features_dir, "first").frames("test")


def test_embeddings_of_another_model_are_refused(runs_dir, features_dir, write_run):
    folder = write_run()
    (folder / "model.safetensors").write_bytes(b"trained on")
    with pytest.raises(EvaluationError, match=r"embeddings of model \w{12}, the run's model is \w{12}; .*--embed-only"):
        RunEmbeddings(runs_dir, features_dir, "first").frames("test")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ({"column": "cls"}, "column 'cls', expected 'merged/0.3'"),
        ({"first_frame": 4}, "first_frame 4, expected 0"),
        ({"video": "other"}, "video 'other', expected 'test_ego_0'"),
    ],
)
def test_embeddings_of_something_else_are_refused(runs_dir, features_dir, write_run, source, message):
    write_run(**source)
    with pytest.raises(EvaluationError, match=message):
        RunEmbeddings(runs_dir, features_dir, "first").frames("test")


def test_embeddings_of_another_number_of_frames_are_refused(runs_dir, features_dir, manifest, write_run):
    write_run()
    change_videos(features_dir, manifest, lambda video: replace(video, frames=9, labels=video.labels[:9]))
    with pytest.raises(EvaluationError, match=r"test_ego_0.h5: 46 embeddings of 9 frames"):
        RunEmbeddings(runs_dir, features_dir, "first").frames("test")
    change_videos(features_dir, manifest, lambda video: replace(video, frames=1, labels=video.labels[:1]))
    with pytest.raises(EvaluationError, match=r"test_ego_0.h5: 46 embeddings of 1 frame;"):
        RunEmbeddings(runs_dir, features_dir, "first").frames("test")


def test_nan_names_the_video(runs_dir, features_dir, write_run, edit_h5):
    folder = write_run()
    with edit_h5(folder / "embeddings" / "ego" / "test_ego_2.h5", values=True) as file:
        file["embedding"][5, 1] = np.nan
    with pytest.raises(EvaluationError, match="ego/test_ego_2: NaN or infinite values in 1 of 60 frames, first in 5"):
        RunEmbeddings(runs_dir, features_dir, "first").frames("test")


def test_a_run_that_is_not_there_lists_those_that_are(runs_dir, features_dir, write_run):
    write_run("other")
    with pytest.raises(CacheError, match="no such run; choose one of other"):
        RunEmbeddings(runs_dir, features_dir, "first")


def test_videos_without_labels_leave_all_without(features_dir, manifest):
    change_videos(features_dir, manifest, lambda video: replace(video, labels=None))
    assert TimeOnly(features_dir, "tea").frames("test").labels is None
    assert TimeOnly(features_dir, "tea").frames("val").labels is not None


def test_videos_of_which_no_frame_has_a_label_have_none(features_dir, manifest):
    change_videos(features_dir, manifest, lambda video: replace(video, labels=(-1,) * video.frames))
    assert TimeOnly(features_dir, "tea").frames("test").labels is None


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (lambda video: video.labels[:-2], "ego/test_ego_0: 46 frames, 44 labels in the manifest"),
        (lambda video: (3,) * video.frames, "phases from 3 to 3, but tea has 3 phases"),
        (lambda video: (-2,) * video.frames, "phases from -2 to -2"),
    ],
)
def test_labels_that_do_not_fit_are_named(features_dir, manifest, labels, message):
    change_videos(features_dir, manifest, lambda video: replace(video, labels=labels(video)))
    with pytest.raises(EvaluationError, match=message):
        TimeOnly(features_dir, "tea").frames("test")


def test_videos_that_were_never_read_are_left_out(features_dir, manifest):
    change_videos(
        features_dir, manifest, lambda video: replace(video, frames=None) if video.id == "test_ego_1" else video
    )
    assert len(TimeOnly(features_dir, "tea").frames("test").lengths) == 5


def test_a_split_without_videos_says_which_there_are(features_dir, manifest):
    kept = tuple(video for video in manifest.videos if video.split != "val")
    replace(manifest, videos=kept).save(features_dir / "tea" / "manifest.json")
    with pytest.raises(EvaluationError, match="tea has no val videos; it has test, train"):
        TimeOnly(features_dir, "tea").frames("val")
