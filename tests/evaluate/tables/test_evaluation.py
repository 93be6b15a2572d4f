import json
from dataclasses import replace

import numpy as np
import pytest

from byov.cache.manifest import VideoEntry
from byov.errors import EvaluationError
from byov.evaluate.action_probe import video_embeddings
from byov.evaluate.embedding_files import evaluate_own
from byov.evaluate.embeddings import CachedFeatures, RunEmbeddings, TimeOnly
from byov.evaluate.evaluation import (
    evaluate,
    options_for,
    read_task_data,
    refuse_missing_labels,
    row_of,
    score,
    tasks_of,
)
from byov.evaluate.frames import Frames
from byov.evaluate.task import EvaluationOptions, TaskData
from byov.evaluate.tasks import TASKS

CLS = ("tea", "openai--clip-vit-base-patch16", "cls")  # of the cache


@pytest.mark.parametrize(("name", "time_column"), [("three_phases", False), ("missing_phase_time_column", True)])
def test_the_golden_files_are_met(golden, name, time_column):
    path = golden / f"{name}.npz"
    expected = json.loads(str(np.load(path)["expected"]))
    options = EvaluationOptions(time_column=time_column, training_progression=True)
    scores = evaluate_own(path, None, options).rows["standard"][0].nested_scores()
    assert scores["progression"].pop("time_column") == expected["progression"].pop("time_column") is time_column
    assert scores["classification"] == pytest.approx(expected["classification"], abs=1e-4)
    assert scores["retrieval"].keys() == expected["retrieval"].keys()
    for k, of_k in expected["retrieval"].items():
        assert scores["retrieval"][k] == pytest.approx(of_k, abs=1e-6)
    assert scores["progression"] == pytest.approx(expected["progression"], abs=1e-6)
    assert scores["kendalls_tau"] == pytest.approx(expected["kendalls_tau"], abs=1e-6)


def test_a_run_its_untrained_model_features_and_time(runs_dir, features_dir, write_run):
    write_run()
    run = evaluate(RunEmbeddings(runs_dir, features_dir, "first"), protocol="trimmed", split="val")
    untrained = evaluate(RunEmbeddings(runs_dir, features_dir, "first", untrained=True))
    features = evaluate(CachedFeatures(features_dir, *CLS), tasks=["retrieval"])
    time = evaluate(TimeOnly(features_dir, "tea"), options=EvaluationOptions(ks=(1,)))
    # The fixture's embeddings tell the phase, its untrained ones nothing, and its phases are thirds of the time.
    assert run.value("classification/regular") > 0.7 > 0.5 > untrained.value("classification/regular")
    assert features.nested_scores().keys() == {"retrieval"}
    assert time.nested_scores()["retrieval"].keys() == {"map@1"}
    assert time.value("classification/ego2exo") > 0.95
    assert time.value("kendalls_tau/all") > 0.95
    assert time.value("progression/val") > 0.95
    json.dumps([row.as_dict() for row in (run, untrained, features, time)])


def test_few_shot_carries_its_spread_and_number_of_draws(features_dir):
    row = evaluate(TimeOnly(features_dir, "tea"), tasks=["classification", "few-shot"])
    half = row.scores["few_shot/50%/regular"]
    assert half.draws == 2
    assert half.deviation >= 0
    assert row.value("few_shot/100%/regular") == row.value("classification/regular")


def test_tasks_follow_the_labels(manifest):
    assert "actions" not in tasks_of(manifest)
    assert tasks_of(replace(manifest, phases=())) == ("tau",)
    assert tasks_of(replace(manifest, phases=(), actions=("run",))) == ("actions",)
    assert tasks_of(replace(manifest, actions=("run",))) == tuple(task for task in TASKS if task != "few-shot")


def test_a_missing_label_says_which_tasks_need_it(manifest):
    bare = replace(manifest, videos=tuple(replace(video, labels=None) for video in manifest.videos))
    for task in ("classification", "retrieval", "progression", "few-shot"):
        with pytest.raises(EvaluationError, match=r"no phase labels of .* need them, tau and actions do not"):
            refuse_missing_labels(bare, "test", [task])
    refuse_missing_labels(bare, "test", ["tau"])
    with pytest.raises(EvaluationError, match="no actions of whole videos"):
        refuse_missing_labels(bare, "test", ["actions"])


def test_retrieval_needs_no_labels_of_training_videos(manifest):
    videos = tuple(replace(video, labels=None) if video.split == "train" else video for video in manifest.videos)
    refuse_missing_labels(replace(manifest, videos=videos), "test", ["retrieval"])


@pytest.mark.parametrize("protocol", ["standard", "trimmed"])
def test_phase_tasks_are_scored_on_what_is_labeled(features_dir, manifest, protocol):
    bare, options = {"test_ego_0", "train_exo_1"}, EvaluationOptions(bootstrap=20)

    def scored(videos):
        replace(manifest, videos=tuple(videos)).save(features_dir / "tea" / "manifest.json")
        reader = CachedFeatures(features_dir, *CLS)
        return evaluate(reader, protocol=protocol, options=options)

    whole = scored(manifest.videos)
    partly = scored(replace(video, labels=None) if video.id in bare else video for video in manifest.videos)
    without = scored(video for video in manifest.videos if video.id not in bare)
    assert whole.notes == without.notes == ()
    told = "1 of 6 scored videos" if protocol == "standard" else "2 of 12 scored sub-clips"
    assert [note.partition(" have no")[0] for note in partly.notes] == [told, "1 of 6 training videos"]
    for name, found in partly.scores.items():
        assert found == (whole if name.startswith("kendalls_tau") else without).scores[name]
    assert partly.value("retrieval/map@5/regular") != whole.value("retrieval/map@5/regular")


@pytest.mark.parametrize("protocol", ["standard", "trimmed"])
def test_phase_tasks_see_no_frame_without_a_label(features_dir, manifest, protocol):
    """Where a label is -1, classification and retrieval are what they are without the frame."""
    videos = (
        replace(video, labels=(-1,) * 5 + video.labels[5:-9] + (-1,) * 9) if video.id.endswith("_0") else video
        for video in manifest.videos
    )
    replace(manifest, videos=tuple(videos)).save(features_dir / "tea" / "manifest.json")
    reader = CachedFeatures(features_dir, "tea", "openai--clip-vit-base-patch16", "cls")
    tasks = ("classification", "retrieval", "progression")
    row = evaluate(reader, protocol=protocol, tasks=tasks, options=EvaluationOptions(bootstrap=20))
    data = read_task_data(reader, "test", protocol, tasks)
    cut = replace(data, test=without_unlabeled(data.test), train=without_unlabeled(data.train))
    expected = row_of("cut", "npz", cut, tasks, EvaluationOptions(bootstrap=20), {})
    assert row.notes
    assert expected.notes == ()
    for name, found in row.scores.items():
        assert found.value is not None, name
        assert (found == expected.scores[name]) is not name.startswith("progression"), name


def without_unlabeled(frames):
    """Frame by frame; a sub-clip without any label does not come up here."""
    kept = np.flatnonzero(frames.labels >= 0)
    lengths = np.bincount(frames.video_of_frame[kept], minlength=len(frames.lengths))
    return Frames(frames.embeddings[kept], frames.labels[kept], lengths, frames.is_ego, frames.names)


def test_a_split_without_any_label_is_refused_and_one_with_some_is_not(manifest):
    videos = tuple(replace(video, labels=None) if video.id.endswith("_0") else video for video in manifest.videos)
    refuse_missing_labels(replace(manifest, videos=videos), "test", ["classification"])
    videos = tuple(replace(video, labels=None) if video.split == "train" else video for video in manifest.videos)
    with pytest.raises(EvaluationError, match=r"no phase labels of any train video; classification, .* need them"):
        refuse_missing_labels(replace(manifest, videos=videos), "test", ["classification"])


def test_pour_liquid_gets_the_time_column():
    assert options_for("pour_liquid", EvaluationOptions()).time_column
    assert not options_for("pour_milk", EvaluationOptions()).time_column
    assert options_for("pour_milk", EvaluationOptions(time_column=True)).time_column


def test_training_videos_are_read_only_for_tasks_that_learn(features_dir):
    reader = CachedFeatures(features_dir, *CLS)
    for view in ("ego", "exo"):
        for path in (reader.folder / view).glob("train_*"):
            path.unlink()
    assert evaluate(reader, tasks=["retrieval", "tau"]).value("kendalls_tau/all") is not None
    with pytest.raises(EvaluationError, match="6 of 6 train videos"):
        evaluate(reader, tasks=["classification"])


def test_a_phase_that_no_training_video_has_is_noted(features_dir, manifest):
    videos = tuple(
        replace(video, labels=tuple(min(label, 1) for label in video.labels)) if video.split == "train" else video
        for video in manifest.videos
    )
    replace(manifest, videos=videos).save(features_dir / "tea" / "manifest.json")
    row = evaluate(TimeOnly(features_dir, "tea"), tasks=["classification"])
    assert row.notes == ("no training video has phase 2 (put back): its test frames count as missed",)
    assert 0 < row.value("classification/regular") < 0.8


def test_without_one_view_its_settings_are_missing_and_the_others_are_scored(features_dir, manifest):
    kept = tuple(video for video in manifest.videos if video.view == "ego" or video.split != "test")
    replace(manifest, videos=kept).save(features_dir / "tea" / "manifest.json")
    row = evaluate(TimeOnly(features_dir, "tea"))
    assert row.scores["classification/ego2exo"].missing == "no exo test videos"
    assert row.scores["retrieval/map@10/exo2ego"].missing is not None
    assert row.value("classification/regular") is not None
    assert row.value("kendalls_tau/ego-ego") is not None
    assert row.nested_scores()["classification"]["ego2exo"] is None


def test_sub_clips_of_one_video_do_not_find_each_other(make_frames):
    # Two segments of each recording hold the same frames: found, they would always be the nearest.
    frames = make_frames([12] * 3, [True, False, True])
    twice = frames.select(np.array([0, 0, 1, 1, 2, 2]))
    options = EvaluationOptions(ks=(1,), tau_stride=1)
    whole = score(TaskData(frames), ["retrieval", "tau"], options)
    doubled = score(TaskData(twice, recordings=np.array([0, 0, 1, 1, 2, 2])), ["retrieval", "tau"], options)
    careless = score(TaskData(twice), ["retrieval", "tau"], options)
    for name in ("retrieval/map@1/regular", "retrieval/map@1/ego2exo", "kendalls_tau/all", "kendalls_tau/ego-exo"):
        assert doubled[name].value == pytest.approx(whole[name].value)
    assert careless["retrieval/map@1/regular"].value == 1.0 > doubled["retrieval/map@1/regular"].value


def test_the_segments_of_a_recording_are_joined(make_frames):
    data = TaskData(make_frames([5, 6, 7], [True, True, False]), recordings=np.array([0, 0, 1]))
    assert data.joined_test.lengths.tolist() == [11, 7]
    assert data.joined_test.is_ego.tolist() == [True, False]


def test_trimmed_data_knows_its_recordings(features_dir):
    reader = TimeOnly(features_dir, "tea")
    assert read_task_data(reader, "test", "standard", ["tau"]).recordings is None
    trimmed = read_task_data(reader, "test", "trimmed", ["tau"])
    assert trimmed.recordings.tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5]
    assert trimmed.train is None


def action_videos():
    for split, count in (("train", 6), ("test", 4)):
        for view in ("ego", "exo"):
            for index in range(count):
                yield VideoEntry(f"{split}_{view}_{index}", view, split, 5 + index, 30.0, None, (index % 2,))


def test_actions_come_from_the_manifest(features_dir, manifest):
    changed = replace(manifest, phases=(), actions=("sit", "run"), videos=tuple(action_videos()))
    changed.save(features_dir / "tea" / "manifest.json")
    reader = TimeOnly(features_dir, "tea")
    data = read_task_data(reader, "test", "standard", ["actions"])
    assert data.test_actions.tolist() == [[True, False], [False, True]] * 4
    telling = data.test_actions[:, 1].astype(np.float32)
    test = frames_of(data.test, telling)
    train = frames_of(data.train, data.train_actions[:, 1].astype(np.float32))
    scores = score(replace(data, test=test, train=train), ["actions"], EvaluationOptions())
    assert {name: of_name.value for name, of_name in scores.items()} == {
        "actions/regular": 1.0,
        "actions/ego2exo": 1.0,
        "actions/exo2ego": 1.0,
    }
    row = evaluate(reader, protocol="trimmed")
    assert row.scores["actions/regular"].missing == "actions are known of whole videos only"


def frames_of(frames: Frames, of_video: np.ndarray) -> Frames:
    embeddings = np.repeat(of_video, frames.lengths)[:, None]
    return Frames(embeddings, None, frames.lengths, frames.is_ego, frames.names)


def test_own_embeddings_without_labels_are_scored_by_tau(tmp_path, golden, caplog):
    caplog.set_level("INFO")
    with np.load(golden / "three_phases.npz") as file:
        np.savez(tmp_path / "bare.npz", **{key: file[key] for key in file if "labels" not in key})
    own = evaluate_own(tmp_path / "bare.npz", None, EvaluationOptions())
    assert own.scope.tasks == ("tau",)
    assert "no train_labels and test_labels" in caplog.text
    with pytest.raises(EvaluationError, match=r"no test_labels; .* need phase labels, tau does not"):
        evaluate_own(tmp_path / "bare.npz", ["retrieval"], EvaluationOptions())


def test_own_embeddings_have_no_actions(golden):
    with pytest.raises(EvaluationError, match="does not say the actions"):
        evaluate_own(golden / "three_phases.npz", ["actions"], EvaluationOptions())


def test_own_embeddings_of_two_widths_are_refused(tmp_path, golden):
    with np.load(golden / "three_phases.npz") as file:
        changed = {key: file[key] for key in file} | {"test_embeddings": file["test_embeddings"][:, :3]}
    np.savez(tmp_path / "two.npz", **changed)
    with pytest.raises(EvaluationError, match="16 in train, 3 in test"):
        evaluate_own(tmp_path / "two.npz", None, EvaluationOptions())


def test_videos_too_many_to_hold_are_read_as_their_means(features_dir):
    reader = TimeOnly(features_dir, "tea")
    means, frames = reader.video_means("test"), reader.frames("test")
    np.testing.assert_allclose(means.embeddings, video_embeddings(frames), rtol=1e-6)
    assert (means.names, means.is_ego.tolist(), set(means.lengths)) == (frames.names, frames.is_ego.tolist(), {1})


def test_standardized_videos_have_no_mean_for_the_action_probe(features_dir, manifest):
    videos = tuple(replace(video, actions=(number % 2,)) for number, video in enumerate(manifest.videos))
    replace(manifest, actions=("run", "sit"), videos=videos).save(features_dir / "tea" / "manifest.json")
    assert evaluate(CachedFeatures(features_dir, *CLS)).value("actions/regular") is not None
    standardized = CachedFeatures(features_dir, *CLS, standardized=True)
    row = evaluate(standardized)
    assert "actions" not in row.nested_scores()
    assert row.value("retrieval/map@10/regular") > 0.5
    with pytest.raises(EvaluationError, match="the mean of every standardized video is zero, and actions see nothing"):
        evaluate(standardized, tasks=["actions"])


def test_few_candidates_are_said(make_frames):
    frames = make_frames([4, 6], [True, False])
    scores = score(TaskData(frames), ["retrieval"], EvaluationOptions(ks=(3, 5)))
    assert scores["retrieval/map@3/regular"].remark is None
    assert scores["retrieval/map@5/regular"].remark == "some frames have only 4 candidates: all are ranked"
    assert scores["retrieval/map@5/exo2ego"].remark == "some frames have only 4 candidates: all are ranked"
    assert scores["retrieval/map@5/ego2exo"].remark is None
