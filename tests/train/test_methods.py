"""Tests of properties that hold for every method in the registry."""

from dataclasses import fields, replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tests.train.conftest import seeded
from torch import Tensor

from byov.cache.features import SMALLEST_DEVIATION, standardize
from byov.cache.hdf5 import read_array
from byov.errors import TrainError
from byov.train.feature_store import FeatureStore, open_training_data
from byov.train.methods.base import Method, build_method, training_batches
from byov.train.methods.byov import Byov
from byov.train.methods.timeline import Timeline
from byov.train.registry import METHODS, config_class, resolve


@pytest.fixture
def make(make_method, training_data, each_method):
    """Return a function that builds a tiny model of each method for the features in
    `training_data`.
    """
    return lambda **settings: make_method(each_method, width=training_data.width, **settings)


def step(method, clips, autocast=False):
    """Return the losses and the gradient of each parameter, and restore the training-only state."""
    method.zero_grad()
    state = {name: tensor.clone() for name, tensor in method.training_state().items()}
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        losses = method(clips, seeded())
    losses["loss"].backward()
    for name, tensor in state.items():
        method.training_state()[name].copy_(tensor)
    gradients = {
        name: torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.clone()
        for name, parameter in method.named_parameters()
    }
    return {name: loss.item() for name, loss in losses.items()}, gradients


def tensor_fields(clips):
    return {
        f.name: getattr(clips, f.name)
        for f in fields(clips)
        if isinstance(getattr(clips, f.name), Tensor)
    }


def test_initialization_depends_on_the_seed_only(each_method):
    def built(global_seed, **settings):
        torch.manual_seed(global_seed)
        method = build_method(12, resolve(each_method, "demo", settings))
        return method.state_dict(), torch.rand(1)

    (first, after) = built(0)
    (again, _) = built(1)
    (other, _) = built(0, seed=1)
    torch.manual_seed(0)
    assert torch.equal(after, torch.rand(1))  # the global generator is restored
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert any(not torch.equal(first[name], other[name]) for name in first)


def test_a_step_depends_on_clips_and_generator_only(make, make_batches):
    method = make()
    clips = make_batches(method).batch(0)
    before = [
        {name: value.clone() for name, value in tensor_fields(view).items()} for view in clips
    ]
    torch.manual_seed(0)
    state = torch.get_rng_state()
    losses, gradients = step(method, clips)
    assert torch.equal(state, torch.get_rng_state())
    torch.manual_seed(1)
    again, gradients_again = step(method, clips)
    assert losses == again
    assert all(torch.equal(gradients[name], gradients_again[name]) for name in gradients)
    for view, copy in zip(clips, before, strict=True):
        assert all(torch.equal(value, copy[name]) for name, value in tensor_fields(view).items())


def test_losses_are_scalars_and_every_parameter_has_a_gradient(make, make_batches):
    method = make()
    clips = make_batches(method).batch(0)
    assert all(loss.shape == () for loss in method(clips, seeded()).values())
    _, gradients = step(method, clips)
    assert [name for name, gradient in gradients.items() if gradient.abs().sum() == 0] == []


def test_a_loss_is_the_mean_over_the_items(make, make_batches):
    """Distributed training relies on this property.

    Uses double precision, because TCC's gradients are large.
    """
    if make().needs_whole_batch:
        pytest.skip("cannot be split over processes")
    padded = set()
    clips_per_item = {"clips": 4} if hasattr(make(), "clips") else {}
    for seed in range(4):
        method = make(batch_size=2, seed=seed, **clips_per_item).double()
        clips = tuple(
            replace(
                view,
                **{
                    name: v.double()
                    for name, v in tensor_fields(view).items()
                    if v.is_floating_point()
                },
            )
            for view in make_batches(method).batch(0)
        )
        losses, gradients = step(method, clips)
        halves = []
        for item in range(2):
            rows = slice(item, item + 1)
            half = (
                replace(
                    view, **{n: v[rows] for n, v in tensor_fields(view).items()}, first_item=item
                )
                for view in clips
            )
            halves.append(step(method, tuple(half)))
        for name, loss in losses.items():
            assert loss == pytest.approx(sum(half[0][name] for half in halves) / 2, rel=1e-9)
        for name, gradient in gradients.items():
            torch.testing.assert_close(
                gradient, sum(half[1][name] for half in halves) / 2, atol=1e-9, rtol=1e-9
            )
        padded |= {tuple(view.padding.any(dim=1).tolist()) for view in clips}
    # Some batch has one padded item and one without padding.
    assert padded & {(True, False), (False, True)}


def test_mixed_precision_is_finite_and_close(make, make_batches):
    method = make()
    batches = make_batches(method)
    for number in range(3):
        clips = batches.batch(number)
        (exact, _) = step(method, clips)
        (mixed, gradients) = step(method, clips, autocast=True)
        assert mixed == pytest.approx(exact, rel=0.1)
        assert all(gradient.isfinite().all() for gradient in gradients.values())


@pytest.mark.parametrize("value", [0.0, 1e4])
def test_constant_features_give_finite_losses_and_gradients(make, make_batches, value):
    method = make()
    clips = make_batches(method).batch(0)
    constant = tuple(
        replace(view, features=torch.full_like(view.features, value)) for view in clips
    )
    losses, gradients = step(method, constant)
    assert all(np.isfinite(loss) for loss in losses.values())
    assert all(gradient.isfinite().all() for gradient in gradients.values())


@pytest.mark.slow
def test_one_batch_is_overfit(make, make_batches, training_data, each_method):
    # Weighted losses are relative to a running mean, so they need not fall.
    changes = {"latent": 32, "weighted": False}
    known = config_class(each_method).settings()
    config = make(**{name: value for name, value in changes.items() if name in known}).config
    method = build_method(training_data.width, config)
    clips = make_batches(method).batch(0)
    optimizer = torch.optim.Adam(method.parameters(), lr=3e-3)
    losses = []
    for _ in range(100):
        loss = method(clips, seeded())["loss"]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert np.median(losses[-20:]) < 0.7 * losses[0]  # the entropy of soft targets is a lower bound


def test_a_saved_model_loads(make, each_method, tmp_path):
    method = make(standardize="video", training={"dataset": "demo"})
    folder = tmp_path / "model"
    method.save_pretrained(folder)
    assert {path.name for path in folder.iterdir()} == {
        "config.json",
        "model.safetensors",
        "README.md",
    }
    assert load_file(folder / "model.safetensors").keys() == method.state_dict().keys()
    loaded = Method.from_pretrained(folder)
    assert type(loaded) is METHODS[each_method]
    assert (loaded.width, loaded.config, loaded.record) == (
        method.width,
        method.config,
        {"dataset": "demo"},
    )
    features = torch.randn(9, method.width)
    assert torch.equal(loaded.embed(features), method.embed(features))
    other = Timeline if METHODS[each_method] is not Timeline else Byov
    with pytest.raises(TrainError, match=f"a {each_method} model, not a {other.__name__}"):
        other.from_pretrained(folder)


def test_embeddings_have_no_gradient_and_ignore_the_training_mode(make):
    method = make()
    features = torch.randn(20, method.width)
    embedding = method.train().embed(features)
    assert (embedding.dtype, embedding.requires_grad, len(embedding)) == (torch.float32, False, 20)
    method.embed(torch.randn(7, method.width))
    assert torch.equal(embedding, method.eval().embed(features))


@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_numpy_features_are_embedded_like_tensors(make, dtype):
    method = make(standardize="video")
    features = np.random.default_rng(0).normal(size=(13, method.width)).astype(dtype)
    features.setflags(write=False)
    for given in (features, features[::-1]):
        assert torch.equal(method.embed(given), method.embed(torch.from_numpy(given.copy())))


def test_embed_standardizes_if_the_settings_say_so(make):
    features = (torch.randn(11, make().width) * 4 + 2).half()
    plain = make(standardize="none")
    standardized = make(standardize="video")
    torch.testing.assert_close(
        standardized.embed(features), plain.embed(standardize(features.float()))
    )
    assert not torch.allclose(standardized.embed(features), plain.embed(features), atol=1e-2)


def test_features_are_standardized_over_the_dataset(make, make_batches, training_data, tmp_path):
    """The statistics are those of all training frames, and part of the saved model."""
    method = make(standardize="dataset")
    plain = make(standardize="none")
    make_batches(method)
    frames = np.concatenate(
        [read_array(video.path, "merged/0.3") for video in training_data.split("train")]
    )
    mean = frames.astype(np.float64).mean(axis=0)
    deviation = frames.astype(np.float64).std(axis=0)
    features = torch.randn(11, method.width)
    expected = plain.embed((features.numpy() - mean) / (deviation + SMALLEST_DEVIATION))
    torch.testing.assert_close(method.embed(features), expected)
    method.save_pretrained(tmp_path)
    torch.testing.assert_close(
        Method.from_pretrained(tmp_path).embed(features), method.embed(features)
    )


@pytest.mark.parametrize(
    "method",
    [name for name in METHODS if "backbone" in config_class(name).settings()],
)
@pytest.mark.parametrize("backbone", ["frame", "transformer", "encoder"])
def test_every_backbone_trains(make_method, make_batches, training_data, method, backbone):
    model = make_method(method, width=training_data.width, backbone=backbone)
    losses, gradients = step(model, make_batches(model).batch(0))
    assert all(np.isfinite(loss) for loss in losses.values())
    assert all(gradient.isfinite().all() for gradient in gradients.values())
    needs_whole_batch = backbone == "transformer" or method in (
        "carl",
        "actor-observer",
        "timeline",
    )
    assert (model.needs_whole_batch is not None) == needs_whole_batch


TRIPLETS = {"tcn_loss": "triplet", "frames": 20}


LOSS_SETTINGS = [
    ("byov", {"cycle": 1.0}, {"order_prior": 0.1}),
    (
        "timeline",
        {},
        {
            "sigma": 0.5,
            "temperature": 0.5,
            "feature_dropout": 0.0,
            "label_weight": 1.0,
            "intra_weight": 0.0,
        }
        | {"variance": 2.0, "progress_labels": "linear"},
    ),
    ("tcc", {}, {"tcc_loss": "mse", "temperature": 0.5, "variance_weight": 0.1}),
    ("tcc", {"tcc_loss": "classification"}, {"tcc_loss": "variance"}),
    ("gta", {}, {"unnormalized": True, "temperature": 0.5, "gamma": 0.5}),
    (
        "ae2-alignment",
        {"margin": 1.0},
        {"contrastive": False, "subset": 3, "margin": 0.5, "reversed_weight": 3.0},
    ),
    ("ae2-alignment", {}, {"halves": True, "temperature": 0.5, "gamma": 0.5}),
    ("carl", {}, {"variance": 2.0, "temperature": 0.5, "feature_dropout": 0.5}),
    ("tcn", TRIPLETS, {"margin": 0.5}),
    ("actor-observer", {}, {"weighted": False}),
]


@pytest.mark.parametrize(("method", "given", "changes"), LOSS_SETTINGS, ids=str)
def test_loss_settings_change_the_loss(
    make_method, make_batches, training_data, method, given, changes
):
    default = make_method(method, width=training_data.width, **given)
    clips = make_batches(default).batch(0)
    expected = default(clips, seeded(3))["loss"]
    for setting, value in changes.items():
        other = make_method(method, width=training_data.width, **given | {setting: value})
        make_batches(other)  # starts its training, which initializes training-only state
        other.load_state_dict(default.state_dict(), strict=False)
        assert other(clips, seeded(3))["loss"] != expected, setting


SAMPLING_SETTINGS = [
    ("byov", {}, {"crop": (0.4, 0.8), "pairs": "any"}),
    ("timeline", {}, {"whole": 1.0, "clips": 4}),
    ("tcc", {}, {"crop": (0.4, 0.8), "pairs": "views"}),
    ("tcn", {}, {"crop": (0.4, 0.8)}),
    ("tcn", TRIPLETS, {"crop": (0.4, 0.8)}),
    ("actor-observer", {}, {"far": 0.6}),
]


@pytest.mark.parametrize(("method", "given", "changes"), SAMPLING_SETTINGS, ids=str)
def test_sampling_settings_change_the_clips(make_method, training_data, method, given, changes):
    def drawn(**changed):
        sampler = make_method(method, width=training_data.width, **(given | changed)).sampler(
            training_data.split("train")
        )
        return [
            [
                (draw.video.id, draw.first, draw.end, draw.rows.tolist())
                for draw in sampler.draw(0, 0, item)
            ]
            for item in range(20)
        ]

    expected = drawn()
    for setting, value in changes.items():
        assert drawn(**{setting: value}) != expected, setting


@pytest.mark.parametrize(
    ("method", "settings", "message"),
    [
        ("timeline", {}, None),
        ("tcn", {}, None),
        ("carl", {}, None),
        ("tcc", {}, None),
        ("gta", {}, None),
        ("ae2-alignment", {}, None),
        ("byov", {"pairs": "any"}, None),
        ("byov", {}, "no ego video.*--pairs any"),
        ("tcn", {"tcn": "unpaired"}, "no ego video.*--tcn single"),
        ("actor-observer", {}, "no ego and exo videos of the same performance"),
    ],
)
def test_one_view_is_enough_unless_the_method_compares_views(
    make_method, make_cache, method, settings, message
):
    videos = {("train", "exo", name): 20 for name in ("a", "b", "c")}
    data = open_training_data(make_cache(videos, phases=()), None, None, 0.3)
    model = make_method(method, width=data.width, **settings)
    store = FeatureStore(data, data.split("train"), 2**30)
    if message:
        with pytest.raises(TrainError, match=message):
            training_batches(model, data.split("train"), store, model.config)
    else:
        batches = training_batches(model, data.split("train"), store, model.config)
        losses, _ = step(model, batches.batch(0))
        assert np.isfinite(losses["loss"])
