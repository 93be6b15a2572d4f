import numpy as np
import pytest
import torch

from byov.cache.layout import trimmed_clips
from byov.evaluate.frames import Frames
from byov.evaluate.kendalls_tau import kendalls_tau as evaluators_tau
from byov.evaluate.retrieval import mean_average_precision
from byov.train.feature_store import FeatureStore, open_training_data
from byov.train.validation import validate


def test_the_validator_agrees_with_the_evaluator(training_data, make_method):
    source = training_data
    videos = source.split("val")
    store = FeatureStore(source, (), 0)
    model = make_method(width=16, standardize="video")
    metrics = validate(model, "demo", videos, store)

    def scored(clips):
        embeddings = [
            model.embed(store.read(video)[start:stop]).numpy() for video, start, stop in clips
        ]
        labels = [video.labels[start:stop] for video, start, stop in clips]
        is_ego = np.array([video.view == "ego" for video, *_ in clips])
        lengths = np.array([len(each) for each in labels])
        return Frames(np.concatenate(embeddings), np.concatenate(labels), lengths, is_ego)

    whole = scored([(video, 0, video.frames) for video in videos])
    clips = scored(
        [
            (video, *clip)
            for video in videos
            for clip in trimmed_clips("demo", video.view, video.id, video.frames)
        ]
    )
    standard, trimmed = (mean_average_precision(frames, ks=[10]) for frames in (whole, clips))
    retrieval = (standard["ego2exo"][10] + standard["exo2ego"][10]) / 2
    cut = (trimmed["ego2exo"][10] + trimmed["exo2ego"][10]) / 2
    assert metrics == pytest.approx(
        {
            "map@10_ego2exo": standard["ego2exo"][10],
            "map@10_exo2ego": standard["exo2ego"][10],
            "retrieval": retrieval,
            "trimmed": cut,
            "both": (retrieval + cut) / 2,
            "tau": evaluators_tau(whole)["all"].value,
        },
        abs=1e-6,
    )


def test_metrics_that_need_missing_views_or_labels_are_omitted(
    features_dir, make_method, make_cache
):
    model = make_method(width=16)
    source = open_training_data(features_dir, None, None, 0.3)
    store = FeatureStore(source, (), 0)
    assert set(validate(model, "demo", source.split("val", "ego"), store)) == {"tau"}
    assert validate(model, "demo", source.split("val", "ego")[:1], store) == {}
    unlabeled = open_training_data(
        make_cache({("val", "ego", "x"): 30, ("val", "exo", "y"): 20}, dataset="plain", phases=()),
        "plain",
        None,
        0.3,
    )
    store = FeatureStore(unlabeled, (), 0)
    assert set(validate(model, "plain", unlabeled.videos, store)) == {"tau"}


def test_validation_changes_neither_weights_nor_random_state(training_data, make_method):
    source = training_data
    model = make_method(width=16)
    before = {name: weights.clone() for name, weights in model.state_dict().items()}
    state = torch.get_rng_state()
    arguments = (model, "demo", source.split("val"), FeatureStore(source, (), 0))
    assert validate(*arguments) == validate(*arguments)
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(before[name], weights) for name, weights in model.state_dict().items())
    assert all(weights.grad is None for weights in model.parameters())
