from dataclasses import replace

import numpy as np
import pytest

from byov.evaluate.classification import phase_f1
from byov.evaluate.few_shot import FewShot, draw_videos, few_shot_f1
from byov.evaluate.frames import SETTINGS, Missing


@pytest.fixture
def train(make_frames):
    return make_frames(1, ego=11, exo=12)


@pytest.fixture
def test(make_frames):
    return make_frames(2)


@pytest.mark.parametrize(("share", "draws"), [(0.1, 10), (0.5, 2), (1.0, 1), (0.2, 5), (0.3, 3)])
@pytest.mark.parametrize(("ego", "exo"), [(61, 57), (10, 108), (29, 48)])
def test_draws_are_disjoint_of_the_right_size_and_of_both_views(share, draws, ego, exo):
    is_ego = np.arange(ego + exo) < ego
    sets = draw_videos(is_ego, share, seed=0)
    assert len(sets) == draws
    together = np.concatenate(sets)
    assert len(set(together.tolist())) == len(together)
    for videos in sets:
        assert abs(len(videos) - share * (ego + exo)) <= 2
        assert is_ego[videos].any()
        assert not is_ego[videos].all()


def test_a_full_draw_is_all_videos_in_their_order():
    (videos,) = draw_videos(np.arange(7) < 3, 1.0, seed=5)
    assert videos.tolist() == list(range(7))


def test_the_seed_chooses():
    is_ego = np.arange(40) < 20
    one, same, other = (draw_videos(is_ego, 0.1, seed) for seed in (1, 1, 2))
    assert all(np.array_equal(a, b) for a, b in zip(one, same, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def test_few_videos_give_fewer_draws_and_none_is_empty():
    sets = draw_videos(np.arange(6) < 3, 0.1, seed=0)
    assert [len(videos) for videos in sets] == [2, 2, 2]
    assert draw_videos(np.array([], bool), 0.1, seed=0) == []


@pytest.mark.parametrize("share", [0, -0.1, 1.5, float("nan")])
def test_impossible_shares_are_refused(share):
    with pytest.raises(ValueError, match="share"):
        draw_videos(np.arange(6) < 3, share, seed=0)


def test_mean_and_deviation_over_draws(naive, train, test):
    scores = few_shot_f1(train, test, shares=(0.5,), seed=3)[0.5]
    singles = [naive.phase_f1(train.select(videos), test) for videos in draw_videos(train.is_ego, 0.5, 3)]
    for setting in SETTINGS:
        given = [single[setting] for single in singles]
        assert scores[setting].mean == pytest.approx(np.mean(given))
        assert scores[setting].std == pytest.approx(abs(given[0] - given[1]) / 2**0.5)
        assert scores[setting].draws == 2


def test_all_videos_are_plain_classification(train, test):
    full = phase_f1(train, test)
    scores = few_shot_f1(train, test)
    assert list(scores) == [0.1, 0.5, 1.0]
    assert {setting: of.mean for setting, of in scores[1.0].items()} == full
    assert scores[1.0]["regular"].std == Missing("only one draw")
    assert scores[0.1]["regular"].draws == 10
    assert scores[0.1]["regular"].mean < scores[1.0]["regular"].mean


def test_a_known_full_score_is_not_computed_again(train, test):
    known = dict.fromkeys(SETTINGS, 0.25)
    scores = few_shot_f1(train, test, shares=(1.0,), full=known)
    assert scores[1.0]["ego2exo"] == FewShot(0.25, Missing("only one draw"), 1)


def test_draws_that_cannot_be_scored_are_left_out(train, test):
    """Of the ego videos only two show more than one phase."""
    labels = train.labels.copy()
    labels[(train.video_of_frame >= 2) & (train.video_of_frame < 11)] = 0
    scores = few_shot_f1(replace(train, labels=labels), test, shares=(0.1,))[0.1]
    assert scores["ego2exo"].draws <= 2
    assert scores["exo2ego"].draws == 10


def test_missing_labels_and_views(train, test):
    scores = few_shot_f1(replace(train, labels=None), test)
    assert scores[0.5]["regular"].mean == Missing("no phase labels")
    assert scores[0.5]["regular"].draws == 0
    scores = few_shot_f1(train.of_view(True), test, shares=(0.5,))[0.5]
    assert scores["exo2ego"].mean == Missing("no exo training videos")
    assert isinstance(scores["ego2exo"].mean, float)
