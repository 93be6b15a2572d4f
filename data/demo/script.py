"""The performance: what the person does in every frame, free of any geometry."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

FPS = 15
MIN_FRAMES = 60
MAX_FRAMES = 150
PHASES = (
    "start to liquid exits container",
    "liquid exits container to pouring complete",
    "pouring complete to end",
)

_CHANNELS = ("reach", "grasp", "lift", "carry", "tilt")
_REST = dict.fromkeys(_CHANNELS, 0.0)
# Below these a phase's movements would be jumps between neighboring frames.
_MIN_APPROACH_FRAMES = 10
_MIN_POUR_FRAMES = 8
_MIN_FINISH_FRAMES = 9


@dataclass(frozen=True)
class State:
    """One frame of the performance; all amounts are fractions of a whole movement."""

    phase: int
    reach: float  # 0: hand at rest, 1: hand at the bottle
    grasp: float  # 0: hand open, 1: fingers round the bottle
    lift: float  # 0: bottle stands on the table, 1: clear of it
    carry: float  # 0: bottle over its own place, 1: beside the glass
    tilt: float  # 0: upright, 1: liquid at the lip, more: pouring
    flow: float  # 0: no stream, 1: the widest stream
    fill: float  # 0: glass empty, 1: glass full to the rim


@dataclass(frozen=True)
class Move:
    """Bring some channels to new values, taking a share of the phase's time in proportion to `weight`."""

    weight: float
    targets: Mapping[str, float]


def draw_performance(rng: np.random.Generator) -> list[State]:
    """Draw one performance, one state per frame."""
    approach_frames, pour_frames, finish_frames = draw_phase_lengths(rng)
    approach = _play(_draw_approach(rng), _REST, approach_frames)
    pour = _play(_draw_pour(rng), _pouring(tilt=1.0), pour_frames)
    finish = _play(_draw_finish(rng), _pouring(tilt=0.98), finish_frames)

    flow = np.clip((pour[:, _CHANNELS.index("tilt")] - 1.0) / 0.3, 0.3, 1.0)
    empty_level = max(0.0, rng.uniform(-0.08, 0.08))  # half of the glasses are not quite empty
    full_level = rng.uniform(0.6, 0.92)
    poured_share = np.cumsum(flow) / flow.sum()
    levels = empty_level + (full_level - empty_level) * poured_share

    states = [_state(0, row, 0.0, empty_level) for row in approach]
    states += [_state(1, row, *amounts) for row, *amounts in zip(pour, flow, levels, strict=True)]
    states += [_state(2, row, 0.0, full_level) for row in finish]
    return states


def draw_phase_lengths(rng: np.random.Generator) -> tuple[int, int, int]:
    """Frames per phase. The draws are wide and independent so that elapsed time does not give the phase."""
    frames = int(rng.integers(MIN_FRAMES, MAX_FRAMES + 1))
    approach = max(_MIN_APPROACH_FRAMES, round(frames * (0.13 + 0.55 * rng.beta(0.75, 0.75))))
    rest = frames - approach
    pour = int(np.clip(round(rest * rng.uniform(0.12, 0.82)), _MIN_POUR_FRAMES, rest - _MIN_FINISH_FRAMES))
    return approach, pour, rest - pour


def event_frames(states: Sequence[State]) -> list[int]:
    """The first frame of every phase but the first."""
    phases = [state.phase for state in states]
    return [phases.index(phase) for phase in range(1, len(PHASES))]


def _draw_approach(rng: np.random.Generator) -> list[Move]:
    reach_part = rng.uniform(0.3, 0.75)
    carry_part = rng.uniform(0.1, 0.4)
    return [
        *_maybe_pause(rng, 0.5, longest=6.0),
        Move(rng.uniform(0.6, 1.2), {"reach": reach_part}),
        *_maybe_pause(rng, 0.3, longest=3.0),
        Move(rng.uniform(0.6, 1.2), {"reach": 1.0}),
        Move(rng.uniform(0.3, 0.7), {"grasp": 1.0}),
        *_maybe_pause(rng, 0.25, longest=3.0),
        Move(rng.uniform(0.7, 1.4), {"lift": 1.0, "carry": carry_part}),
        *_maybe_pause(rng, 0.2, longest=4.0),
        Move(rng.uniform(0.7, 1.4), {"carry": 1.0}),
        *_maybe_pause(rng, 0.4, longest=6.0),
        Move(rng.uniform(0.7, 1.6), {"tilt": 1.0}),
    ]


def _draw_pour(rng: np.random.Generator) -> list[Move]:
    moves = [Move(rng.uniform(0.5, 1.5), {"tilt": rng.uniform(1.25, 1.5)})]
    if rng.random() < 0.5:  # a hesitation: the stream gets thin but does not break off
        moves += [
            Move(rng.uniform(0.4, 0.8), {"tilt": 1.06}),
            *_maybe_pause(rng, 0.7, longest=3.0),
            Move(rng.uniform(0.4, 0.8), {"tilt": rng.uniform(1.2, 1.45)}),
        ]
    return [*moves, *_maybe_pause(rng, 0.7, longest=4.0), Move(rng.uniform(0.4, 0.8), {"tilt": 0.98})]


def _draw_finish(rng: np.random.Generator) -> list[Move]:
    carry_part = rng.uniform(0.1, 0.4)
    reach_part = rng.uniform(0.3, 0.75)
    return [
        *_maybe_pause(rng, 0.2, longest=3.0),
        Move(rng.uniform(0.7, 1.6), {"tilt": 0.0}),
        *_maybe_pause(rng, 0.4, longest=6.0),
        Move(rng.uniform(0.7, 1.4), {"carry": carry_part}),
        Move(rng.uniform(0.7, 1.4), {"carry": 0.0, "lift": 0.0}),
        *_maybe_pause(rng, 0.3, longest=4.0),
        Move(rng.uniform(0.3, 0.7), {"grasp": 0.0}),
        Move(rng.uniform(0.6, 1.2), {"reach": reach_part}),
        *_maybe_pause(rng, 0.3, longest=3.0),
        Move(rng.uniform(0.6, 1.2), {"reach": 0.0}),
        *_maybe_pause(rng, 0.5, longest=6.0),
    ]


def _maybe_pause(rng: np.random.Generator, probability: float, *, longest: float) -> list[Move]:
    return [Move(rng.uniform(0.5, longest), {})] if rng.random() < probability else []


def _pouring(*, tilt: float) -> dict[str, float]:
    return {**dict.fromkeys(_CHANNELS, 1.0), "tilt": tilt}


def _play(moves: Sequence[Move], start: Mapping[str, float], frames: int) -> NDArray[np.float64]:
    """Channel values, frames x channels, of moves done one after another in the given number of frames."""
    ends = np.cumsum([move.weight for move in moves])
    time = np.arange(frames) / frames * ends[-1]
    values = dict(start)
    table = np.tile([values[channel] for channel in _CHANNELS], (frames, 1))
    for move, end in zip(moves, ends, strict=True):
        progress = np.clip((time - (end - move.weight)) / move.weight, 0.0, 1.0)
        eased = progress * progress * (3.0 - 2.0 * progress)
        for channel, target in move.targets.items():
            table[:, _CHANNELS.index(channel)] += (target - values[channel]) * eased
            values[channel] = target
    return table


def _state(phase: int, row: NDArray[np.float64], flow: float, fill: float) -> State:
    reach, grasp, lift, carry, tilt = (float(value) for value in row)
    return State(phase, reach, grasp, lift, carry, tilt, float(flow), float(fill))
