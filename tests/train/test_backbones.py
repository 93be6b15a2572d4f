from dataclasses import replace

import pytest
import torch

from byov.errors import SettingsError
from byov.train import networks
from byov.train.method_settings import choose
from byov.train.networks import HIDDEN, FrameHead, build_backbone, evaluating, seeded

WIDTH = 12
KINDS = ("frame", "transformer", "encoder")


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def built(backbone, **settings):
    sizes = {"depth": 2, "heads": 2} if backbone == "encoder" else {}
    torch.manual_seed(0)
    return build_backbone(
        WIDTH, choose("demo", method="tcc", backbone=backbone, latent=8, frames=6, **sizes, **settings)
    )


@pytest.fixture
def with_context(make_clips):
    """with_context(batch, frames, **fields): clips with features of an earlier frame beside each."""
    return lambda batch, frames, **fields: make_clips(
        batch, frames, context=torch.randn(batch, frames, WIDTH, generator=generator(7)), **fields
    )


@pytest.fixture
def _no_dropout(monkeypatch):
    monkeypatch.setattr(networks, "DROPOUT", 0.0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.usefixtures("_no_dropout")
def test_a_whole_clip_is_embedded_as_in_training_but_for_chance(kind, make_clips):
    backbone = built(kind, **({"context": 2} if kind == "frame" else {}))
    features = torch.randn(1, 6, WIDTH)
    earlier = features[:, [0, 0, 0, 1, 2, 3]]
    clip = make_clips(1, 6, features=features, context=earlier, index=torch.arange(6)[None])
    with evaluating(backbone):
        (found,) = backbone([clip], generator())
    torch.testing.assert_close(backbone.embed(features[0]), found[0], atol=1e-6, rtol=1e-5)
    assert not backbone.embed(features[0]).requires_grad


@pytest.mark.parametrize("kind", KINDS)
def test_clips_come_back_one_by_one(kind, with_context):
    backbone = built(kind).eval()
    clips = [with_context(2, 6, seed=1), with_context(3, 6, seed=2)]
    assert [tuple(latents.shape) for latents in backbone(clips, generator())] == [(2, 6, 8), (3, 6, 8)]


def test_each_frame_is_seen_by_itself_with_its_context_alone(with_context):
    head, clip = built("frame"), with_context(1, 6)
    (before,) = head([clip], generator())
    for what in ("features", "context"):
        changed = getattr(clip, what).clone()
        changed[0, 2] += 1
        (after,) = head([replace(clip, **{what: changed})], generator())
        assert [bool((before[0, frame] != after[0, frame]).any()) for frame in range(6)] == [n == 2 for n in range(6)]


def test_without_context_a_frame_is_all_there_is(make_clips):
    head = built("frame", context=0)
    assert head.context == 0
    assert head.fc1.weight.shape == (HIDDEN, WIDTH)
    features = torch.randn(9, WIDTH)
    torch.testing.assert_close(head.embed(features)[4:5], head.embed(features[4:5]))
    assert head([make_clips(2, 6)], generator())[0].shape == (2, 6, 8)


def test_the_context_of_a_clips_first_frames_is_its_first_frame():
    head = built("frame", context=3)
    features = torch.randn(8, WIDTH)
    changed = features.clone()
    changed[0] += 1
    touched = (head.embed(features) != head.embed(changed)).any(dim=1)
    assert touched.tolist() == [True, True, True, True, False, False, False, False]


def test_an_items_dropout_does_not_depend_on_the_items_beside_it(with_context):
    head, both = FrameHead(WIDTH, 8, 15), with_context(2, 6)
    (together,) = head([both], generator())
    for item in range(2):
        fields = {n: v[item : item + 1] for n, v in vars(both).items() if isinstance(v, torch.Tensor)}
        (alone,) = head([replace(both, **fields, first_item=item)], generator())
        torch.testing.assert_close(together[item : item + 1], alone)
    (other,) = head([both], generator(1))
    assert not torch.allclose(together, other)


def test_about_a_tenth_is_dropped_and_the_rest_is_larger(make_clips):
    factors = networks._dropout([make_clips(4, 32)], generator())
    assert factors.unique().tolist() == [0.0, pytest.approx(1 / 0.9)]
    assert (factors == 0).float().mean().item() == pytest.approx(0.1, abs=0.01)


@pytest.mark.usefixtures("_no_dropout")
def test_no_frame_attends_to_padding(make_clips):
    transformer = built("transformer").eval()
    padding = torch.tensor([[False] * 4 + [True] * 2])
    clip = make_clips(1, 6, padding=padding)
    changed = replace(clip, features=clip.features + 5.0 * padding[..., None])
    (before,), (after,) = transformer([clip], generator()), transformer([changed], generator())
    torch.testing.assert_close(before[:, :4], after[:, :4])
    assert not torch.allclose(before[:, 4:], after[:, 4:])


def test_positions_of_the_transformer_are_stretched():
    transformer = built("transformer")
    features = torch.ones(12, WIDTH)
    found = transformer.embed(features)
    assert not torch.allclose(found[0], found[-1], atol=1e-3)  # nothing but the place tells them apart


def test_chance_within_comes_from_the_generator_alone():
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    with seeded(generator(), torch.device("cpu")):
        first = torch.rand(4)
    with seeded(generator(), torch.device("cpu")):
        again = torch.rand(4)
    with seeded(generator(1), torch.device("cpu")):
        other = torch.rand(4)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(torch.rand(2), expected)


@pytest.mark.parametrize("training", [True, False])
def test_a_network_is_evaluated_and_then_as_it_was(training):
    network = torch.nn.Sequential(torch.nn.Dropout()).train(training)

    def fail():
        with evaluating(network):
            assert not network[0].training
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert network[0].training == training


def test_the_frame_head_is_as_large_as_said_and_the_encoder_is_byovs():
    def parameters(method, **settings):
        network = build_backbone(768, choose("demo", method=method, **settings))
        return sum(weights.numel() for weights in network.parameters())

    assert parameters("tcc") == pytest.approx(1.2e6, rel=0.03)
    assert parameters("tcc", backbone="encoder") == pytest.approx(9.7e6, rel=0.03)


@pytest.mark.parametrize("method", ["tcc", "carl"])
def test_settings_of_the_encoder_are_refused_where_there_is_none(method):
    for given in ({"depth": 4}, {"position": "none"}, {"attention_window": 5}):
        (name,) = given
        message = rf"^{name} is of the backbone encoder, and the backbone is (frame|transformer)$"
        with pytest.raises(SettingsError, match=message):
            choose("demo", method=method, **given)
        assert getattr(choose("demo", method=method, backbone="encoder", **given), name) == given[name]
    assert choose("demo", method=method, latent=6).latent == 6  # which 16 heads do not divide
