import json
import logging
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
from tests.evaluate.conftest import CLIP_FOLDER

from byov.cache.runs import read_run
from byov.errors import EvaluationError
from byov.evaluate.embeddings import CachedFeatures, RunEmbeddings, TimeOnly, read_manifest
from byov.evaluate.evaluation import (
    Scope,
    compare,
    evaluate,
    options_for,
    readers_to_compare,
    require_labels,
    scope_of_all,
    tasks_of,
)
from byov.evaluate.frames import Frames
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
    scope = Scope(
        split, (protocol,), tasks or tasks_of(reader.manifest), options or EvaluationOptions()
    )
    return evaluate(reader, scope)[protocol]


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
    assert "actions" not in tasks_of(manifest)
    assert tasks_of(replace(manifest, phases=())) == ("tau",)
    assert tasks_of(replace(manifest, phases=(), actions=("run",))) == ("actions",)
    assert tasks_of(replace(manifest, actions=("run",))) == tuple(
        task for task in TASKS if task != "few-shot"
    )
    assert scope_of_all(manifest, "test", OPTIONS).protocols == ("standard", "trimmed", "online")
    assert scope_of_all(replace(manifest, phases=()), "test", OPTIONS).protocols == (
        "standard",
        "trimmed",
    )
    assert scope_of_all(
        replace(manifest, phases=(), actions=("run",)), "test", OPTIONS
    ).protocols == ("standard",)
    assert options_for("pour_liquid", EvaluationOptions()).time_column
    assert not options_for("pour_milk", EvaluationOptions()).time_column
    assert options_for("pour_milk", EvaluationOptions(time_column=True)).time_column


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
            require_labels(without_labels("test", "train"), "test", [task])
    require_labels(without_labels("test", "train"), "test", ["tau"])
    require_labels(without_labels("train"), "test", ["retrieval"])
    with pytest.raises(EvaluationError, match="no phase labels for any train video"):
        require_labels(without_labels("train"), "test", ["classification"])
    with pytest.raises(EvaluationError, match="no action labels"):
        require_labels(manifest, "test", ["actions"])


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
    readers = readers_to_compare(
        runs_dir, features_dir, "tea", [read_run(runs_dir, "first")], baselines=[("absent", "cls")]
    )
    scope = scope_of_all(manifest, "test", EvaluationOptions())
    with ThreadPoolExecutor(1) as pool:
        results = pool.submit(compare, manifest, readers, scope).result()
    assert [row.name for row in results.rows["trimmed"]] == [
        "Time only",
        "Untrained (first)",
        "first",
    ]
    assert "absent has no features" in caplog.text
    (folder / "embeddings-untrained" / "ego" / "test_ego_0.h5").unlink()
    assert [row.name for row in compare(manifest, readers, scope).rows["standard"]] == [
        "Time only",
        "first",
    ]
    assert capfd.readouterr() == ("", "")
