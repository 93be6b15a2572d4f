"""Several sequences through one transformer at once, packed row after row; each attends only within itself.

The linear layers see all rows together, which is what makes small batches quick; attention runs once for each group
of neighbouring sequences of the same length.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass(frozen=True)
class Group:
    """`batch` packed sequences of the same length; causal: no frame sees what lies ahead of it."""

    batch: int
    length: int
    causal: bool = False
    mask: Tensor | None = None  # (batch, 1, length, length), True = may attend

    @property
    def rows(self) -> int:
        return self.batch * self.length


def pack(sequences: Sequence[Tensor]) -> Tensor:
    """(B_i, T_i, ...) each → (rows, ...)."""
    return torch.cat([sequence.flatten(0, 1) for sequence in sequences])


def unpack(rows: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """The inverse of `pack`: shapes (B_i, T_i) are taken from `like`."""
    shapes = [sequence.shape[:2] for sequence in like]
    parts = torch.split(rows, [batch * length for batch, length in shapes])
    return [part.view(*shape, *part.shape[1:]) for part, shape in zip(parts, shapes, strict=True)]


def group(sequences: Sequence[Tensor], causal: Sequence[bool] | None = None) -> list[Group]:
    """Neighbours of the same length and kind attend in one call."""
    groups: list[Group] = []
    for sequence, is_causal in zip(sequences, causal or [False] * len(sequences), strict=True):
        batch, length = sequence.shape[:2]
        last = groups[-1] if groups else None
        if last and last.length == length and last.causal == is_causal:
            groups[-1] = replace(last, batch=last.batch + batch)
        else:
            groups.append(Group(batch, length, is_causal))
    return groups


def within(groups: Sequence[Group], frame_index: Tensor, window: int) -> list[Group]:
    """The groups, with frames that are more than `window` frames apart hidden from each other.

    frame_index: (rows,) number of each frame in its clip.
    """
    narrowed = []
    for part, rows in zip(groups, torch.split(frame_index, [part.rows for part in groups]), strict=True):
        index = rows.view(part.batch, 1, part.length)
        near = (index[..., :, None] - index[..., None, :]).abs() <= window
        narrowed.append(replace(part, mask=near))
    return narrowed
