from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import kendalltau

from byov.evaluate import neighbors
from byov.evaluate.frames import Missing
from byov.evaluate.kendalls_tau import PAIRS, TASK, kendalls_tau, mean_taus, tau_for_selection, taus_of_columns
from byov.evaluate.task import EvaluationOptions, TaskData

LINE = np.linspace(0, 1, 30)[:, None]


@pytest.fixture
def test(make_frames):
    return make_frames(5, ego=3, exo=3)


@pytest.mark.parametrize("stride", [1, 3, 5])
def test_agrees_with_the_definition(naive, test, stride):
    taus = kendalls_tau(test, stride=stride)
    assert taus["all"] == pytest.approx(naive.kendalls_tau(test, stride=stride), abs=1e-12)
    assert list(taus) == list(PAIRS)


def test_pairs_of_views_are_parts_of_all(naive, test):
    taus = kendalls_tau(test)
    for view in ("ego", "exo"):
        expected = naive.kendalls_tau(test.of_view(view == "ego"))
        assert taus[f"{view}-{view}"] == pytest.approx(expected, abs=1e-12)
    # 6 + 6 pairs within a view, 9 + 9 across.
    parts = 6 * taus["ego-ego"] + 6 * taus["exo-exo"] + 9 * taus["ego-exo"] + 9 * taus["exo-ego"]
    assert taus["all"] == pytest.approx(parts / 30)


def test_the_query_video_comes_first(join):
    """Each query finds another frame of a finer line; of a coarser line some must find the same."""
    finer = np.linspace(0, 1, 60)[:, None]
    taus = kendalls_tau(join([LINE, finer], None, [True, False]), stride=1)
    assert taus["ego-exo"] == pytest.approx(1)
    assert 0.9 < taus["exo-ego"] < 0.995
    assert taus["ego-ego"] == Missing("only one ego test video")


def test_sub_clips_of_one_video_are_no_pair_and_the_reason_says_so(join):
    taus = kendalls_tau(join([LINE, LINE, LINE], None, [True, True, False]), stride=1, recordings=np.array([0, 0, 1]))
    assert taus["ego-ego"] == Missing("only one ego test video")
    assert taus["ego-exo"] == pytest.approx(1)
    alone = kendalls_tau(join([LINE, LINE], None, [True, True]), stride=1, recordings=np.array([0, 0]))
    assert alone["all"] == Missing("only one test video")


def test_identical_sequences_give_one_and_reversed_ones_minus_one(join):
    same = kendalls_tau(join([LINE, LINE], None, [True, False]))
    assert [same[pairs] for pairs in ("all", "ego-exo", "exo-ego")] == pytest.approx([1, 1, 1])
    assert kendalls_tau(join([LINE, LINE[::-1]], None, [True, False]), stride=1)["all"] == pytest.approx(-1)


def test_tau_of_columns_is_scipys():
    random = np.random.default_rng(0)
    values = np.stack([random.permutation(20), random.integers(0, 4, 20), np.full(20, 7), np.arange(20)], axis=1)
    expected = [kendalltau(np.arange(20), column).statistic for column in values.T]
    np.testing.assert_allclose(taus_of_columns(values), expected, rtol=1e-12)
    assert np.isnan(taus_of_columns(values[:1])).all()


def test_blocks_do_not_matter(monkeypatch, test):
    whole = kendalls_tau(test, stride=1)
    monkeypatch.setattr(neighbors, "BLOCK_ELEMENTS", 500)
    assert kendalls_tau(test, stride=1) == whole


def test_the_first_of_equally_near_frames_is_taken(naive, test):
    coarse = replace(test, embeddings=np.round(test.embeddings[:, :1]))
    assert kendalls_tau(coarse, stride=1)["all"] == pytest.approx(naive.kendalls_tau(coarse, stride=1), abs=1e-12)


def test_a_pair_without_a_tau_is_left_out(naive, join):
    videos = [LINE, LINE + 0.01, np.full((30, 1), 0.5)]
    frames = join(videos, None, [True, True, False])
    taus = kendalls_tau(frames, stride=1)
    assert taus["ego-ego"] == taus["all"] == pytest.approx(1)
    assert isinstance(taus["ego-exo"], Missing)
    assert isinstance(taus["exo-ego"], Missing)
    assert naive.kendalls_tau(frames, stride=1) == pytest.approx(1)


@pytest.fixture
def collapsed(join):
    """Two videos that follow each other, and two that stand still: 2 of 12 pairs have a tau."""
    still = np.full((30, 1), 0.5)
    return join([LINE, LINE + 0.01, still, still], None, [True, False, True, False])


def test_the_pairs_are_counted(collapsed, test):
    taus = mean_taus(collapsed, stride=1)
    assert (taus["all"].mean, taus["all"].pairs, taus["all"].pairs_with_tau) == (pytest.approx(1), 12, 2)
    assert (taus["ego-exo"].pairs, taus["ego-exo"].pairs_with_tau) == (4, 1)
    assert (taus["ego-ego"].pairs, taus["ego-ego"].pairs_with_tau) == (2, 0)
    assert {pairs: (tau.pairs, tau.pairs_with_tau) for pairs, tau in mean_taus(test).items()} == {
        "all": (30, 30),
        "ego-ego": (6, 6),
        "ego-exo": (9, 9),
        "exo-ego": (9, 9),
        "exo-exo": (6, 6),
    }
    clips = mean_taus(test, recordings=np.array([0, 0, 1, 2, 2, 3]))
    assert (clips["all"].pairs, clips["ego-ego"].pairs) == (26, 4)


def test_a_mean_of_some_pairs_says_so(collapsed, test):
    scores = TASK.score(TaskData(collapsed), EvaluationOptions(tau_stride=1))
    assert scores["kendalls_tau/all"].remark == "mean of 2 of 12 pairs; the others have none"
    assert (scores["kendalls_tau/all"].pairs, scores["kendalls_tau/all"].pairs_with_tau) == (12, 2)
    assert scores["kendalls_tau/ego-ego"].missing is not None
    assert all(score.remark is None for score in TASK.score(TaskData(test), EvaluationOptions()).values())


def test_for_selection_a_pair_without_a_tau_counts_0(collapsed, test, join):
    assert kendalls_tau(collapsed, stride=1)["all"] == pytest.approx(1)
    assert tau_for_selection(collapsed, stride=1) == pytest.approx(2 / 12)
    assert tau_for_selection(test) == pytest.approx(kendalls_tau(test)["all"])
    assert tau_for_selection(replace(test, embeddings=np.ones_like(test.embeddings))) == 0
    assert tau_for_selection(join([LINE], None, [True])) == Missing("only one test video")


@pytest.mark.parametrize("value", [0.0, 0.3, 1e5])
def test_a_constant_embedding_has_no_tau(test, value):
    taus = kendalls_tau(replace(test, embeddings=np.full_like(test.embeddings, value)))
    assert all(isinstance(tau, Missing) for tau in taus.values())
    assert "never changes" in taus["all"].reason


def test_one_frame_videos_have_no_tau(join):
    frames = join([LINE, LINE, LINE[:1]], None, [True, False, False])
    assert kendalls_tau(frames)["all"] == pytest.approx(1)
    assert isinstance(kendalls_tau(frames)["exo-exo"], Missing)
    assert isinstance(kendalls_tau(frames, stride=30)["all"], Missing)


def test_labels_are_not_needed_and_absent_views_are_said(test):
    taus = kendalls_tau(replace(test, labels=None).of_view(True))
    assert isinstance(taus["all"], float)
    assert taus["ego-exo"] == taus["exo-exo"] == Missing("no exo test videos")
    assert kendalls_tau(test.select(np.array([0])))["all"] == Missing("only one test video")


def test_an_impossible_stride_is_refused(test):
    with pytest.raises(ValueError, match="stride of 0"):
        kendalls_tau(test, stride=0)


def test_sub_clips_of_one_recording_are_no_pair(test):
    everything = kendalls_tau(test, stride=1)
    alone = kendalls_tau(test, stride=1, recordings=np.where(test.is_ego, 0, np.arange(len(test.is_ego)) + 1))
    assert isinstance(alone["ego-ego"], Missing)
    assert {pair: alone[pair] for pair in ("ego-exo", "exo-ego", "exo-exo")} == pytest.approx(
        {pair: everything[pair] for pair in ("ego-exo", "exo-ego", "exo-exo")}
    )
    assert alone["all"] != everything["all"]
