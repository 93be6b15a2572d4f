from pathlib import Path

import numpy as np
import pytest
import torch

from byov.cache.layout import selected_tokens
from byov.extract.token_merging import TokenMerger, merge_tokens

GOLDEN = Path(__file__).parents[1] / "golden" / "token_merging.npz"
RATIOS = (0.1, 0.2, 0.3, 0.4, 0.5, 1.0)


def naive(tokens, ratio):
    """Merge tokens frame by frame."""
    frames, count, _ = tokens.shape
    merged = []
    for t in range(frames):
        if frames == 1:
            merged.append(tokens[0].mean(0))
            continue
        a, b = (t, t + 1) if t + 1 < frames else (t - 1, t)
        scores = np.abs(tokens[a] - tokens[b]).mean(-1)
        best = np.argsort(-scores, kind="stable")[: max(1, round(count * ratio))]
        merged.append(tokens[t][best].mean(0))
    return np.stack(merged)


def random_tokens(frames, tokens=13, width=5, seed=0):
    return torch.from_numpy(
        np.random.default_rng(seed).standard_normal((frames, tokens, width)).astype(np.float32)
    )


def test_golden_values():
    with np.load(GOLDEN) as golden:
        ratios = golden["ratios"].tolist()
        merged = merge_tokens(torch.from_numpy(golden["tokens"]), ratios)
        assert len(ratios) == 6
        for ratio in ratios:
            np.testing.assert_allclose(
                merged[ratio].numpy(), golden[f"merged_{ratio}"], atol=1e-6, rtol=0
            )


@pytest.mark.parametrize("frames", [1, 2, 3, 20])
def test_matches_naive_implementation(frames):
    tokens = random_tokens(frames)
    merged = merge_tokens(tokens, RATIOS)
    for ratio in RATIOS:
        np.testing.assert_allclose(merged[ratio].numpy(), naive(tokens.numpy(), ratio), atol=1e-6)


@pytest.mark.usefixtures("one_torch_thread")  # the extraction also uses one thread
@pytest.mark.parametrize("cuts", [[1] * 40, [40], [7, 1, 30, 2], [39, 1], [0, 5, 0, 35]])
@pytest.mark.parametrize(("count", "width"), [(13, 5), (196, 768)])
def test_streaming_is_bit_identical_for_any_chunks(cuts, count, width):
    tokens = random_tokens(40, count, width)
    merger = TokenMerger(RATIOS)
    parts = [merger.push(piece) for piece in tokens.split(cuts)] + [merger.finish()]
    merged = torch.cat([part for part, _ in parts])
    whole = merge_tokens(tokens, RATIOS)
    for index, ratio in enumerate(RATIOS):
        assert torch.equal(merged[:, index], whole[ratio])


def test_order_starts_with_the_token_that_changed():
    tokens = torch.zeros(3, 8, 4)
    tokens[1, 5] = 1
    merger = TokenMerger([0.1])
    order = torch.cat([merger.push(tokens)[1], merger.finish()[1]])
    assert order[:, 0].tolist() == [5, 5, 5]
    assert all(sorted(row) == list(range(8)) for row in order.tolist())


def test_at_least_one_token_is_selected():
    assert selected_tokens(49, 0.001) == 1
    assert selected_tokens(196, 0.3) == 59
    assert selected_tokens(256, 0.3) == 77


def test_half_precision_tokens_are_merged_in_float32():
    tokens = random_tokens(9).half()
    merged = merge_tokens(tokens, [0.3])[0.3]
    assert merged.dtype == torch.float32
    np.testing.assert_allclose(merged.numpy(), naive(tokens.float().numpy(), 0.3), atol=1e-6)


@pytest.mark.parametrize("ratios", [[0], [1.1], [-0.3], [], [0.3, 0.3], [float("nan")]])
def test_invalid_ratios(ratios):
    with pytest.raises(ValueError, match="ratio"):
        TokenMerger(ratios)


def test_finish_without_frames():
    with pytest.raises(ValueError, match="no frame"):
        TokenMerger([0.3]).finish()


def test_a_ratio_does_not_depend_on_the_other_ratios():
    tokens = torch.randn(40, 64, 128, generator=torch.Generator().manual_seed(3))
    together = merge_tokens(tokens, [0.1, 0.3, 0.5, 1.0])
    for ratio, merged in together.items():
        assert torch.equal(merge_tokens(tokens, [ratio])[ratio], merged)
        assert torch.equal(merge_tokens(tokens, [ratio, 0.2])[ratio], merged)
