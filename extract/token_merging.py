"""Selective token merging (paper, sec. 3.3): average the tokens of a frame that differ most from
the next frame.

The score of a token is its mean absolute difference from the same token in the next frame. The last
frame uses the scores of the frame before it; in a one-frame video, all tokens are averaged. K =
round(N * ratio), at least 1.

Shapes: T frames, N tokens, D width, R ratios.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from byov.cache.layout import selected_tokens


def merge_tokens(tokens: Tensor, ratios: Sequence[float]) -> dict[float, Tensor]:
    """Merge the tokens (T, N, D) of a whole video; return a dict mapping ratios to features (T,
    D).
    """
    merger = TokenMerger(ratios)
    merged = torch.cat([merger.push(tokens)[0], merger.finish()[0]])
    return dict(zip(ratios, merged.unbind(1), strict=True))


class TokenMerger:
    """Streaming token merging; the result does not depend on how the frames are split over calls.

    Scores depend on the next frame, so the newest frame is held back: `push` returns the frames
    before it, and `finish` the last one. Both return merged tokens (T, R, D) and token indices in
    order of decreasing score (T, N).
    """

    def __init__(self, ratios: Sequence[float]) -> None:
        if (
            not ratios
            or len(set(ratios)) != len(ratios)
            or not all(0 < ratio <= 1 for ratio in ratios)
        ):
            raise ValueError(f"STM ratios {list(ratios)} must be distinct, above 0 and at most 1")
        self._ratios = tuple(ratios)
        self._held: Tensor | None = None  # (1, N, D): the newest frame
        self._last_scores: Tensor | None = None  # (1, N)

    def push(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Add tokens (T, N, D) and return the T frames before the newest one (T - 1 at the start of
        a video).
        """
        frames = tokens.float()
        if self._held is not None:
            frames = torch.cat([self._held, frames])
        # Copy the frame, since a slice would keep the whole batch in memory.
        self._held = frames[-1:].clone()
        scores = (frames[:-1] - frames[1:]).abs().mean(-1)  # (T, N)
        if len(scores):
            self._last_scores = scores[-1:]
        return self._merge(frames[:-1], scores)

    def finish(self) -> tuple[Tensor, Tensor]:
        """Return the last frame of the video and reset the state."""
        if self._held is None:
            raise ValueError("no frame was pushed")
        frame = self._held
        scores = self._last_scores
        self._held = self._last_scores = None
        if scores is None:  # one-frame video
            everything = frame.mean(1, keepdim=True).expand(-1, len(self._ratios), -1)
            return everything, torch.arange(frame.shape[1], device=frame.device)[None]
        return self._merge(frame, scores)

    def _merge(self, frames: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
        """Average the K best tokens for all ratios at once, given frames (T, N, D) and scores (T,
        N).

        A matrix product with 0/1 rows sums the selected tokens without copying them. At least two
        rows are used, because a single row is rounded differently, and the result would depend on
        the number of ratios.
        """
        order = scores.argsort(dim=-1, descending=True, stable=True)  # (T, N)
        ranks = order.argsort(dim=-1)  # (T, N): rank of each token
        ratios = self._ratios if len(self._ratios) > 1 else 2 * self._ratios
        counts = torch.tensor(
            [selected_tokens(frames.shape[1], ratio) for ratio in ratios], device=frames.device
        )
        chosen = (ranks[:, None] < counts[:, None]).to(frames.dtype)  # (T, R, N)
        return (chosen @ frames / counts[:, None])[:, : len(self._ratios)], order
