from dataclasses import replace

import numpy as np
import pytest

from byov.evaluate.action_probe import action_map
from byov.evaluate.frames import SETTINGS, Missing


@pytest.fixture
def charades(join):
    """Make single-frame videos with several actions, embedded as the sum of their action vectors
    plus noise.
    """

    def make(seed, videos=60, classes=5, dimensions=8, noise=0.1):
        world = np.random.default_rng(7)
        random = np.random.default_rng(seed)
        actions = random.random((videos, classes)) < 0.3
        embeddings = actions @ world.standard_normal((classes, dimensions))
        embeddings += noise * random.standard_normal(embeddings.shape)
        return join(embeddings[:, None], None, np.arange(videos) % 2 == 0, actions=actions)

    return make


def with_embeddings(frames, values):
    return replace(frames, embeddings=values.astype(np.float32))


def test_linear_actions_are_recognized(charades):
    scores = action_map(charades(1), charades(2))
    assert list(scores) == list(SETTINGS)
    assert all(score > 0.99 for score in scores.values())


def test_noise_and_constant_embeddings_score_chance(charades):
    random = np.random.default_rng(0)
    train, test = (
        with_embeddings(one, random.standard_normal((400, 8)))
        for one in (charades(1, 400), charades(2, 400))
    )
    assert action_map(train, test)["regular"] == pytest.approx(test.actions.mean(), abs=0.08)
    train, test = (with_embeddings(one, np.ones((60, 8))) for one in (charades(1), charades(2)))
    assert action_map(train, test)["regular"] == pytest.approx(test.actions.mean(axis=0).mean())


def test_settings_fit_one_view_and_score_the_other(charades):
    """Negate the ego embeddings, so that a probe fitted on one view fails on the other."""
    flipped = [
        with_embeddings(one, np.where(one.is_ego[:, None], -one.embeddings, one.embeddings))
        for one in (charades(1), charades(2))
    ]
    scores = action_map(*flipped)
    assert max(scores["ego2exo"], scores["exo2ego"]) < 0.5


def test_score_is_the_mean_over_classes_with_a_test_video(charades):
    train = charades(1, noise=2)
    test = charades(2, noise=2)
    alone = []
    for action in range(5):
        only = test.actions & (np.arange(5) == action)
        alone.append(action_map(train, replace(test, actions=only))["regular"])
    assert action_map(train, test)["regular"] == pytest.approx(np.mean(alone), abs=1e-12)


def test_missing_scores_have_a_reason(charades):
    train = charades(1)
    test = charades(2)
    scores = action_map(train, test.of_view(False))
    assert scores["exo2ego"] == Missing("no ego test videos")
    assert isinstance(scores["ego2exo"], float)
    assert action_map(train.select(np.array([0])), test)["regular"] == Missing(
        "only one training video"
    )
    assert action_map(replace(train, actions=None), test)["regular"] == Missing(
        "no action labels for these videos"
    )
    bare = replace(test, actions=np.zeros_like(test.actions))
    assert action_map(train, bare)["regular"] == Missing("no test video has an action label")
