from dataclasses import replace

import pytest
import torch
from tests.train.conftest import seeded

from byov.train import backbones
from byov.train.backbones import HIDDEN, FrameHead
from byov.train.methods.base import build_method
from byov.train.registry import resolve

WIDTH = 12


def build(backbone, **settings):
    sizes = {"depth": 2, "heads": 2} if backbone == "encoder" else {}
    given = {"backbone": backbone, "latent": 8, "frames": 6} | sizes | settings
    return build_method(WIDTH, resolve("tcc", "demo", given)).backbone


@pytest.mark.parametrize("kind", ["frame", "transformer", "encoder"])
def test_embed_equals_the_training_pass_without_dropout(kind, make_clips, monkeypatch):
    monkeypatch.setattr(backbones, "DROPOUT", 0.0)
    backbone = build(kind, **({"context": 2} if kind == "frame" else {}))
    features = torch.randn(1, 6, WIDTH)
    clip = make_clips(
        1,
        6,
        features=features,
        context=features[:, [0, 0, 0, 1, 2, 3]],
        index=torch.arange(6)[None],
    )
    (encoded,) = backbone.eval()([clip], seeded())
    torch.testing.assert_close(backbone.embed(features[0]), encoded[0], atol=1e-6, rtol=1e-5)


def test_padding_does_not_change_the_embedding_of_a_short_clip(make_clips):
    transformer = build("transformer").eval()
    features = torch.randn(4, WIDTH)
    rows = torch.tensor([0, 1, 2, 3, 3, 3])
    padding = torch.tensor([[False] * 4 + [True] * 2])
    clip = make_clips(1, 6, features=features[rows][None], index=rows[None], padding=padding)
    (padded,) = transformer([clip], seeded())
    torch.testing.assert_close(padded[0, :4], transformer.embed(features), atol=1e-6, rtol=1e-5)


def test_the_context_of_the_first_frames_is_the_first_frame():
    head = build("frame", context=3)
    features = torch.randn(8, WIDTH)
    changed = features.clone()
    changed[0] += 1
    reached = (head.embed(features) != head.embed(changed)).any(dim=1)
    assert reached.tolist() == [True] * 4 + [False] * 4
    alone = build("frame", context=0)
    assert (alone.context, alone.fc1.weight.shape) == (0, (HIDDEN, WIDTH))


@pytest.mark.parametrize(
    ("backbone", "settings", "is_causal"),
    [
        ("frame", {}, True),
        ("transformer", {}, False),
        ("encoder", {}, False),
        ("encoder", {"position": "normalized"}, False),
        ("encoder", {"position": "index"}, True),
        ("encoder", {"position": "none"}, True),
    ],
)
def test_backbones_that_suit_live_video(backbone, settings, is_causal):
    assert build(backbone, **settings).is_causal == is_causal


def test_dropout_of_an_item_does_not_depend_on_the_others(make_clips):
    head = FrameHead(WIDTH, 8, 15)
    both = make_clips(2, 6, context=torch.randn(2, 6, WIDTH, generator=seeded(7)))
    (together,) = head([both], seeded())
    for item in range(2):
        fields = {
            n: v[item : item + 1] for n, v in vars(both).items() if isinstance(v, torch.Tensor)
        }
        (alone,) = head([replace(both, **fields, first_item=item)], seeded())
        torch.testing.assert_close(together[item : item + 1], alone)
    assert not torch.allclose(together, head([both], seeded(1))[0])


def test_the_transformer_does_not_attend_to_padding(make_clips):
    transformer = build("transformer").eval()
    padding = torch.tensor([[False] * 4 + [True] * 2])
    clip = make_clips(1, 6, padding=padding)
    changed = replace(clip, features=clip.features + 5.0 * padding[..., None])
    (before,) = transformer([clip], seeded())
    (after,) = transformer([changed], seeded())
    torch.testing.assert_close(before[:, :4], after[:, :4])
    assert not torch.allclose(before[:, 4:], after[:, 4:])
