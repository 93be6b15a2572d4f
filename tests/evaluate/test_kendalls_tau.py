from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import kendalltau

from byov.evaluate.frames import Missing
from byov.evaluate.kendalls_tau import PAIRS, kendalls_tau, tau_for_selection, taus_of_columns

LINE = np.linspace(0, 1, 30)[:, None]


@pytest.fixture
def test(make_frames):
    return make_frames(5, ego=3, exo=3)


@pytest.fixture
def collapsed(join):
    """Two aligned videos and two constant ones, so that tau is defined for 2 of 12 pairs."""
    constant = np.full((30, 1), 0.5)
    return join([LINE, LINE + 0.01, constant, constant], None, [True, False, True, False])


def means(frames, **options):
    scores = kendalls_tau(frames, **options)
    return {
        views: Missing(tau.missing) if tau.missing else tau.value for views, tau in scores.items()
    }


@pytest.mark.parametrize("stride", [1, 3, 5])
def test_tau_matches_the_naive_version(naive, test, stride):
    taus = means(test, stride=stride)
    assert list(taus) == list(PAIRS)
    assert taus["all"] == pytest.approx(naive.kendalls_tau(test, stride=stride), abs=1e-12)
    for view in ("ego", "exo"):
        expected = naive.kendalls_tau(test.of_view(view == "ego"), stride=stride)
        assert taus[f"{view}-{view}"] == pytest.approx(expected, abs=1e-12)
    # There are 6 + 6 ordered pairs within a view and 9 + 9 across views.
    parts = 6 * taus["ego-ego"] + 6 * taus["exo-exo"] + 9 * taus["ego-exo"] + 9 * taus["exo-ego"]
    assert taus["all"] == pytest.approx(parts / 30)


def test_query_video_comes_first(join):
    """Check that tau is lower if the query video has more frames, some of which share a nearest
    frame.
    """
    taus = means(join([LINE, np.linspace(0, 1, 60)[:, None]], None, [True, False]), stride=1)
    assert taus["ego-exo"] == pytest.approx(1)
    assert 0.9 < taus["exo-ego"] < 0.995
    assert taus["ego-ego"] == Missing("only one ego test video")


def test_tau_of_columns_matches_scipy():
    random = np.random.default_rng(0)
    values = np.stack(
        [random.permutation(20), random.integers(0, 4, 20), np.full(20, 7), np.arange(20)], axis=1
    )
    expected = [kendalltau(np.arange(20), column).statistic for column in values.T]
    np.testing.assert_allclose(taus_of_columns(values), expected, rtol=1e-12)
    assert np.isnan(taus_of_columns(values[:1])).all()


def test_first_of_equally_near_frames_is_taken(naive, test):
    coarse = replace(test, embeddings=np.round(test.embeddings[:, :1]))
    assert means(coarse, stride=1)["all"] == pytest.approx(
        naive.kendalls_tau(coarse, stride=1), abs=1e-12
    )


def test_pairs_without_a_tau_are_left_out_and_counted(collapsed, test):
    taus = kendalls_tau(collapsed, stride=1)
    assert (taus["all"].value, taus["all"].pairs, taus["all"].pairs_with_tau) == (
        pytest.approx(1),
        12,
        2,
    )
    assert taus["all"].remark == "tau is defined for 2 of 12 pairs"
    assert (taus["ego-exo"].pairs, taus["ego-exo"].pairs_with_tau) == (4, 1)
    assert (taus["ego-ego"].pairs, taus["ego-ego"].pairs_with_tau) == (2, 0)
    assert [(tau.pairs, tau.pairs_with_tau) for tau in kendalls_tau(test).values()] == [
        (pairs, pairs) for pairs in (30, 6, 9, 9, 6)
    ]


def test_for_selection_pairs_without_a_tau_count_zero(collapsed, test, join):
    assert tau_for_selection(collapsed, stride=1) == pytest.approx(2 / 12)
    assert tau_for_selection(test) == pytest.approx(means(test)["all"])
    assert tau_for_selection(replace(test, embeddings=np.ones_like(test.embeddings))) == 0
    assert tau_for_selection(join([LINE], None, [True])) == Missing("only one test video")


def test_single_frames_missing_views_and_bad_strides(join, test):
    frames = join([LINE, LINE, LINE[:1]], None, [True, False, False])
    assert means(frames)["all"] == pytest.approx(1)
    assert isinstance(means(frames)["exo-exo"], Missing)
    assert isinstance(means(frames, stride=30)["all"], Missing)
    taus = means(replace(test, labels=None).of_view(True))
    assert isinstance(taus["all"], float)
    assert taus["ego-exo"] == taus["exo-exo"] == Missing("no exo test videos")
    with pytest.raises(ValueError, match="stride"):
        kendalls_tau(test, stride=0)


def test_sub_clips_of_one_recording_are_no_pair(join, test):
    everything = means(test, stride=1)
    recordings = np.array([0, 0, 0, 1, 2, 3])  # all ego videos are from one recording
    alone = means(replace(test, recordings=recordings), stride=1)
    assert alone.pop("ego-ego") == Missing("only one ego test video")
    assert alone.pop("all") != everything["all"]
    assert alone == pytest.approx({views: everything[views] for views in alone})
    one = join([LINE, LINE], None, [True, True], recordings=np.array([0, 0]))
    assert means(one, stride=1)["all"] == Missing("only one test video")
