"""How to paint each thing in the scene on a canvas."""

import numpy as np

from byov.data.demo.camera import Vector
from byov.data.demo.look import Clutter, Look
from byov.data.demo.pose import FINGER_GAP_M, UP, Hand, Pose, Props
from byov.data.demo.raster import Canvas

_STREAM_PIECES = 6


def paint_bottle(canvas: Canvas, props: Props, look: Look, pose: Pose) -> None:
    height, radius, neck = props.bottle_height_m, props.bottle_radius_m, props.neck_radius_m
    body_end, neck_start = props.shoulder_share, props.shoulder_share + 0.14
    # share of the height where the part starts and ends, its radii there, its color
    parts = [
        (0.0, 0.1, radius, radius, look.bottle),
        (0.1, body_end - 0.06, radius * 1.01, radius * 1.01, look.label),
        (body_end - 0.06, body_end, radius, radius, look.bottle),
        (body_end, neck_start, radius, neck, look.bottle),
        (neck_start, 0.96, neck, neck, look.bottle),
        (0.96, 1.0, neck * 1.2, neck * 1.2, look.bottle * 0.6),
    ]
    axis = pose.bottle_axis
    mouth = pose.bottle_base + axis * height
    mouth_seen = float(axis @ (canvas.camera.position - mouth)) > 0
    for start, end, start_m, end_m, color in parts if mouth_seen else parts[::-1]:
        near, far = pose.bottle_base + axis * (start * height), pose.bottle_base + axis * (end * height)
        canvas.frustum(near, start_m, far, end_m, color, gloss=0.25)
    if mouth_seen:
        canvas.disc(mouth, axis, neck, look.bottle * 0.2)
    else:
        canvas.disc(pose.bottle_base, axis, radius, look.bottle * 0.7)


def paint_glass(canvas: Canvas, props: Props, look: Look, pose: Pose, flow: float, fill: float) -> None:
    """The glass, what is in it, and the stream that runs into it."""
    bottom, rim = props.glass_place + UP * 0.002, props.glass_place + UP * props.glass_height_m
    rim_m, bottom_m = props.glass_radius_m, props.glass_radius_m * props.glass_taper
    floor_share = 0.06
    level_share = floor_share + fill * (1.0 - floor_share)

    def radius_at(share: float) -> float:
        return 0.93 * (bottom_m + share * (rim_m - bottom_m))

    def point_at(share: float) -> Vector:
        inner: Vector = bottom + share * (rim - bottom)
        return inner

    canvas.frustum(bottom, bottom_m, rim, rim_m, look.glass, opacity=0.12, edge_opacity=0.15)
    canvas.disc(rim, UP, rim_m, look.glass, opacity=0.5, line_px=1.0)
    surface = point_at(level_share)
    if fill > 0.005:
        canvas.frustum(
            point_at(floor_share), radius_at(floor_share), surface, radius_at(level_share), look.liquid * 0.92
        )
        canvas.disc(surface, UP, radius_at(level_share), np.clip(look.liquid * 1.1 + 0.06, 0.0, 1.0))
    if flow > 0:
        paint_stream(canvas, look, pose.lip, pose.bottle_axis, surface, flow)
    canvas.frustum(bottom, bottom_m, rim, rim_m, look.glass, opacity=0.1, edge_opacity=0.5, gloss=0.5)
    canvas.disc(rim, UP, rim_m, np.clip(look.glass * 1.1, 0.0, 1.0), opacity=0.75, line_px=1.2)


def paint_stream(canvas: Canvas, look: Look, lip: Vector, axis: Vector, surface: Vector, flow: float) -> None:
    """A falling stream from the lip to the middle of the surface, thinner towards its end."""
    drop = lip[2] - surface[2]
    share = np.linspace(0.0, 1.0, _STREAM_PIECES + 1)
    # Sideways the way is even, downwards it gets faster.
    points = lip + share[:, None] * (surface - lip)
    points[:, 2] = lip[2] - drop * (0.25 * share + 0.75 * share**2)
    points[0] -= axis * 0.006
    radii = (0.006 + 0.005 * flow) * (1.0 - 0.3 * share)
    bright = np.clip(look.liquid * 1.15 + 0.05, 0.0, 1.0)
    for i in range(_STREAM_PIECES):
        canvas.capsule(points[i], radii[i], points[i + 1], radii[i + 1], bright)
    canvas.disc(surface, UP, 0.016 + 0.01 * flow, np.clip(bright + 0.15, 0.0, 1.0), opacity=0.7)


def finger_joints(hand: Hand) -> list[tuple[Vector, float]]:
    """Joints (three points each) and radii of the four fingers and the thumb."""
    fingers = []
    reach_m = hand.rod_radius_m + 0.011
    for number, size in enumerate((0.95, 1.0, 0.97, 0.85)):
        along = hand.axis * ((1.5 - number) * FINGER_GAP_M)
        spread = 1.0 + 0.25 * (1.0 - hand.grasp)
        knuckle = hand.palm + along + hand.forward * 0.028
        straight = knuckle + along * (spread - 1.0) + np.outer([0.04, 0.075], hand.forward) * size
        straight -= np.outer([0.004, 0.018], hand.outward)
        curled = hand.center + along + _round_rod(hand, np.deg2rad([80.0, 150.0]), reach_m)
        tips = straight + hand.grasp * (curled - straight)
        fingers.append((np.stack([knuckle, *tips]), 0.0105))
    root = hand.palm + hand.axis * 0.02 - hand.forward * 0.02
    straight = root + np.outer([0.04, 0.07], hand.axis) + np.outer([0.012, 0.035], hand.forward)
    straight -= np.outer([0.015, 0.03], hand.outward)
    curled = hand.center + hand.axis * 0.028 + _round_rod(hand, np.deg2rad([-70.0, -125.0]), reach_m)
    fingers.append((np.stack([root, *(straight + hand.grasp * (curled - straight))]), 0.0125))
    return fingers


def _round_rod(hand: Hand, angles_rad: Vector, radius_m: float) -> Vector:
    arc: Vector = np.outer(np.cos(angles_rad), hand.outward) + np.outer(np.sin(angles_rad), hand.forward)
    return radius_m * arc


def paint_clutter(canvas: Canvas, thing: Clutter) -> None:
    size, place = thing.size_m, thing.place
    match thing.kind:
        case "mug":
            handle = place + size * 0.75 * np.array([np.cos(thing.turn_rad), np.sin(thing.turn_rad), 0.0])
            canvas.capsule(handle + UP * size * 0.4, 0.009, handle + UP * size * 0.9, 0.009, thing.color)
            _paint_pot(canvas, place, size * 0.55, size * 1.3, thing.color)
        case "can":
            _paint_pot(canvas, place, size * 0.42, size * 1.6, thing.color, lid=np.full(3, 0.75))
            band = (place + UP * size * 0.5, place + UP * size * 1.1)
            canvas.frustum(band[0], size * 0.43, band[1], size * 0.43, thing.second_color)
        case "fruit":
            middle = place + UP * size * 0.5
            canvas.capsule(middle, size * 0.5, middle + UP * 0.001, size * 0.5, thing.color)
        case "plate":
            canvas.frustum(place, size * 0.8, place + UP * 0.012, size * 1.15, thing.second_color)
            canvas.disc(place + UP * 0.012, UP, size * 1.1, thing.second_color * canvas.light.on(UP))
            canvas.disc(place + UP * 0.01, UP, size * 0.75, thing.color, opacity=0.5, line_px=1.5)
        case "book":
            paint_box(canvas, place, np.array([1.5, 2.1, 0.45]) * size, thing.turn_rad, thing.color)
        case _:
            paint_box(canvas, place, np.array([0.8, 1.1, 2.2]) * size, thing.turn_rad, thing.color)


def _paint_pot(
    canvas: Canvas, place: Vector, radius_m: float, height_m: float, color: Vector, lid: Vector | None = None
) -> None:
    canvas.frustum(place, radius_m * 0.95, place + UP * height_m, radius_m, color, gloss=0.15)
    canvas.disc(place + UP * height_m, UP, radius_m * 0.95, color * 0.35 if lid is None else lid)


def paint_box(canvas: Canvas, place: Vector, sides_m: Vector, turn_rad: float, color: Vector) -> None:
    """A box standing on its place; only the faces turned to the camera are painted."""
    first = np.array([np.cos(turn_rad), np.sin(turn_rad), 0.0])
    second = np.array([-np.sin(turn_rad), np.cos(turn_rad), 0.0])
    half = [first * sides_m[0] / 2, second * sides_m[1] / 2, UP * sides_m[2] / 2]
    center = place + half[2]
    for i in range(3):
        for outward in (half[i], -half[i]):
            face = center + outward
            if outward @ (canvas.camera.position - face) <= 0:
                continue
            a, b = half[(i + 1) % 3], half[(i + 2) % 3]
            normal = outward / np.linalg.norm(outward)
            canvas.polygon(
                np.stack([face + a + b, face + a - b, face - a - b, face - a + b]),
                color * canvas.light.on(normal),
            )
