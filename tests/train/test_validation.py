from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import kendalltau

from byov.cache.sub_clips import trimmed_clips
from byov.evaluate.frames import Frames
from byov.evaluate.kendalls_tau import kendalls_tau as evaluators_tau
from byov.evaluate.retrieval import mean_average_precision
from byov.train.feature_store import CachedVideo, FeatureStore, open_training_data
from byov.train.validation import Embedded, Validator, cross_view_map, kendalls_tau

CPU = torch.device("cpu")


def random_items(lengths, seed=0, phases=3, width=6):
    """Videos with embeddings that carry their labels a little, the first half of them ego."""
    random = np.random.default_rng(seed)
    items = []
    for number, length in enumerate(lengths):
        view = "ego" if number < len(lengths) / 2 else "exo"
        labels = np.sort(random.integers(phases, size=length))
        embedding = random.normal(size=(length, width)) + 0.7 * labels[:, None]
        video = CachedVideo(str(number), view, "val", length, tuple(labels.tolist()), Path("none"))
        items.append(Embedded(video, torch.from_numpy(embedding.astype(np.float32)), torch.from_numpy(labels)))
    return items


def frames_of(items):
    return Frames(
        embeddings=torch.cat([item.embedding for item in items]).numpy(),
        labels=torch.cat([item.labels for item in items]).numpy(),
        lengths=np.array([len(item.embedding) for item in items]),
        is_ego=np.array([item.video.view == "ego" for item in items]),
        names=tuple(item.video.id for item in items),
    )


@pytest.mark.parametrize("lengths", [(40, 31, 50, 27), (4, 3, 5), (60, 2), (1, 30, 1, 30)])
@pytest.mark.parametrize("seed", [0, 1])
def test_retrieval_is_the_evaluators(lengths, seed):
    items = random_items(lengths, seed)
    for k in (5, 10):
        expected = mean_average_precision(frames_of(items), ks=[k])
        assert cross_view_map(items, "ego", k) == pytest.approx(expected["ego2exo"][k], abs=1e-6)
        assert cross_view_map(items, "exo", k) == pytest.approx(expected["exo2ego"][k], abs=1e-6)


@pytest.mark.parametrize("lengths", [(40, 31, 50, 27), (4, 30, 55), (60, 12)])
@pytest.mark.parametrize("stride", [5, 1])
@pytest.mark.parametrize("seed", [0, 1])
def test_tau_is_the_evaluators(lengths, stride, seed):
    items = random_items(lengths, seed)
    expected = evaluators_tau(frames_of(items), stride=stride)["all"]
    assert kendalls_tau([item.embedding for item in items], stride) == pytest.approx(expected, abs=1e-6)


def test_tau_with_ties_is_scipys():
    """Neighbours that repeat: one video has few frames, so that many of the other's share a nearest one."""
    items = random_items((50, 4), width=2)
    long, short = (item.embedding for item in items)
    expected = [
        kendalltau(range(len(query)), torch.cdist(query, other).argmin(1)).statistic
        for query, other in ((long, short), (short, long))
    ]
    assert kendalls_tau([long, short], 1) == pytest.approx(np.mean(expected), abs=1e-6)


def test_tau_of_a_steady_video_is_one_and_of_its_reverse_minus_one():
    ramp = torch.arange(30.0)[:, None]
    assert kendalls_tau([ramp, ramp.clone()]) == pytest.approx(1)
    assert kendalls_tau([ramp, ramp.flip(0)], 1) == pytest.approx(-1)
    assert kendalls_tau([ramp, ramp]) == pytest.approx(1)  # one and the same tensor stands for two videos


def test_pairs_without_a_tau_are_left_out():
    ramp, still = torch.arange(30.0)[:, None], torch.zeros(30, 1)
    assert kendalls_tau([ramp, ramp.clone(), still]) == pytest.approx(1)
    assert kendalls_tau([still, still.clone()]) is None
    assert kendalls_tau([ramp]) is None
    assert kendalls_tau([]) is None
    assert kendalls_tau([ramp[:1], ramp[:1]]) is None


def test_retrieval_needs_both_views_and_labels():
    items = random_items((10, 10, 12, 9))
    assert cross_view_map(items[:2], "ego") is None
    assert cross_view_map(items[:2], "exo") is None
    assert cross_view_map([], "ego") is None
    unlabelled = [Embedded(item.video, item.embedding, None) for item in items]
    assert cross_view_map(unlabelled, "ego") is None
    # those without labels are as good as absent
    assert cross_view_map([*items, *unlabelled], "ego") == cross_view_map(items, "ego")


def test_perfect_and_hopeless_embeddings():
    items = random_items((20, 25))
    perfect = [Embedded(i.video, torch.nn.functional.one_hot(i.labels, 3).float(), i.labels) for i in items]
    assert cross_view_map(perfect, "ego", 5) == pytest.approx(1)
    apart = [Embedded(i.video, i.embedding, torch.full((len(i.embedding),), n)) for n, i in enumerate(items)]
    assert cross_view_map(apart, "ego") == 0


def test_the_validator_scores_what_the_model_embeds(features_dir, make_model):
    source = open_training_data(features_dir, None, None, 0.3)
    videos, store = source.of("val"), FeatureStore(source, (), 0)
    model = make_model(width=16, standardize="video")
    metrics = Validator("demo", videos, store, CPU)(model)

    whole, clips = [], []
    for video in videos:
        features = torch.from_numpy(store.read(video))
        labels = torch.tensor(video.labels)
        whole.append(Embedded(video, model.embed(features), labels))
        for first, last in trimmed_clips("demo", video.view, video.id, video.frames):
            clips.append(Embedded(video, model.embed(features[first : last + 1]), labels[first : last + 1]))
    standard, trimmed = (mean_average_precision(frames_of(items), ks=[10]) for items in (whole, clips))
    retrieval = (standard["ego2exo"][10] + standard["exo2ego"][10]) / 2
    cut = (trimmed["ego2exo"][10] + trimmed["exo2ego"][10]) / 2
    assert metrics == pytest.approx(
        {
            "map@10_ego2exo": standard["ego2exo"][10],
            "map@10_exo2ego": standard["exo2ego"][10],
            "retrieval": retrieval,
            "trimmed": cut,
            "both": (retrieval + cut) / 2,
            "tau": evaluators_tau(frames_of(whole))["all"],
        },
        abs=1e-6,
    )


def test_what_the_videos_do_not_allow_is_left_out(features_dir, make_model, make_cache):
    model = make_model(width=16)
    source = open_training_data(features_dir, None, None, 0.3)
    store = FeatureStore(source, (), 0)
    assert set(Validator("demo", source.of("val", "ego"), store, CPU)(model)) == {"tau"}
    assert Validator("demo", source.of("val", "ego")[:1], store, CPU)(model) == {}
    unlabelled = open_training_data(
        make_cache({("val", "ego", "x"): 30, ("val", "exo", "y"): 20}, dataset="plain", phases=()), "plain", None, 0.3
    )
    found = Validator("plain", unlabelled.videos, FeatureStore(unlabelled, (), 0), CPU)(model)
    assert set(found) == {"tau"}


def test_validation_leaves_the_model_and_the_random_numbers_alone(features_dir, make_model):
    source = open_training_data(features_dir, None, None, 0.3)
    model = make_model(width=16)
    before = {name: weights.clone() for name, weights in model.state_dict().items()}
    state = torch.get_rng_state()
    validator = Validator("demo", source.of("val"), FeatureStore(source, (), 0), CPU)
    assert validator(model) == validator(model)
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(before[name], weights) for name, weights in model.state_dict().items())
    assert all(weights.grad is None for weights in model.parameters())
