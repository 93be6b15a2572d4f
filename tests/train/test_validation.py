from pathlib import Path

import numpy as np
import pytest
import torch

from byov.evaluate.frames import Frames
from byov.evaluate.kendalls_tau import kendalls_tau as evaluators_tau
from byov.evaluate.protocols import trimmed_clips
from byov.evaluate.retrieval import mean_average_precision
from byov.train.feature_store import CachedVideo, FeatureStore, open_training_data
from byov.train.validation import EmbeddedClip, Validator, cross_view_map

CPU = torch.device("cpu")


def random_clips(lengths, seed=0, phases=3, width=6):
    """Videos with embeddings that weakly depend on their labels; the first half is ego."""
    random = np.random.default_rng(seed)
    clips = []
    for number, length in enumerate(lengths):
        view = "ego" if number < len(lengths) / 2 else "exo"
        labels = np.sort(random.integers(phases, size=length))
        embedding = (random.normal(size=(length, width)) + 0.7 * labels[:, None]).astype(np.float32)
        video = CachedVideo(str(number), view, "val", length, tuple(labels.tolist()), Path("none"), "")
        clips.append(EmbeddedClip(video, embedding, video.labels))
    return clips


def frames_of(clips):
    return Frames(
        embeddings=np.concatenate([clip.embedding for clip in clips]),
        labels=np.concatenate([clip.labels for clip in clips]),
        lengths=np.array([len(clip.embedding) for clip in clips]),
        is_ego=np.array([clip.video.view == "ego" for clip in clips]),
        names=tuple(clip.video.id for clip in clips),
    )


def test_retrieval_needs_both_views_and_labels():
    nothing = {"ego2exo": None, "exo2ego": None}
    clips = random_clips((10, 10, 12, 9))
    assert cross_view_map(clips[:2]) == nothing
    assert cross_view_map([]) == nothing
    unlabeled = [EmbeddedClip(clip.video, clip.embedding, None) for clip in clips]
    assert cross_view_map(unlabeled) == nothing
    # unlabeled videos are ignored
    assert cross_view_map([*clips, *unlabeled]) == cross_view_map(clips)
    # and unlabeled frames
    partly = [
        EmbeddedClip(clip.video, np.concatenate([clip.embedding[:4], clip.embedding]), (-1,) * 4 + clip.labels)
        for clip in clips
    ]
    bare = [EmbeddedClip(clip.video, clip.embedding, (-1,) * len(clip.embedding)) for clip in clips]
    assert cross_view_map([*partly, *bare]) == cross_view_map(clips)
    assert cross_view_map(bare) == nothing


def test_the_validator_agrees_with_the_evaluator(training_data, make_method):
    source = training_data
    videos, store = source.of("val"), FeatureStore(source, (), 0)
    model = make_method(width=16, standardize="video")
    metrics = Validator("demo", videos, store, CPU)(model)

    whole, clips = [], []
    for video in videos:
        features = torch.from_numpy(store.read(video))
        labels = video.labels
        whole.append(EmbeddedClip(video, model.embed(features).numpy(), labels))
        for first, last in trimmed_clips("demo", video.view, video.id, video.frames):
            embedding = model.embed(features[first : last + 1]).numpy()
            clips.append(EmbeddedClip(video, embedding, labels[first : last + 1]))
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
            "tau": evaluators_tau(frames_of(whole))["all"].value,
        },
        abs=1e-6,
    )


def test_metrics_that_need_missing_views_or_labels_are_omitted(features_dir, make_method, make_cache):
    model = make_method(width=16)
    source = open_training_data(features_dir, None, None, 0.3)
    store = FeatureStore(source, (), 0)
    assert set(Validator("demo", source.of("val", "ego"), store, CPU)(model)) == {"tau"}
    assert Validator("demo", source.of("val", "ego")[:1], store, CPU)(model) == {}
    unlabeled = open_training_data(
        make_cache({("val", "ego", "x"): 30, ("val", "exo", "y"): 20}, dataset="plain", phases=()), "plain", None, 0.3
    )
    found = Validator("plain", unlabeled.videos, FeatureStore(unlabeled, (), 0), CPU)(model)
    assert set(found) == {"tau"}


def test_validation_changes_neither_weights_nor_random_state(training_data, make_method):
    source = training_data
    model = make_method(width=16)
    before = {name: weights.clone() for name, weights in model.state_dict().items()}
    state = torch.get_rng_state()
    validator = Validator("demo", source.of("val"), FeatureStore(source, (), 0), CPU)
    assert validator(model) == validator(model)
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(before[name], weights) for name, weights in model.state_dict().items())
    assert all(weights.grad is None for weights in model.parameters())
