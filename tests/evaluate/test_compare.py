import json
import logging
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
from tests.evaluate.conftest import CLIP_FOLDER

from byov.cache.runs import read_run
from byov.errors import EvaluationError
from byov.evaluate.compare import compare, compared_readers
from byov.evaluate.compare import score as score_protocols
from byov.evaluate.frames import Frames
from byov.evaluate.readers import CachedFeatures, RunEmbeddings, TimeOnly, read_manifest
from byov.evaluate.scope import ALL, available_tasks, choose_scope, dataset_options
from byov.evaluate.tasks import TASKS, EvaluationOptions, find_tasks, score_frames

OPTIONS = EvaluationOptions(bootstrap=10)


@pytest.fixture
def save(features_dir, manifest):
    """Overwrite the manifest on disk with changed videos or fields."""

    def write(change=lambda video: video, **changes):
        videos = tuple(
            changed for video in manifest.videos if (changed := change(video)) is not None
        )
        replace(manifest, videos=videos, **changes).save(features_dir / "tea" / "manifest.json")

    return write


@pytest.fixture
def cached(features_dir, manifest):
    return lambda **options: CachedFeatures(
        features_dir, manifest.dataset, CLIP_FOLDER, "cls", **options
    )


def score(reader, *tasks, split="test", protocol="standard", options=None):
    scope = choose_scope(
        reader.manifest, tasks or (ALL,), split=split, protocol=protocol, options=options
    )
    return score_protocols(reader, scope)[protocol]


def test_run_untrained_model_features_and_time(runs_dir, features_dir, write_run, cached):
    write_run()
    run = score(RunEmbeddings(runs_dir, features_dir, "first"), protocol="trimmed", split="val")
    untrained = score(RunEmbeddings(runs_dir, features_dir, "first", untrained=True))
    features = score(cached(), "retrieval")
    time = score(TimeOnly(read_manifest(features_dir, "tea")), options=EvaluationOptions(ks=(1,)))
    # Only the trained embeddings depend on the phase, and each phase takes a third of the video.
    assert (
        run.value("classification/regular") > 0.7 > 0.5 > untrained.value("classification/regular")
    )
    assert features.nested_scores().keys() == {"retrieval"}
    assert time.nested_scores()["retrieval"].keys() == {"map@1"}
    assert (
        min(
            time.value(name)
            for name in ("classification/ego2exo", "kendalls_tau/all", "progression/val")
        )
        > 0.95
    )
    json.dumps([row.to_dict() for row in (run, untrained, features, time)])


def test_tasks_and_options_follow_from_the_dataset(manifest):
    assert "actions" not in available_tasks(manifest)
    assert available_tasks(replace(manifest, phases=())) == ("tau",)
    assert available_tasks(replace(manifest, phases=(), actions=("run",))) == ("actions",)
    assert available_tasks(replace(manifest, actions=("run",))) == tuple(
        task for task in TASKS if task != "few-shot"
    )
    assert choose_scope(manifest).protocols == ("standard", "trimmed", "online")
    assert choose_scope(replace(manifest, phases=())).protocols == ("standard",)
    assert choose_scope(replace(manifest, phases=(), actions=("run",))).protocols == ("standard",)
    assert dataset_options("pour_liquid", EvaluationOptions()).time_column
    assert not dataset_options("pour_milk", EvaluationOptions()).time_column
    assert dataset_options("pour_milk", EvaluationOptions(time_column=True)).time_column


def test_labels_are_required_of_the_splits_that_a_task_uses(manifest):
    def without_labels(*splits):
        videos = (
            replace(video, labels=None) if video.split in splits else video
            for video in manifest.videos
        )
        return replace(manifest, videos=tuple(videos))

    for task in ("classification", "retrieval", "progression", "few-shot"):
        with pytest.raises(
            EvaluationError, match=rf"no phase labels for any test video; {task} needs them"
        ):
            choose_scope(without_labels("test", "train"), [task])
    choose_scope(without_labels("test", "train"), ["tau"])
    choose_scope(without_labels("train"), ["retrieval"])
    with pytest.raises(EvaluationError, match="no phase labels for any train video"):
        choose_scope(without_labels("train"), ["classification"])
    with pytest.raises(EvaluationError, match="no action labels"):
        choose_scope(manifest, ["actions"])


@pytest.mark.parametrize("protocol", ["standard", "trimmed"])
def test_phase_tasks_leave_out_unlabeled_videos(cached, save, protocol):
    bare = {"test_ego_0", "train_exo_1"}
    whole = score(cached(), protocol=protocol, options=OPTIONS)
    save(lambda video: replace(video, labels=None) if video.id in bare else video)
    partly = score(cached(), protocol=protocol, options=OPTIONS)
    save(lambda video: None if video.id in bare else video)
    without = score(cached(), protocol=protocol, options=OPTIONS)
    assert whole.notes == without.notes == ()
    scored = "1 of 6 scored videos" if protocol == "standard" else "2 of 12 scored videos"
    assert [scored in partly.notes[0], "1 of 6 training videos" in partly.notes[1]] == [True, True]
    for name, found in partly.scores.items():
        assert found == (whole if name.startswith("kendalls_tau") else without).scores[name]
    assert partly.value("retrieval/map@5/regular") != whole.value("retrieval/map@5/regular")


@pytest.mark.parametrize("protocol", ["standard", "trimmed"])
def test_phase_tasks_leave_out_unlabeled_frames(cached, save, protocol):
    save(
        lambda video: (
            replace(video, labels=(-1,) * 5 + video.labels[5:-9] + (-1,) * 9)
            if video.id.endswith("_0")
            else video
        )
    )
    tasks = ("classification", "retrieval", "progression")
    row = score(cached(), *tasks, protocol=protocol, options=OPTIONS)
    train, test = (
        labeled_only(cached().frames(*which)) for which in (("train",), ("test", protocol))
    )
    expected = score_frames(train, test, find_tasks(tasks), OPTIONS)
    assert row.notes
    for name, found in row.scores.items():
        assert (found == expected[name]) is not name.startswith("progression"), name


def labeled_only(frames):
    kept = np.flatnonzero(frames.labels >= 0)
    lengths = np.bincount(frames.video_of_frame[kept], minlength=len(frames.lengths))
    return Frames(
        frames.embeddings[kept], frames.labels[kept], lengths, frames.is_ego, frames.recordings
    )


def test_training_videos_are_read_only_if_needed(cached):
    reader = cached()
    for path in reader.folder.rglob("train_*"):
        path.unlink()
    assert score(reader, "retrieval", "tau").value("kendalls_tau/all") is not None
    with pytest.raises(EvaluationError, match="6 of 6 train videos"):
        score(reader, "classification")


def test_phases_missing_from_training_are_noted(features_dir, save):
    save(
        lambda video: (
            replace(video, labels=tuple(min(label, 1) for label in video.labels))
            if video.split == "train"
            else video
        )
    )
    row = score(TimeOnly(read_manifest(features_dir, "tea")), "classification")
    assert row.notes == (
        "no training video has phase leave: its test frames count as misclassified",
    )
    assert 0 < row.value("classification/regular") < 0.8


def test_actions_of_whole_videos(cached, save):
    def with_actions(video):
        return replace(video, actions=(int(video.id[-1]) % 2,))

    save(with_actions, actions=("run", "sit"))
    assert score(cached()).value("actions/regular") is not None
    assert "actions/regular" not in score(cached(), protocol="trimmed").scores
    with pytest.raises(EvaluationError, match="actions: not available in the trimmed protocol"):
        score(cached(), "actions", protocol="trimmed")
    standardized = cached(standardized=True)
    assert "actions" not in score(standardized).nested_scores()
    with pytest.raises(EvaluationError, match="actions: not defined for standardized features"):
        score(standardized, "actions")


def test_comparison_skips_optional_rows_and_prints_nothing(
    runs_dir, features_dir, manifest, write_run, capfd, caplog
):
    caplog.set_level(logging.INFO, "byov")
    folder = write_run()
    (features_dir / "tea" / "random--tiny" / "ego" / "test_ego_1.h5").unlink()
    readers = compared_readers(runs_dir, features_dir, "tea", [read_run(runs_dir, "first")])
    scope = choose_scope(manifest)
    with ThreadPoolExecutor(1) as pool:
        results = pool.submit(compare, readers, scope).result()
    names = [row.name for row in results.rows["trimmed"]]
    assert len(readers) == len(names) + 2
    assert names[0] == "CLIP features (vit-base-patch16), cls"
    assert names[-3:] == ["Time only", "Untrained (first)", "first"]
    assert "no embeddings for 1 of 6 test videos (first: ego/test_ego_1)" in caplog.text
    (folder / "embeddings-untrained" / "ego" / "test_ego_0.h5").unlink()
    names = [row.name for row in compare(readers, scope).rows["standard"]]
    assert names[-2:] == ["Time only", "first"]
    assert capfd.readouterr() == ("", "")
