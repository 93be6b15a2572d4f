"""Selective token merging (paper, sec. 3.3): of each frame, the mean of the tokens that change most to the next frame.

Score of a token: mean absolute difference to the same token of the next frame. The last frame has no next one and takes
the scores of the frame before it; all tokens of a one-frame video are merged. K = round(N * ratio), at least 1.

All ratios come from one sort. T frames, N tokens, D width, R ratios.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from byov.cache.layout import selected_tokens


@dataclass(frozen=True)
class MergedFrames:
    """Merged tokens of T consecutive frames."""

    merged: Tensor  # (T, R, D) float32, R in the order of the ratios
    order: Tensor  # (T, N): token indices by falling score

    def __len__(self) -> int:
        return len(self.order)


def merge_tokens(tokens: Tensor, ratios: Sequence[float]) -> dict[float, Tensor]:
    """tokens (T, N, D) of one video → ratio → (T, D)."""
    merger = TokenMerger(ratios)
    parts = [merger.push(tokens), merger.finish()]
    merged = torch.cat([part.merged for part in parts])
    return dict(zip(ratios, merged.unbind(1), strict=True))


def check_ratios(ratios: Sequence[float]) -> None:
    for ratio in ratios:
        if not 0 < ratio <= 1:
            raise ValueError(f"STM ratio {ratio}: must be above 0 and at most 1")
    if len(set(ratios)) != len(ratios) or not ratios:
        raise ValueError(f"STM ratios {list(ratios)}: give at least one, and each once")


class TokenMerger:
    """The streaming form: frames of one video in any portions, the same results.

    Scores need the next frame, so a frame comes out one push late: `push` returns the frames that are decided,
    `finish` the last one.
    """

    def __init__(self, ratios: Sequence[float]) -> None:
        check_ratios(ratios)
        self._ratios = tuple(ratios)
        self._held: Tensor | None = None  # (1, N, D): the newest frame, which waits for the next
        self._last_scores: Tensor | None = None  # (1, N)

    def push(self, tokens: Tensor) -> MergedFrames:
        """tokens (T, N, D) → the T frames before the newest (T - 1 at the start of the video)."""
        frames = tokens.float()
        if self._held is not None:
            frames = torch.cat([self._held, frames])
        if not len(frames):
            return self._merge(frames, frames.sum(-1))
        # A copy: the tokens are a slice of a batch that should not live on for it.
        self._held = frames[-1:].clone()
        scores = (frames[:-1] - frames[1:]).abs().mean(-1)  # (T, N)
        if len(scores):
            self._last_scores = scores[-1:]
        return self._merge(frames[:-1], scores)

    def finish(self) -> MergedFrames:
        """The last frame of the video."""
        if self._held is None:
            raise ValueError("no frame was pushed")
        frame, scores = self._held, self._last_scores
        self._held = self._last_scores = None
        if scores is None:  # one frame: nothing to compare, every ratio keeps all tokens
            everything = frame.mean(1, keepdim=True).expand(-1, len(self._ratios), -1)
            return MergedFrames(everything, torch.arange(frame.shape[1], device=frame.device)[None])
        return self._merge(frame, scores)

    def _merge(self, frames: Tensor, scores: Tensor) -> MergedFrames:
        """frames (T, N, D), scores (T, N): the mean of the K best tokens, for every K at once.

        One matrix product with 0/1 rows sums the chosen tokens of all ratios and moves no token. Of a single row it
        would be rounded in another way than of several: a ratio's bits would depend on which others are computed with
        it. So at least two rows.
        """
        order = scores.argsort(dim=-1, descending=True, stable=True)  # (T, N)
        ranks = order.argsort(dim=-1)  # (T, N): each token's place in that order
        ratios = self._ratios if len(self._ratios) > 1 else 2 * self._ratios
        counts = torch.tensor([selected_tokens(frames.shape[1], ratio) for ratio in ratios], device=frames.device)
        chosen = (ranks[:, None] < counts[:, None]).to(frames.dtype)  # (T, R, N)
        return MergedFrames((chosen @ frames / counts[:, None])[:, : len(self._ratios)], order)
