import numpy as np
import pytest

from byov.evaluate.bootstrap import draw_weights, intervals
from byov.evaluate.classification import weighted_f1
from byov.evaluate.evaluation import score
from byov.evaluate.task import EvaluationOptions, TaskData
from byov.evaluate.tasks import TASKS

ESTIMATED = ("classification", "retrieval", "progression", "tau")
OPTIONS = EvaluationOptions(ks=(1, 5), bootstrap=200)


@pytest.fixture
def material(make_frames):
    train = make_frames([30, 35, 40, 45], [True, False, True, False], seed=1)
    return TaskData(make_frames([20, 25, 30, 35, 40, 22], [True, False] * 3, seed=2), train)


@pytest.fixture
def clips(make_frames, material):
    test = make_frames([20, 25, 30, 35, 40, 22], [True, True, False, False, True, True], seed=2)
    return TaskData(test, material.train, recordings=np.array([0, 0, 1, 1, 2, 2]))


@pytest.mark.parametrize("kind", ["material", "clips"])
def test_each_video_once_gives_the_scores_themselves(kind, request):
    of_kind = request.getfixturevalue(kind)
    once = np.ones((1, len(of_kind.test.lengths)))
    scores = score(of_kind, ESTIMATED, OPTIONS)
    estimates = {
        name: values for task in ESTIMATED for name, values in TASKS[task].estimate(of_kind, once, OPTIONS).items()
    }
    assert estimates.keys() == scores.keys()
    for name, of_name in scores.items():
        if of_name.value is None:
            assert np.isnan(estimates[name]).all()
        else:
            assert estimates[name] == pytest.approx([of_name.value]), name


def test_intervals_hold_the_scores_and_repeat_with_the_seed(material):
    scores = score(material, ESTIMATED, OPTIONS)
    ends = intervals(material, ESTIMATED, OPTIONS)
    for name, (low, high) in ends.items():
        assert low <= high
        assert low - 0.1 <= scores[name].value <= high + 0.1
    assert ends == intervals(material, ESTIMATED, OPTIONS)
    assert ends != intervals(material, ESTIMATED, EvaluationOptions(ks=(1, 5), bootstrap=200, seed=1))


def test_videos_are_drawn_within_their_view_and_sub_clips_together(material, clips):
    weights = draw_weights(material, 50, seed=0)
    assert (weights[:, material.test.is_ego].sum(axis=1) == 3).all()
    assert (weights.sum(axis=1) == 6).all()
    assert weights.std() > 0
    together = draw_weights(clips, 50, seed=0)
    np.testing.assert_array_equal(together[:, ::2], together[:, 1::2])


def test_weighted_f1_is_scikit_learns():
    from sklearn.metrics import f1_score

    random = np.random.default_rng(0)
    true, named = random.integers(0, 3, 100), random.integers(0, 4, 100)
    confusion = np.zeros((4, 4))
    np.add.at(confusion, (true, named), 1)
    assert weighted_f1(confusion) == pytest.approx(f1_score(true, named, average="weighted", zero_division=0))


def test_one_video_alone_has_no_spread_and_no_tau(make_frames):
    material = TaskData(make_frames([20], [True]), make_frames([20, 20], [True, False], seed=1))
    ends = intervals(material, ESTIMATED, OPTIONS)
    assert ends["classification/regular"][0] == ends["classification/regular"][1]
    assert not any(name.startswith("kendalls_tau") for name in ends)
