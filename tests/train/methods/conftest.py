"""Losses of clips against golden cases, and clips with something behind their ends."""

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Any

import pytest
import torch
from numpy.typing import NDArray
from tests.train.methods.golden_cases import assert_met, tensors
from tests.train.methods.random_clips import random_frames
from torch import Tensor


@pytest.fixture
def meets_golden() -> Callable[..., None]:
    """meets_golden(loss_of, arrays, constants): loss_of([(1, T, D), ...]) and its gradients are those of the case."""

    def check(
        loss_of: Callable[[list[Tensor]], Tensor], arrays: Mapping[str, NDArray[Any]], constants: Mapping[str, Any]
    ) -> None:
        stored = tensors((dict(arrays), dict(constants)))
        names = [name for name in stored if name.startswith("embeddings_")]
        clips = [stored[name][None].requires_grad_() for name in names]
        loss = loss_of(clips)
        gradients = [gradient[0] for gradient in torch.autograd.grad(loss, clips)]
        numbered = (name.replace("embeddings", "gradient") for name in names)
        assert_met(stored, loss, **dict(zip(numbered, gradients, strict=True)))

    return check


@pytest.fixture
def lengthened() -> Callable[..., tuple[Tensor, Tensor]]:
    """lengthened((N, T, ...), frames): the same with random frames behind the last, (N, T + frames) True for those."""

    def lengthen(values: Tensor, frames: int, seed: int = 0) -> tuple[Tensor, Tensor]:
        shape = (len(values), frames, *values.shape[2:])
        behind = 3 * torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        padding = torch.arange(values.shape[1] + frames) >= values.shape[1]
        return torch.cat([values, behind.to(values.dtype)], dim=1), padding.expand(len(values), -1)

    return lengthen


@pytest.fixture
def same_without_padding() -> Callable[..., None]:
    """same_without_padding(found, long, expected, short): losses of pairs of clips, and the gradients of the first, are
    those of the clips without what is behind them, which has none."""

    def check(
        found: Sequence[Tensor], long: Sequence[Tensor], expected: Sequence[Tensor], short: Sequence[Tensor]
    ) -> None:
        assert [loss.item() for loss in found] == pytest.approx([loss.item() for loss in expected], rel=1e-12)
        gradients = torch.autograd.grad(found[0], long)
        for gradient, wanted in zip(gradients, torch.autograd.grad(expected[0], short), strict=True):
            frames = wanted.shape[1]
            torch.testing.assert_close(gradient[:, :frames], wanted)
            assert not gradient[:, frames:].any()

    return check


# What losses of pairs must bear: clips of one frame, of equal and of opposite frames, of none and of huge size.
EXTREMES = list(product([(6, 5), (1, 5), (6, 1), (1, 1)], ["all the same", "opposite", 0.0, 1.0, 1e3, 1e6]))


@pytest.fixture(params=EXTREMES, ids=str)
def extreme(request: pytest.FixtureRequest) -> tuple[tuple[int, int], str | float]:
    frames, kind = request.param
    return frames, kind


@pytest.fixture
def finite_on_extremes(extreme: tuple[tuple[int, int], str | float]) -> Callable[..., None]:
    """finite_on_extremes(losses_of, dtype): losses_of((2, T, 8), (2, S, 8)) and the gradients of the first are."""
    frames, kind = extreme

    def check(losses_of: Callable[[Tensor, Tensor], Sequence[Tensor]], dtype: torch.dtype) -> None:
        clips = [random_frames(2, count, 8, seed=count, dtype=dtype) for count in frames]
        if isinstance(kind, float):
            clips = [clip * kind for clip in clips]
        else:
            clips = [torch.ones_like(clips[0]), torch.ones_like(clips[1]) * (-1 if kind == "opposite" else 1)]
        first, second = (clip.requires_grad_() for clip in clips)
        losses = losses_of(first, second)
        assert all(loss.dtype == torch.float32 and loss.isfinite() for loss in losses)
        assert all(gradient.isfinite().all() for gradient in torch.autograd.grad(losses[0], (first, second)))

    return check
