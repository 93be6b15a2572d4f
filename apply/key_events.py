"""Key events of one video carried over to another, by which frames go together."""

from collections.abc import Sequence
from decimal import ROUND_FLOOR, Decimal

import numpy as np
from numpy.typing import NDArray

from byov.errors import ApplyError

_CELL_STEP = Decimal("0.001")  # seconds


def transfer(
    event_seconds: Sequence[float],
    a_seconds: NDArray[np.float64],
    b_seconds: NDArray[np.float64],
    matched: NDArray[np.int64],
) -> tuple[float, ...]:
    """The times in b of a's events: of the frame that goes with a's first frame at or after the event.

    a_seconds (Ta,), b_seconds (Tb,): times of the frames; matched (Ta,): for each frame of a, that of b.
    """
    late = [event for event in event_seconds if event > a_seconds.max()]
    if late:
        raise ApplyError(
            f"--phases: the event at {late[0]:g} s is after the last frame of A, which is at {a_seconds.max():.3f} s"
        )
    frames = [int(np.argmax(a_seconds >= event)) for event in event_seconds]
    return tuple(b_seconds[matched[frames]].tolist())


def rises(event_seconds: Sequence[float]) -> bool:
    """Whether the events come in order, as those of a video must."""
    return list(event_seconds) == sorted(event_seconds)


def events_cell(event_seconds: Sequence[float]) -> str:
    """(2.5, 7.1) → "2.500;7.100", for the events column of one's own videos.

    Rounded down: an event a little after its frame would begin its phase one frame late.
    """
    return ";".join(str(Decimal(event).quantize(_CELL_STEP, ROUND_FLOOR)) for event in event_seconds)
