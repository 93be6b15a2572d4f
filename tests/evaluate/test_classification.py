import sys
from dataclasses import replace
from importlib.util import find_spec

import numpy as np
import pytest
from sklearn.metrics import f1_score

from byov.evaluate import classification
from byov.evaluate.classification import (
    draw_videos,
    few_shot_f1,
    fit_classifiers,
    phase_f1,
    stratified_sample,
    svm_solver,
    weighted_f1,
)
from byov.evaluate.frames import SETTINGS, Missing
from byov.evaluate.tasks import TASKS, EvaluationOptions, score_frames


@pytest.fixture
def train(make_frames):
    return make_frames(1, ego=11, exo=12, phases=5, noise=1.5)


@pytest.fixture
def test(make_frames):
    return make_frames(2, phases=5, noise=1.5)


def test_unseen_phases_and_constant_embeddings_are_scored(naive, train, test):
    seen = replace(train, labels=np.minimum(train.labels, 3))
    flat, flat_test = (
        replace(frames, embeddings=np.ones_like(frames.embeddings)) for frames in (train, test)
    )
    for frames in ((seen, test), (flat, flat_test)):
        assert phase_f1(*frames) == pytest.approx(naive.phase_f1(*frames))


def test_missing_views_labels_and_phases_have_a_reason(train, test):
    scores = phase_f1(train.of_view(True), test)
    assert isinstance(scores["regular"], float)
    assert isinstance(scores["ego2exo"], float)
    assert scores["exo2ego"] == Missing("no exo training videos")
    assert phase_f1(train, test.of_view(True))["ego2exo"] == Missing("no exo test videos")
    assert phase_f1(train, replace(test, labels=None)) == dict.fromkeys(
        SETTINGS, Missing("no phase labels")
    )
    single = np.where(train.is_ego[train.video_of_frame], 2, train.labels)
    scores = phase_f1(replace(train, labels=single), test)
    assert scores["ego2exo"] == Missing("only phase 2 in the training videos")
    assert isinstance(scores["exo2ego"], float)


def test_many_training_frames_are_sampled(train, test, monkeypatch):
    fit_classifiers.cache_clear()
    all_frames = phase_f1(train, test)
    size = len(train.embeddings) // 2
    monkeypatch.setattr(classification, "MAX_TRAINING_FRAMES", size)
    fit_classifiers.cache_clear()
    sampled = score_frames(train, test, [TASKS["classification"]], EvaluationOptions())
    score = sampled["classification/regular"]
    assert score.value != all_frames["regular"]
    assert score.value == pytest.approx(all_frames["regular"], abs=0.05)
    assert f"sample of {size:,} of {len(train.embeddings):,} training frames" in score.remark
    few_shot = few_shot_f1(train, test, fractions=(1.0,))[1.0]["regular"]
    assert (few_shot.value, few_shot.remark) == (score.value, score.remark)


def test_samples_have_the_phases_of_all_frames(train):
    sample = stratified_sample(train.phases, 200)
    assert (len(sample), len(np.unique(sample))) == (200, 200)
    expected = np.bincount(train.phases) * 200 / len(train.phases)
    assert np.abs(np.bincount(train.phases[sample]) - expected).max() < 1
    assert (stratified_sample(train.phases, 10**6) == np.arange(len(train.phases))).all()


def test_training_frames_are_fitted_once(train, test):
    fit_classifiers.cache_clear()
    assert phase_f1(train, test) == phase_f1(train, test)
    assert phase_f1(train, test.of_view(True))["exo2ego"] == phase_f1(train, test)["exo2ego"]
    assert fit_classifiers.cache_info().misses == 1


def test_weighted_f1_matches_scikit_learn():
    random = np.random.default_rng(0)
    true = random.integers(0, 3, 100)
    predicted = random.integers(0, 4, 100)
    confusion = np.zeros((4, 4))
    np.add.at(confusion, (true, predicted), 1)
    assert weighted_f1(confusion) == pytest.approx(
        f1_score(true, predicted, average="weighted", zero_division=0)
    )


@pytest.mark.parametrize(("fraction", "draws"), [(0.1, 10), (0.5, 2), (1.0, 1), (0.2, 5), (0.3, 3)])
@pytest.mark.parametrize(("ego", "exo"), [(61, 57), (10, 108), (29, 48)])
def test_few_shot_draws_are_disjoint_and_have_both_views(fraction, draws, ego, exo):
    is_ego = np.arange(ego + exo) < ego
    sets = draw_videos(is_ego, fraction, seed=0)
    assert len(sets) == draws
    together = np.concatenate(sets)
    assert len(set(together.tolist())) == len(together)
    for videos in sets:
        assert abs(len(videos) - fraction * (ego + exo)) <= 2
        assert is_ego[videos].any()
        assert not is_ego[videos].all()


def test_few_shot_draws_depend_on_the_seed_only():
    is_ego = np.arange(40) < 20
    one, same, other = (np.concatenate(draw_videos(is_ego, 0.1, seed)) for seed in (1, 1, 2))
    assert np.array_equal(one, same)
    assert not np.array_equal(one, other)
    assert [len(videos) for videos in draw_videos(np.arange(6) < 3, 0.1, seed=0)] == [2, 2, 2]
    assert draw_videos(np.array([], bool), 0.1, seed=0) == []
    for fraction in (0, -0.1, 1.5, float("nan")):
        with pytest.raises(ValueError, match="fraction"):
            draw_videos(is_ego, fraction, seed=0)


def test_few_shot_is_the_mean_over_draws(naive, train, test):
    scores = few_shot_f1(train, test, fractions=(0.5, 1.0), seed=3)
    singles = [
        naive.phase_f1(train.select(videos), test) for videos in draw_videos(train.is_ego, 0.5, 3)
    ]
    for setting in SETTINGS:
        values = [single[setting] for single in singles]
        assert scores[0.5][setting].value == pytest.approx(np.mean(values))
        assert scores[0.5][setting].deviation == pytest.approx(np.std(values, ddof=1))
        assert scores[0.5][setting].draws == 2
    assert {setting: score.value for setting, score in scores[1.0].items()} == phase_f1(train, test)
    assert scores[1.0]["regular"].deviation is None


@pytest.mark.parametrize("phases", [2, 3, 4])
@pytest.mark.parametrize("solver", ["scikit-learn", "scikit-learn-intelex"])
def test_both_solvers_match_the_reference(naive, make_frames, monkeypatch, solver, phases):
    if solver == "scikit-learn":
        monkeypatch.setitem(sys.modules, "sklearnex", None)
    elif find_spec("sklearnex") is None:
        pytest.skip("the extra `fast` is not installed")
    assert svm_solver() == solver
    train = make_frames(5, ego=20, exo=20, phases=phases)
    test = make_frames(6, ego=200, exo=200, phases=phases)
    assert len(test.labels) > 10_000  # one prediction changes F1 by less than 1e-4
    tolerance = 1e-12 if solver == "scikit-learn" else 2e-4
    scores = phase_f1(train, test)
    assert scores == pytest.approx(naive.phase_f1(train, test), abs=tolerance)
    assert list(scores) == list(SETTINGS)
