from dataclasses import replace

import numpy as np
import pytest

from byov.evaluate import neighbors
from byov.evaluate.frames import SETTINGS, Missing
from byov.evaluate.retrieval import average_precisions, mean_average_precision


@pytest.fixture
def test(make_frames):
    return make_frames(5, ego=3, exo=4, noise=1.2)


def agree(naive, frames, ks=(1, 5, 15)):
    for k in ks[:2]:  # on its own, so that it is the last rank that is looked at
        assert mean_average_precision(frames, (k,))["regular"][k] == pytest.approx(
            naive.retrieval_at(frames, "regular", k)
        )
    scores = mean_average_precision(frames, ks)
    for setting, by_k in naive.mean_average_precision(frames, ks).items():
        assert scores[setting] == pytest.approx(by_k, abs=1e-12), setting
    return scores


def test_agrees_with_the_definition(naive, test):
    scores = agree(naive, test)
    assert 0.3 < scores["regular"][5] < 0.99
    assert list(scores) == list(SETTINGS)


def test_blocks_do_not_matter(monkeypatch, test):
    whole = mean_average_precision(test)
    monkeypatch.setattr(neighbors, "BLOCK_ELEMENTS", 1000)
    assert mean_average_precision(test) == whole


def test_average_precision_by_hand():
    relevant = np.array([[True, False, True, False], [False, False, False, False], [False, True, True, True]])
    expected = [[1, (1 + 2 / 3) / 2], [0, 0], [1 / 2, (1 / 2 + 2 / 3 + 3 / 4) / 3]]
    np.testing.assert_allclose(average_precisions(relevant, (2, 4)), expected)


def test_equal_distances_rank_by_position(naive, test):
    """Points of a coarse grid: most distances are shared by several frames."""
    agree(naive, replace(test, embeddings=np.round(test.embeddings[:, :2])))


def test_a_clock_has_equal_distances_everywhere(naive, join):
    lengths = (20, 20, 30, 20, 25, 30)
    clocks = [(np.arange(length) / length)[:, None] for length in lengths]
    labels = [np.arange(length) * 3 // length for length in lengths]
    agree(naive, join(clocks, labels, [True, True, True, False, False, False]))


def test_almost_equal_distances_far_from_the_origin(naive, test):
    """Frames that differ by single steps of float32 around 3000."""
    random = np.random.default_rng(0)
    steps = random.integers(-3, 4, test.embeddings.shape).astype(np.float32)
    agree(naive, replace(test, embeddings=np.float32(3000) + steps * np.float32(2**-12)))


def test_almost_equal_distances_beside_a_far_point(naive, test):
    """One far frame makes the products coarse for all others: these are ranked from differences."""
    embeddings = test.embeddings * np.float32(1e-4)
    embeddings[7] = 1e4
    agree(naive, replace(test, embeddings=embeddings))


def test_a_constant_embedding_is_scored(naive, test):
    agree(naive, replace(test, embeddings=np.full_like(test.embeddings, 0.3)))


def few_values(frames, count):
    """The same videos with only so many different frames, some of them equally far from others."""
    corners = np.eye(count, frames.embeddings.shape[1], dtype=np.float32)
    return replace(frames, embeddings=corners[np.random.default_rng(0).integers(0, count, len(frames.embeddings))])


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_few_different_frames_rank_by_position(naive, make_frames, count):
    agree(naive, few_values(make_frames(5, ego=5, exo=6), count))


def test_many_equal_frames_among_others(naive, make_frames):
    frames = make_frames(5, ego=5, exo=6)
    embeddings = frames.embeddings.copy()
    embeddings[::2] = 0.25
    embeddings[1::4] = -0.0
    embeddings[3::8] = 0.0
    agree(naive, replace(frames, embeddings=embeddings))


@pytest.mark.parametrize("settings", [("ego2exo", "exo2ego"), ("exo2ego",), ("regular",)])
def test_some_settings_alone_are_the_same(test, settings):
    everything = mean_average_precision(test, (5, 10))
    assert mean_average_precision(test, (5, 10), settings) == {setting: everything[setting] for setting in settings}


def test_fewer_candidates_than_k(naive, join):
    random = np.random.default_rng(0)
    videos = [random.standard_normal((length, 3)) for length in (2, 1, 3)]
    frames = join(videos, [[0, 1], [0], [0, 1, 1]], [True, False, False])
    scores = agree(naive, frames, (1, 3, 50))
    assert scores["exo2ego"][50] > 0


def test_one_frame_videos(naive, join):
    random = np.random.default_rng(0)
    agree(naive, join(list(random.standard_normal((9, 1, 3))), [[v % 2] for v in range(9)], np.arange(9) < 4))


def test_an_absent_view_leaves_the_regular_setting(test):
    scores = mean_average_precision(test.of_view(False), (5,))
    assert isinstance(scores["regular"][5], float)
    assert scores["ego2exo"][5] == scores["exo2ego"][5] == Missing("no ego test videos")


def test_one_video_of_each_view(join):
    frames = join([[[0.0], [1.0]], [[0.1], [1.1]]], [[0, 1], [0, 1]], [True, False])
    assert mean_average_precision(frames, (1,)) == {setting: {1: 1.0} for setting in SETTINGS}


def test_one_video_has_nothing_to_retrieve(test):
    scores = mean_average_precision(test.select(np.array([0])), (5, 10))
    assert scores["regular"] == dict.fromkeys((5, 10), Missing("only one test video"))


def test_labels_are_needed(test):
    scores = mean_average_precision(replace(test, labels=None), (5,))
    assert scores == {setting: {5: Missing("no phase labels")} for setting in SETTINGS}


@pytest.mark.parametrize("ks", [(), (0,), (5, -1)])
def test_impossible_ks_are_refused(test, ks):
    with pytest.raises(ValueError, match="K must be at least 1"):
        mean_average_precision(test, ks)
