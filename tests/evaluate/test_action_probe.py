import numpy as np
import pytest

from byov.evaluate.action_probe import action_map, video_embeddings
from byov.evaluate.frames import SETTINGS, Missing


def charades(seed, videos=60, classes=5, dimensions=8, noise=0.1):
    """Videos of several actions each: the embedding is the sum of theirs, noise added."""
    world, random = np.random.default_rng(7), np.random.default_rng(seed)
    actions = random.random((videos, classes)) < 0.3
    embeddings = actions @ world.standard_normal((classes, dimensions))
    embeddings += noise * random.standard_normal(embeddings.shape)
    return embeddings.astype(np.float32), actions, np.arange(videos) % 2 == 0


def test_actions_that_are_linear_in_the_embedding_are_found():
    scores = action_map(*charades(1), *charades(2))
    assert list(scores) == list(SETTINGS)
    assert all(score > 0.99 for score in scores.values())


def test_noise_scores_as_often_as_actions_occur():
    embeddings, actions, is_ego = charades(1, 400)
    noise = np.random.default_rng(0).standard_normal(embeddings.shape)
    test = charades(2, 400)
    scores = action_map(noise, actions, is_ego, np.random.default_rng(1).standard_normal(embeddings.shape), *test[1:])
    assert scores["regular"] == pytest.approx(test[1].mean(), abs=0.08)


def test_views_are_kept_apart():
    """An ego video means the opposite of an exo one: what is learned on one misleads on the other."""
    train, test = charades(1), charades(2)
    flipped = [(np.where(is_ego[:, None], -e, e), actions, is_ego) for e, actions, is_ego in (train, test)]
    scores = action_map(*flipped[0], *flipped[1])
    assert max(scores["ego2exo"], scores["exo2ego"]) < 0.5


def test_classes_without_a_test_video_are_left_out():
    train, (embeddings, actions, is_ego) = charades(1), charades(2)
    fewer = actions.copy()
    fewer[:, 2] = False
    expected = action_map(train[0], np.delete(train[1], 2, 1), train[2], embeddings, np.delete(actions, 2, 1), is_ego)
    assert action_map(*train, embeddings, fewer, is_ego) == pytest.approx(expected, abs=0.02)
    assert action_map(*train, embeddings, np.zeros_like(actions), is_ego)["regular"] == Missing(
        "no test video has an action"
    )


def test_the_test_videos_do_not_shape_the_fit():
    """A class scores the same, whichever others the test videos show."""
    train, (embeddings, actions, is_ego) = charades(1, noise=2), charades(2, noise=2)
    alone = []
    for action in range(actions.shape[1]):
        only = np.zeros_like(actions)
        only[:, action] = actions[:, action]
        alone.append(action_map(*train, embeddings, only, is_ego)["regular"])
    assert action_map(*train, embeddings, actions, is_ego)["regular"] == pytest.approx(np.mean(alone), abs=1e-12)


def test_a_class_without_a_training_video_scores_chance():
    (embeddings, actions, is_ego), test = charades(1), charades(2, classes=5)
    never = actions.copy()
    never[:, 0] = False
    only = test[1].copy()
    only[:, 1:] = False
    score = action_map(embeddings, never, is_ego, test[0], only, test[2])["regular"]
    assert score == pytest.approx(only[:, 0].mean())


def test_absent_views():
    train, test = charades(1), charades(2)
    exo = ~test[2]
    scores = action_map(*train, test[0][exo], test[1][exo], test[2][exo])
    assert scores["exo2ego"] == Missing("no ego test videos")
    assert isinstance(scores["ego2exo"], float)
    one = action_map(train[0][:1], train[1][:1], train[2][:1], *test)
    assert one["regular"] == Missing("only one training video")


def test_a_constant_embedding_scores_chance():
    train, test = charades(1), charades(2)
    score = action_map(np.ones_like(train[0]), *train[1:], np.ones_like(test[0]), *test[1:])["regular"]
    assert score == pytest.approx(test[1].mean(axis=0).mean())


def test_a_video_is_the_mean_of_its_frames(join):
    frames = join([[[0, 2], [2, 4]], [[5, 5]]], None, [True, False])
    assert video_embeddings(frames).tolist() == [[1, 3], [5, 5]]
