import pytest
import torch
from torch import nn

from byov.train import networks
from byov.train.networks import Block, Group, within


@pytest.fixture
def block():
    torch.manual_seed(0)
    made = Block(8, 2)
    for parameter in made.parameters():
        nn.init.normal_(parameter, std=0.5)
    return made


def reference(block):
    """The same weights in PyTorch's own pre-norm layer."""
    layer = nn.TransformerEncoderLayer(8, 2, 32, dropout=0, activation="gelu", norm_first=True, batch_first=True)
    theirs = {
        "self_attn.in_proj_weight": block.qkv.weight,
        "self_attn.in_proj_bias": block.qkv.bias,
        "self_attn.out_proj.weight": block.proj.weight,
        "self_attn.out_proj.bias": block.proj.bias,
    }
    for name in ("weight", "bias"):
        theirs |= {f"linear{n}.{name}": getattr(getattr(block, f"fc{n}"), name) for n in (1, 2)}
        theirs |= {f"norm{n}.{name}": getattr(getattr(block, f"norm{n}"), name) for n in (1, 2)}
    layer.load_state_dict(theirs)
    return layer


@pytest.mark.parametrize("causal", [False, True])
def test_a_block_is_the_usual_pre_norm_block(block, causal):
    x = torch.randn(3, 5, 8)
    mask = torch.ones(5, 5, dtype=torch.bool).triu(1) if causal else None
    expected = reference(block)(x, src_mask=mask, is_causal=causal)
    found = block(x.flatten(0, 1), [Group(3, 5, causal=causal)]).view(3, 5, 8)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_packed_sequences_are_those_that_pass_alone(block):
    groups = [Group(2, 3), Group(1, 5, causal=True), Group(2, 0), Group(2, 4)]
    x = torch.randn(sum(part.rows for part in groups), 8)
    rows = torch.split(x, [part.rows for part in groups])
    alone = [block(part_rows, [part]) for part_rows, part in zip(rows, groups, strict=True)]
    torch.testing.assert_close(block(x, groups), torch.cat(alone))


def test_no_sequence_sees_another(block):
    groups = [Group(2, 3), Group(2, 4, causal=True)]
    x = torch.randn(14, 8, requires_grad=True)
    block(x, groups)[3:6].sum().backward()  # the second sequence
    reached = x.grad.abs().sum(1) > 0
    assert reached.tolist() == [False] * 3 + [True] * 3 + [False] * 8


def test_causal_attention_lets_nothing_flow_backwards(block):
    x = torch.randn(5, 8, requires_grad=True)
    for t in range(5):
        x.grad = None
        block(x, [Group(1, 5, causal=True)])[t].sum().backward()
        assert (x.grad.abs().sum(1) > 0).tolist() == [frame <= t for frame in range(5)]


def test_a_mask_hides_frames(block):
    index = torch.tensor([0, 1, 5, 6])
    x = torch.randn(4, 8, requires_grad=True)
    block(x, within([Group(1, 4)], index, 1))[1].sum().backward()
    assert (x.grad.abs().sum(1) > 0).tolist() == [True, True, False, False]


def test_without_frames_nothing_comes_out(block):
    assert block(torch.zeros(0, 8), [Group(2, 0)]).shape == (0, 8)
    masked = within([Group(2, 0)], torch.zeros(0, dtype=torch.int64), 3)
    assert block(torch.zeros(0, 8), masked).shape == (0, 8)


@pytest.mark.parametrize("window", [None, 0, 1, 3, 40])
@pytest.mark.parametrize("frames", [1, 4, 5, 8, 23])
def test_long_sequences_in_pieces_are_what_they_are_whole(block, monkeypatch, frames, window):
    monkeypatch.setattr(networks, "CHUNK_ROWS", 4)
    x = torch.randn(frames, 8)
    groups = [Group(1, frames)]
    if window is not None:
        groups = within(groups, torch.arange(frames), window)
    with torch.no_grad():
        torch.testing.assert_close(block.forward_long(x, window), block(x, groups), atol=1e-6, rtol=1e-5)


def test_long_sequences_never_pass_as_a_whole(block, monkeypatch):
    """Neither the wide rows of the perceptron nor a window's mask may grow with the length of the video."""
    monkeypatch.setattr(networks, "CHUNK_ROWS", 4)
    rows, masks = [], []
    block.fc1.register_forward_hook(lambda _, given, __: rows.append(len(given[0])))
    attend = torch.nn.functional.scaled_dot_product_attention

    def watched(q, k, v, attn_mask):
        masks.append(attn_mask.numel())
        return attend(q, k, v, attn_mask=attn_mask)

    monkeypatch.setattr(networks.F, "scaled_dot_product_attention", watched)
    with torch.no_grad():
        block.forward_long(torch.randn(30, 8), 2)
    assert (sum(rows), max(rows)) == (30, 4)
    assert max(masks) == 4 * (4 + 2 * 2)
