"""The scene of one video: paints the picture of any state of the performance from any camera."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import numpy as np

from byov.data.demo.camera import Camera, Rays, Vector, cross
from byov.data.demo.look import Decoration, Look
from byov.data.demo.pose import FINGER_GAP_M, UP, Hand, Pose, Props, resting_left_hand
from byov.data.demo.raster import Canvas, Pixels
from byov.data.demo.script import State
from byov.data.demo.things import finger_joints, paint_bottle, paint_clutter, paint_glass

TABLE_NEAR_M = -0.36  # the table's edge on the person's side
FLOOR_M = -0.75
_WALL_DISTANCE_M = 1.35  # from the table's middle

Item = tuple[float, Callable[[], None]]  # depth in metres, how to paint it


@dataclass(frozen=True)
class Wall:
    """An upright plane beyond the table; `normal` points away from the camera."""

    normal: Vector

    @property
    def sideways(self) -> Vector:
        return cross(self.normal, UP)


def wall_behind_table(camera: Camera, turn_rad: float) -> Wall:
    """The wall that this camera sees, turned a little from facing it squarely."""
    direction = np.arctan2(*camera.rotation[2][[1, 0]]) + turn_rad
    return Wall(np.array([np.cos(direction), np.sin(direction), 0.0]))


def paint_backdrop(camera: Camera, look: Look, wall: Wall, props: Props) -> Pixels:
    """All that stays as it is before the exo camera: the room, the person's body, the table."""
    rays = camera.pixel_rays()
    pixels = _room_colors(camera, rays, look, wall)
    canvas = Canvas(pixels, camera, look.light)
    for decoration in look.decorations:
        _paint_decoration(canvas, wall, decoration)
    _paint_body(canvas, props, look)
    _paint_table_sides(canvas, look)
    coverage, table = _table_top(camera, rays, look)
    pixels += coverage[..., None] * (table - pixels)
    return pixels


def paint_table_and_room(camera: Camera, look: Look, wall: Wall) -> Pixels:
    """What the ego camera sees behind the action: nearly all of it is the table."""
    rays = camera.pixel_rays()
    coverage, pixels = _table_top(camera, rays, look)
    gaps = coverage < 1.0
    ray_x, ray_y, ray_z = rays
    room = _room_colors(camera, (ray_x[gaps], ray_y[gaps], ray_z[gaps]), look, wall)
    pixels[gaps] = room + coverage[gaps][:, None] * (pixels[gaps] - room)
    return pixels


def _room_colors(camera: Camera, rays: Rays, look: Look, wall: Wall) -> Pixels:
    """Colors of wall and floor where the rays, of any shape, meet them."""
    x, y, z = rays
    camera_x, camera_y, camera_z = camera.position.tolist()
    normal_x, normal_y, _ = wall.normal.tolist()
    side_x, side_y, _ = wall.sideways.tolist()
    facing = np.maximum(x * normal_x + y * normal_y, 1e-3)
    to_wall = (_WALL_DISTANCE_M - camera_x * normal_x - camera_y * normal_y) / facing
    to_floor = (camera_z - FLOOR_M) / np.maximum(-z, 1e-3)
    depth = np.minimum(to_floor, to_wall)
    point_x, point_y, point_z = camera_x + depth * x, camera_y + depth * y, camera_z + depth * z
    colors = look.wall.sample(point_x * side_x + point_y * side_y, point_z)
    on_floor = to_floor < to_wall
    colors[on_floor] = look.floor.sample(point_x[on_floor], point_y[on_floor])
    return colors


def _table_top(camera: Camera, rays: Rays, look: Look) -> tuple[Pixels, Pixels]:
    """How much of each pixel the table top covers, and the color it has there."""
    x, y, z = rays
    camera_x, camera_y, camera_z = camera.position.tolist()
    depth = camera_z / np.maximum(-z, 1e-3)
    table_x, table_y = camera_x + depth * x, camera_y + depth * y
    inside_m = np.minimum(look.table_half_width_m - np.abs(table_x), look.table_depth_m - table_y)
    inside_m = np.minimum(inside_m, table_y - TABLE_NEAR_M)
    inside_m[z > -0.01] = -1.0
    coverage = np.clip(inside_m * camera.focal_px / depth + 0.5, 0.0, 1.0)
    colors = look.table.sample(table_x, table_y)
    colors *= look.light.on(UP)
    return coverage, colors


def _paint_table_sides(canvas: Canvas, look: Look) -> None:
    """The counter's faces from the table top down to the floor."""
    x, near, far = look.table_half_width_m, TABLE_NEAR_M, look.table_depth_m
    corners = np.array([[-x, near], [x, near], [x, far], [-x, far]])
    for start, end in zip(corners, np.roll(corners, -1, axis=0), strict=True):
        along = end - start
        normal = np.array([along[1], -along[0], 0.0]) / np.linalg.norm(along)
        if normal[:2] @ (canvas.camera.position[:2] - start) > 0:
            low, high = np.array([FLOOR_M]), np.array([0.0])
            face = [np.r_[start, low], np.r_[end, low], np.r_[end, high], np.r_[start, high]]
            canvas.polygon(np.stack(face), look.counter * canvas.light.on(normal))


def _paint_decoration(canvas: Canvas, wall: Wall, item: Decoration) -> None:
    def rectangle(left: float, bottom: float, right: float, top: float) -> Vector:
        corners = np.array([[left, bottom], [right, bottom], [right, top], [left, top]])
        return (
            wall.normal * (_WALL_DISTANCE_M - 0.005)
            + np.outer(corners[:, 0], wall.sideways)
            + np.outer(corners[:, 1], UP)
        )

    left, bottom = item.left_m, item.bottom_m
    right, top = left + item.width_m, bottom + item.height_m
    middle_x, middle_y = (left + right) / 2, (bottom + top) / 2
    if item.kind == "shelf":
        canvas.polygon(rectangle(left, bottom, right, bottom + 0.03), item.color * 0.6)
        for number, start in enumerate(np.arange(left + 0.03, right - 0.07, 0.075)):
            shade = item.color if number % 3 else item.second_color
            height = 0.16 + 0.05 * np.sin(5.0 * number + item.width_m * 40)
            canvas.polygon(rectangle(start, bottom + 0.03, start + 0.055, bottom + 0.03 + height), shade)
        return
    frame = 0.025
    canvas.polygon(
        rectangle(left, bottom, right, top), item.color * 0.5 if item.kind == "picture" else np.full(3, 0.93)
    )
    inner = item.second_color if item.kind == "picture" else np.array([0.65, 0.82, 0.95])
    canvas.polygon(rectangle(left + frame, bottom + frame, right - frame, top - frame), inner)
    if item.kind == "picture":
        canvas.polygon(rectangle(left + frame, bottom + frame, right - frame, middle_y), item.color)
        canvas.disc(
            rectangle(middle_x, middle_y, middle_x, middle_y)[0],
            wall.normal,
            item.width_m * 0.17,
            item.color * 0.4,
        )
    else:
        canvas.polygon(rectangle(middle_x - 0.012, bottom, middle_x + 0.012, top), np.full(3, 0.93))
        canvas.polygon(rectangle(left, middle_y - 0.012, right, middle_y + 0.012), np.full(3, 0.93))


def paint_action(canvas: Canvas, props: Props, look: Look, pose: Pose, state: State, *, with_body: bool) -> None:
    """Everything on or over the table, the far things first."""
    hands = [pose.hand]
    if look.other_hand_rest is not None:
        hands.append(resting_left_hand(look.other_hand_rest, props.shoulder * [-1.0, 1.0, 1.0]))
    _paint_shadows(canvas, props, look, pose, hands)

    depth = canvas.camera.depth
    glass_middle = props.glass_place + UP * props.glass_height_m / 2
    bottle_middle = pose.bottle_base + pose.bottle_axis * props.bottle_height_m * props.grip_share
    items: list[Item] = [
        (depth(glass_middle), partial(paint_glass, canvas, props, look, pose, state.flow, state.fill)),
        (depth(bottle_middle), partial(paint_bottle, canvas, props, look, pose)),
    ]
    for thing in look.clutter:
        middle = thing.place + UP * thing.size_m / 2
        items.append((depth(middle), partial(paint_clutter, canvas, thing)))
    for hand in hands:
        items += _hand_items(canvas, look, hand, with_upper_arm=with_body)
    for _, paint in sorted(items, key=lambda item: -item[0]):
        paint()


def _paint_body(canvas: Canvas, props: Props, look: Look) -> None:
    """Torso, neck and head; the table is painted over their lower part."""
    right = props.shoulder
    left = right * [-1.0, 1.0, 1.0]
    chest = (left + right) / 2 - UP * 0.03
    canvas.capsule(chest - UP * 0.6, 0.15, chest - UP * 0.05, 0.165, look.sleeve * 0.95)
    canvas.capsule(left - UP * 0.02, 0.065, right - UP * 0.02, 0.065, look.sleeve)
    canvas.capsule(chest + UP * 0.08, 0.05, chest + UP * 0.17, 0.048, look.skin * 0.85)
    head = chest + np.array([0.0, 0.04, 0.25])
    parts: list[tuple[Vector, float, Vector, float, Vector]] = [
        (head + np.array([0.0, -0.03, 0.045]), 0.096, head + np.array([0.0, -0.035, 0.01]), 0.09, look.hair),
        (head + np.array([0.0, 0.012, 0.03]), 0.08, head + np.array([0.0, 0.022, -0.04]), 0.064, look.skin),
        (
            head + np.array([0.0, 0.088, 0.0]),
            0.012,
            head + np.array([0.0, 0.1, -0.012]),
            0.014,
            look.skin * 0.92,
        ),
    ]
    for side in (-1.0, 1.0):
        eye = head + np.array([side * 0.03, 0.082, 0.025])
        ear = head + np.array([side * 0.084, 0.0, 0.0])
        parts.append((eye, 0.009, eye, 0.009, np.full(3, 0.08)))
        parts.append((ear, 0.018, ear + np.array([0.0, 0.0, 0.01]), 0.018, look.skin * 0.9))
    for part in sorted(parts, key=lambda part: -canvas.camera.depth((part[0] + part[2]) / 2)):
        canvas.capsule(*part)


def _paint_shadows(canvas: Canvas, props: Props, look: Look, pose: Pose, hands: list[Hand]) -> None:
    """Soft shadows, shifted away from the light and fainter the higher their thing is."""
    slope = -look.light.direction[:2] / look.light.direction[2]

    def cast(point: Vector, radius_m: float, strength: float) -> None:
        height = max(float(point[2]), 0.0)
        shift = np.array([*(slope * height * 0.6), 0.0])
        canvas.shadow(point + shift, radius_m * (1.0 + 2.0 * height), strength / (1.0 + 5.0 * height))

    cast(props.glass_place + UP * 0.02, props.glass_radius_m * 1.7, 0.3)
    for share in (0.1, 0.5, 0.85):
        cast(
            pose.bottle_base + pose.bottle_axis * share * props.bottle_height_m,
            props.bottle_radius_m * 1.7,
            0.35,
        )
    for thing in look.clutter:
        cast(thing.place + UP * 0.02, thing.size_m * 1.2, 0.35)
    for hand in hands:
        cast(hand.palm, 0.07, 0.35)
        for share in (0.25, 0.6):
            cast(hand.wrist + share * (hand.elbow - hand.wrist), 0.065, 0.3)


def _hand_items(canvas: Canvas, look: Look, hand: Hand, *, with_upper_arm: bool) -> list[Item]:
    limbs: list[tuple[Vector, float, Vector, float, Vector]] = []
    cuff = hand.elbow + look.sleeve_share * (hand.wrist - hand.elbow)
    limbs.append((cuff, 0.04 - 0.014 * look.sleeve_share, hand.wrist, 0.026, look.skin))
    # Without the upper arm the forearm runs on straight, out of the picture, lest it end in mid-air.
    back_end = hand.elbow if with_upper_arm else hand.elbow + 1.2 * (hand.elbow - hand.wrist)
    limbs.append((back_end, 0.045, cuff, 0.045 - 0.01 * look.sleeve_share, look.sleeve))
    if with_upper_arm:
        limbs.append((hand.shoulder, 0.062, hand.elbow, 0.047, look.sleeve))
    for side in (-1.0, 1.0):
        knuckles = hand.palm + hand.axis * (side * FINGER_GAP_M) + hand.forward * 0.022
        limbs.append((hand.wrist, 0.024, knuckles, 0.019, look.skin))
    for joints, radius in finger_joints(hand):
        limbs += [(start, radius, end, radius * 0.9, look.skin * 0.97) for start, end in pairwise(joints)]
    # Of two limbs that meet, the one listed later lies on top: the sleeve's end, say, over the wrist.
    depths = [canvas.camera.depth((start + end) / 2) for start, _, end, _, _ in limbs]
    return [
        (depth - 0.002 * number, partial(canvas.capsule, *limb))
        for number, (depth, limb) in enumerate(zip(depths, limbs, strict=True))
    ]
