from dataclasses import replace

import numpy as np
import pytest
from sklearn.svm import SVC

from byov.evaluate import classification
from byov.evaluate.classification import fit_classifiers, phase_f1, phase_f1_of_each
from byov.evaluate.frames import SETTINGS, VIEWS, Missing


@pytest.fixture
def train(make_frames):
    return make_frames(1, phases=5, noise=1.5)


@pytest.fixture
def test(make_frames):
    return make_frames(2, phases=5, noise=1.5)


def predicted(train, test, setting):
    """Labels of the test frames by SVC itself."""
    train_view, test_view = VIEWS[setting]
    fitted, scored = train.of_view(train_view), test.of_view(test_view)
    return SVC(decision_function_shape="ovo").fit(fitted.embeddings, fitted.labels).predict(scored.embeddings)


def test_agrees_with_svc(naive, train, test):
    scores = phase_f1(train, test)
    assert scores == pytest.approx(naive.phase_f1(train, test), abs=1e-12)
    assert list(scores) == list(SETTINGS)
    assert 0.2 < scores["regular"] < 0.9


@pytest.mark.parametrize("setting", SETTINGS)
def test_predicts_every_frame_as_svc_does(train, test, setting):
    """If the test labels are what SVC predicts, a classifier that predicts the same scores exactly 1."""
    _, scored = VIEWS[setting]
    of_view = test.of_view(scored)
    if scored is None:
        test = replace(of_view, labels=predicted(train, test, setting))
    else:
        labels = test.labels.copy()
        labels[test.is_ego[test.video_of_frame] == scored] = predicted(train, test, setting)
        test = replace(test, labels=labels)
    assert phase_f1(train, test)[setting] == 1.0


def test_equal_votes_go_to_the_first_phase_as_in_svc(join):
    """Three phases around a point that each pair decides in a circle, and many points near it."""
    random = np.random.default_rng(0)
    centers = np.array([[np.cos(a), np.sin(a)] for a in (0.1, 2.2, 4.3)])
    labels = np.repeat([0, 1, 2], 40)
    train = join([centers[labels] + random.normal(0, 1.5, (120, 2))] * 2, [labels] * 2, [True, False])
    points = random.normal(0, 0.5, (3000, 2)).astype(np.float32)
    machine = SVC(decision_function_shape="ovo").fit(train.embeddings, train.labels)
    decisions = machine.decision_function(points) > 0  # of 0-1, 0-2, 1-2
    circles = (decisions[:, 0] == decisions[:, 2]) & (decisions[:, 0] != decisions[:, 1])
    assert circles.any()
    test = join([points], [machine.predict(points)], [True])
    assert phase_f1(train, test)["regular"] == 1.0


def test_undecided_pairs_go_to_the_second_phase_as_in_svc(join):
    """Two frames as mirror images, and the point between them."""
    train = join([[[-1.0], [1.0]]], [[0, 1]], [True])
    machine = SVC(decision_function_shape="ovo").fit(train.embeddings, train.labels)
    assert machine.decision_function([[0.0]]) == 0
    assert machine.predict([[0.0]]) == 1
    assert phase_f1(train, join([[[0.0]]], [[1]], [True]))["regular"] == 1.0


def test_blocks_do_not_matter(monkeypatch, train, test):
    whole = phase_f1(train, test)
    monkeypatch.setattr(classification, "BLOCK_ELEMENTS", 700)
    assert phase_f1(train, test) == whole


def test_several_training_sets_at_once(make_frames, train, test):
    other = make_frames(3, phases=5)
    assert phase_f1_of_each([train, other], test) == [phase_f1(train, test), phase_f1(other, test)]


def test_a_test_phase_that_was_never_seen_counts_as_wrong(naive, train, test):
    seen = replace(train, labels=np.minimum(train.labels, 3))
    scores = phase_f1(seen, test)
    assert scores == pytest.approx(naive.phase_f1(seen, test))
    assert scores["regular"] < phase_f1(train, test)["regular"] + 0.1


def test_one_phase_cannot_be_told_from_others(train, test):
    labels = np.where(train.is_ego[train.video_of_frame], 2, train.labels)
    scores = phase_f1(replace(train, labels=labels), test)
    assert scores["ego2exo"] == Missing("only phase 2 in the training videos")
    assert isinstance(scores["exo2ego"], float)
    assert isinstance(scores["regular"], float)


def test_an_absent_view_leaves_the_other_settings(train, test):
    scores = phase_f1(train.of_view(True), test)
    assert isinstance(scores["regular"], float)
    assert isinstance(scores["ego2exo"], float)
    assert scores["exo2ego"] == Missing("no exo training videos")
    scores = phase_f1(train, test.of_view(True))
    assert scores["ego2exo"] == Missing("no exo test videos")


def test_labels_are_needed(train, test):
    assert phase_f1(train, replace(test, labels=None)) == dict.fromkeys(SETTINGS, Missing("no phase labels"))


def test_a_constant_embedding_is_scored(naive, train, test):
    flat, flat_test = (replace(frames, embeddings=np.ones_like(frames.embeddings)) for frames in (train, test))
    assert phase_f1(flat, flat_test) == pytest.approx(naive.phase_f1(flat, flat_test))


@pytest.mark.parametrize("count", [2, 3, 10])
def test_few_different_frames_are_classified_as_by_svc(naive, train, test, count):
    """Equal frames are fitted as one that counts as often."""
    values = np.random.default_rng(0).standard_normal((count, 8)).astype(np.float32)

    def squeezed(frames):
        at = frames.labels * count // 5 + np.random.default_rng(1).integers(0, 2, len(frames.labels))
        return replace(frames, embeddings=values[at % count])

    scores = phase_f1(squeezed(train), squeezed(test))
    assert fit_classifiers(train)["regular"].values is None
    assert fit_classifiers(squeezed(train))["regular"].values is not None
    assert scores == pytest.approx(naive.phase_f1(squeezed(train), squeezed(test)), abs=1e-12)


def test_embeddings_far_from_the_origin(naive, train, test):
    far, far_test = (replace(frames, embeddings=frames.embeddings + np.float32(5000)) for frames in (train, test))
    assert phase_f1(far, far_test) == pytest.approx(naive.phase_f1(far, far_test), abs=1e-4)


def test_the_same_training_frames_are_learned_once(train, test):
    fit_classifiers.cache_clear()
    assert phase_f1(train, test) == phase_f1(train, test)
    assert phase_f1(train, test.of_view(True))["exo2ego"] == phase_f1(train, test)["exo2ego"]
    assert fit_classifiers.cache_info().misses == 1
    phase_f1(replace(train), test)
    assert fit_classifiers.cache_info().misses == 2
