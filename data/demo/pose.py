"""Sizes and places of the things that act, and where they are in a given state of the performance.

Everything here is for a right-handed person; the pictures of left-handed ones are mirrored.
"""

from dataclasses import dataclass

import numpy as np

from byov.data.demo.camera import Vector, cross
from byov.data.demo.script import State

UP = np.array([0.0, 0.0, 1.0])
UPPER_ARM_M = 0.3
FOREARM_M = 0.28
FINGER_GAP_M = 0.021
PALM_HALF_THICKNESS_M = 0.02


@dataclass(frozen=True)
class Props:
    """What is drawn once per video: sizes in metres, places on the table, habits of the hand."""

    bottle_height_m: float
    bottle_radius_m: float
    neck_radius_m: float
    shoulder_share: float  # where the body ends and the shoulder begins, as a share of the height
    grip_share: float  # where the hand holds, as a share of the height
    glass_height_m: float
    glass_radius_m: float  # at the rim
    glass_taper: float  # radius of the bottom as a share of that of the rim
    bottle_place: Vector
    glass_place: Vector
    pour_direction: Vector  # horizontal
    pour_height_m: float  # of the bottle's mouth over the glass's rim
    lip_tilt_rad: float  # tilt at which the liquid reaches the lip
    lift_height_m: float
    palm_turn_rad: float  # how far round the bottle, away from the person, the palm lies
    hand_rest: Vector
    shoulder: Vector


@dataclass(frozen=True)
class Hand:
    """A hand around a (perhaps imagined) rod: fingers run from the palm along `forward` and curl round it."""

    center: Vector  # of the rod
    axis: Vector  # of the rod, towards the index finger's side
    outward: Vector  # from the rod to the palm
    forward: Vector  # square to both; the way the stretched fingers point
    palm: Vector
    rod_radius_m: float
    grasp: float
    wrist: Vector
    elbow: Vector
    shoulder: Vector


@dataclass(frozen=True)
class Pose:
    bottle_base: Vector
    bottle_axis: Vector  # from base to mouth
    lip: Vector  # the point of the mouth that the liquid runs over
    hand: Hand


def draw_props(rng: np.random.Generator) -> Props:
    turn_rad = np.deg2rad(rng.uniform(-25.0, 25.0))
    height = rng.uniform(0.22, 0.3)
    radius = rng.uniform(0.034, 0.05)
    glass_radius = rng.uniform(0.038, 0.05)
    glass_place = np.array([rng.uniform(-0.14, 0.0), rng.uniform(-0.02, 0.14), 0.0])
    return Props(
        bottle_height_m=height,
        bottle_radius_m=radius,
        neck_radius_m=rng.uniform(0.35, 0.6) * radius,
        shoulder_share=rng.uniform(0.55, 0.72),
        grip_share=rng.uniform(0.34, 0.46),
        glass_height_m=rng.uniform(0.1, 0.15),
        glass_radius_m=glass_radius,
        glass_taper=rng.uniform(0.7, 1.0),
        bottle_place=glass_place + np.array([rng.uniform(0.18, 0.28), rng.uniform(-0.07, 0.09), 0.0]),
        glass_place=glass_place,
        pour_direction=np.array([-np.cos(turn_rad), np.sin(turn_rad), 0.0]),
        pour_height_m=rng.uniform(0.05, 0.1),
        lip_tilt_rad=np.deg2rad(rng.uniform(66.0, 80.0)),
        lift_height_m=rng.uniform(0.06, 0.14),
        palm_turn_rad=np.deg2rad(rng.uniform(50.0, 80.0)),
        hand_rest=np.array([rng.uniform(0.16, 0.3), rng.uniform(-0.2, -0.1), 0.0]),
        shoulder=np.array([rng.uniform(0.17, 0.21), rng.uniform(-0.42, -0.36), rng.uniform(0.3, 0.36)]),
    )


def pose_at(props: Props, state: State, tremor: Vector) -> Pose:
    """Where bottle and hand are; `tremor` is a small offset (m) of the moving hand."""
    tilt_rad = state.tilt * props.lip_tilt_rad
    axis = np.cos(tilt_rad) * UP + np.sin(tilt_rad) * props.pour_direction
    grip = _grip(props, state, axis) + tremor * state.lift
    bottle_base = grip - axis * props.grip_share * props.bottle_height_m
    downward = np.cos(tilt_rad) * props.pour_direction - np.sin(tilt_rad) * UP
    lip = bottle_base + axis * props.bottle_height_m + downward * props.neck_radius_m
    return Pose(bottle_base, axis, lip, _hand(props, state, grip, axis, downward, tremor))


def resting_left_hand(place: Vector, shoulder: Vector) -> Hand:
    """The other hand, lying on the table, palm down."""
    axis = np.array([1.0, 0.0, 0.0])
    outward = _unit(np.array([0.0, -0.15, 1.0]))
    # The right hand's forward is axis x outward; the left hand is its mirror image.
    return _with_arm(place + UP * 0.012, (axis, outward, cross(outward, axis)), 0.004, 0.0, shoulder)


def _grip(props: Props, state: State, axis: Vector) -> Vector:
    """The point on the bottle's axis that the hand holds."""
    grip_height = props.grip_share * props.bottle_height_m
    to_mouth = props.bottle_height_m - grip_height
    home = props.bottle_place + UP * grip_height
    mouth = props.glass_place + UP * (props.glass_height_m + props.pour_height_m) - props.pour_direction * 0.012
    # Upright beside the glass first; the more it tilts, the more strictly the mouth stays over the glass.
    upright = mouth - props.pour_direction * (0.6 * to_mouth + 0.05) - UP * (0.2 * to_mouth)
    strictness = float(np.clip(state.tilt, 0.0, 1.0))
    pouring = upright + strictness * (mouth - axis * to_mouth - upright)
    lifted = home + UP * props.lift_height_m * state.lift
    return lifted + state.carry * (pouring - lifted)


def _hand(props: Props, state: State, grip: Vector, axis: Vector, downward: Vector, tremor: Vector) -> Hand:
    nearer = cross(UP, props.pour_direction)
    holding = np.cos(props.palm_turn_rad) * nearer - np.sin(props.palm_turn_rad) * downward
    # Wide of the bottle until the last part of the way, so that the hand does not go through it.
    aside = holding * (0.045 * (1.0 - state.grasp))
    arc = UP * (0.06 * np.sin(np.pi * state.reach))
    resting = props.hand_rest + UP * 0.02
    center = resting + state.reach * (grip - resting) + arc + aside + tremor * (1.0 - state.lift)
    turned = min(1.0, 1.5 * state.reach)
    hand_axis = _unit((1.0 - turned) * np.array([-1.0, 0.0, 0.0]) + turned * axis)
    outward = (1.0 - turned) * np.array([0.0, -0.2, 1.0]) + turned * holding
    outward = _unit(outward - hand_axis * (outward @ hand_axis))
    radius = 0.01 + turned * (props.bottle_radius_m - 0.01)
    frame = (hand_axis, outward, cross(hand_axis, outward))
    return _with_arm(center, frame, radius, state.grasp, props.shoulder)


def _with_arm(
    center: Vector, frame: tuple[Vector, Vector, Vector], rod_radius_m: float, grasp: float, shoulder: Vector
) -> Hand:
    """A hand with this axis, outward and forward, its wrist bent towards the shoulder and its arm."""
    _, outward, forward = frame
    palm = center + outward * (rod_radius_m + PALM_HALF_THICKNESS_M)
    wrist = palm - 0.08 * _unit(0.5 * forward + 0.5 * _unit(palm - shoulder))
    wrist[2] = max(wrist[2], 0.03)
    return Hand(center, *frame, palm, rod_radius_m, grasp, wrist, _elbow(shoulder, wrist), shoulder)


def _elbow(shoulder: Vector, wrist: Vector) -> Vector:
    """The bent arm's elbow, out to the side and down; too short an arm is stretched."""
    span = wrist - shoulder
    distance = float(np.linalg.norm(span))
    stretch = max(1.0, distance / (0.97 * (UPPER_ARM_M + FOREARM_M)))
    upper, lower = UPPER_ARM_M * stretch, FOREARM_M * stretch
    along = (distance**2 + upper**2 - lower**2) / (2 * distance)
    aside = np.sqrt(max(upper**2 - along**2, 0.0))
    side = 1.0 if shoulder[0] > 0 else -1.0
    pole = np.array([0.7 * side, -0.3, -0.6])
    direction = span / distance
    elbow: Vector = shoulder + along * direction + aside * _unit(pole - direction * (pole @ direction))
    elbow[2] = max(elbow[2], 0.05)
    return elbow


def _unit(vector: Vector) -> Vector:
    unit: Vector = vector / np.linalg.norm(vector)
    return unit
