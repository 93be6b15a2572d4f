"""What holds of every method, whatever it learns: a new one is tested here by its line in the registry."""

import copy
from dataclasses import fields, replace

import numpy as np
import pytest
import torch
from torch import Tensor

from byov.cache.features import standardize
from byov.train import networks
from byov.train.method_settings import choose
from byov.train.methods.base import Method
from byov.train.methods.method_registry import METHODS, build_method

SEED = 5


def seeded(seed=SEED):
    return torch.Generator().manual_seed(seed)


@pytest.fixture
def make(make_method, training_data, each_method):
    """make(**settings): a tiny model of the method at hand, as wide as the features of `training_data`."""
    return lambda **settings: make_method(each_method, width=training_data.width, **settings)


def gradients(method, clips, autocast=False):
    """The losses, and the gradient of each weight, zero where none arrives; the method remembers nothing of it."""
    method.zero_grad()
    memory = {name: tensor.clone() for name, tensor in method.memory().items()}
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        losses = method(clips, seeded())
    losses["loss"].backward()
    for name, tensor in memory.items():
        method.memory()[name].copy_(tensor)
    found = {
        name: torch.zeros_like(weights) if weights.grad is None else weights.grad.clone()
        for name, weights in method.named_parameters()
    }
    return {name: loss.item() for name, loss in losses.items()}, found


def some_items(batch, rows):
    """The clips of some neighboring items of a step, as another process would have them."""
    return tuple(
        replace(
            clips,
            **{
                field.name: getattr(clips, field.name)[rows]
                for field in fields(clips)
                if isinstance(getattr(clips, field.name), Tensor)
            },
            first_item=rows.start,
        )
        for clips in batch
    )


def test_a_method_is_built_by_the_seed_alone(each_method):
    def built(global_seed, **settings):
        torch.manual_seed(global_seed)
        method = build_method(12, choose("demo", method=each_method, **settings))
        return method.state_dict(), torch.rand(1)

    (first, after), (again, _), (other, _) = built(0), built(1), built(0, seed=1)
    torch.manual_seed(0)
    assert torch.equal(after, torch.rand(1))  # nobody else's random numbers were used up
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert any(not torch.equal(first[name], other[name]) for name in first)


def test_a_step_depends_on_its_clips_and_its_generator_alone(make, make_batches):
    method = make()
    clips = make_batches(method).batch(0)
    torch.manual_seed(0)
    state = torch.get_rng_state()
    losses, found = gradients(method, clips)
    assert torch.equal(state, torch.get_rng_state())
    torch.manual_seed(1)
    again, found_again = gradients(method, clips)
    assert losses == again
    assert all(torch.equal(found[name], found_again[name]) for name in found)
    assert method(clips, seeded(SEED + 1))["loss"].item() != losses["loss"]


def test_losses_are_single_numbers_and_every_weight_learns(make, make_batches):
    method = make()
    clips = make_batches(method).batch(0)
    assert all(loss.shape == () for loss in method(clips, seeded()).values())
    _, found = gradients(method, clips)
    assert [name for name, gradient in found.items() if gradient.abs().sum() == 0] == []


def test_the_clips_are_left_as_they_are(make, make_batches):
    method = make()
    clips = make_batches(method).batch(0)
    before = copy.deepcopy(clips)
    gradients(method, clips)
    for ours, theirs in zip(clips, before, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(tensors(ours), tensors(theirs), strict=True))


def tensors(clips):
    return [value for value in vars(clips).values() if isinstance(value, Tensor)]


def in_double_precision(batch):
    return tuple(
        replace(
            clips,
            features=clips.features.double(),
            context=None if clips.context is None else clips.context.double(),
        )
        for clips in batch
    )


def test_a_loss_is_the_mean_over_the_items_wherever_they_are(make, make_batches):
    """What DistributedDataParallel counts on: gradients of equal shares of the items, averaged, are those of all.

    In double precision: in single, TCC's gradients of thousands leave errors of 1e-4 where a sum of them is zero.
    """
    if make().needs_whole_steps:
        pytest.skip("several processes cannot train it, and are told so")
    padded = set()
    for seed in range(4):
        method = make(batch_size=2, seed=seed, **({"clips": 2} if hasattr(make().settings, "clips") else {}))
        clips = in_double_precision(make_batches(method.double()).batch(0))
        assert clips[0].items == 2
        together, of_both = gradients(method, clips)
        parts = [gradients(method, some_items(clips, slice(item, item + 1))) for item in range(2)]
        for name, loss in together.items():
            assert loss == pytest.approx(sum(losses[name] for losses, _ in parts) / 2, rel=1e-9)
        for name, gradient in of_both.items():
            mean = sum(found[name] for _, found in parts) / 2
            torch.testing.assert_close(gradient, mean, atol=1e-9, rtol=1e-9)
        padded |= {tuple(view.repeated.any(dim=1).tolist()) for view in clips}
    assert padded & {(True, False), (False, True)}  # one item with padding beside one without was among them


def test_mixed_precision_gives_finite_losses_and_gradients(make, make_batches):
    method = make()
    batches = make_batches(method)
    for step in range(3):
        clips = batches.batch(step)
        (exact, _), (mixed, found) = gradients(method, clips), gradients(method, clips, autocast=True)
        assert mixed == pytest.approx(exact, rel=0.1)
        assert all(gradient.isfinite().all() for gradient in found.values())


def test_features_of_any_size_give_finite_losses_and_gradients(make, make_batches):
    method = make()
    clips = make_batches(method).batch(0)
    for features in (0.0, 1e-6, 1e4):
        losses, found = gradients(
            method, tuple(replace(view, features=torch.full_like(view.features, features)) for view in clips)
        )
        assert all(torch.tensor(loss).isfinite() for loss in losses.values())
        assert all(gradient.isfinite().all() for gradient in found.values())


@pytest.mark.slow
def test_one_batch_is_overfit(make, make_batches, training_data, each_method):
    plain = {"weighted": False} if each_method == "actor-observer" else {}  # beside running means a loss tells nothing
    method = build_method(training_data.width, make(latent=32, **plain).settings)
    clips = make_batches(method).batch(0)
    optimizer = torch.optim.Adam(method.parameters(), lr=3e-3)
    losses = []
    for _ in range(150):
        loss = method(clips, seeded())["loss"]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.7 * losses[0]  # soft targets leave a rest that cannot be learned


def test_a_saved_model_is_loaded_as_it_was(make, each_method, tmp_path):
    method = make(standardize="video", training={"dataset": "demo"})
    method.save_pretrained(tmp_path)
    loaded = Method.from_pretrained(tmp_path)
    assert type(loaded) is METHODS[each_method]
    assert (loaded.width, loaded.settings, loaded.record) == (method.width, method.settings, {"dataset": "demo"})
    assert loaded.state_dict().keys() == method.state_dict().keys()
    assert all(torch.equal(loaded.state_dict()[name], weights) for name, weights in method.state_dict().items())
    features = torch.randn(9, method.width)
    assert torch.equal(loaded.embed(features), method.embed(features))
    assert type(METHODS[each_method].from_pretrained(tmp_path)) is METHODS[each_method]


def test_an_embedding_has_no_gradient_and_is_the_same_in_training_and_after_other_clips(make):
    method = make()
    features, others = torch.randn(20, method.width), torch.randn(7, method.width)
    found = method.train().embed(features)
    assert (found.dtype, found.requires_grad, found.shape[0], found.ndim) == (torch.float32, False, 20, 2)
    method.embed(others)
    assert torch.equal(found, method.eval().embed(features))
    assert all(weights.grad is None for weights in method.parameters())


@pytest.mark.parametrize("frames", [1, 2, 5, 23])
def test_a_long_clip_is_embedded_in_pieces_as_if_whole(make, monkeypatch, frames):
    method, features = make(), torch.randn(frames, make().width)
    whole = method.embed(features)
    monkeypatch.setattr(networks, "CHUNK_ROWS", 4)
    torch.testing.assert_close(method.embed(features), whole, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
def test_numpy_features_are_embedded_as_tensors_are(make, kind):
    method, features = make(standardize="video"), np.random.default_rng(0).normal(size=(13, make().width)).astype(kind)
    features.setflags(write=False)
    expected = method.embed(torch.from_numpy(features.copy()))
    assert torch.equal(method.embed(features), expected)
    assert torch.equal(method.embed(features[::-1]), method.embed(torch.from_numpy(features[::-1].copy())))
    assert not torch.equal(method.embed(features[::-1]), expected)


def test_embedding_takes_features_as_they_stand_in_the_cache(make):
    features = (torch.randn(11, make().width) * 4 + 2).half()
    plain, standard = make(standardize="none"), make(standardize="video")
    torch.testing.assert_close(plain.embed(features), plain.embed(features.float()))
    torch.testing.assert_close(standard.embed(features), plain.embed(standardize(features.float())))
    assert not torch.allclose(standard.embed(features), plain.embed(features), atol=1e-2)


def test_a_sampler_gives_the_clips_that_the_method_takes(make, make_batches, training_data):
    method = make()
    sampler = method.sampler(training_data.of("train"))
    assert sampler.items >= 1
    assert {video.path for video in sampler.videos} == {video.path for video in training_data.of("train")}
    batches = make_batches(method)
    for step in range(batches.steps_per_epoch):
        clips = batches.batch(step)
        for view, draws in zip(clips, zip(*drawn(sampler, method, step), strict=True), strict=True):
            assert view.frame[0].tolist() == (draws[0].first + draws[0].rows).tolist()
        assert torch.isfinite(method(clips, seeded())["loss"])


def drawn(sampler, method, step):
    """The draws of a step's items, in the first epoch."""
    size = method.settings.batch_size
    return [sampler.draw(method.settings.seed, 0, item) for item in range(step * size, (step + 1) * size)]
