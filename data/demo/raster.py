"""A painter's-algorithm rasterizer: every shape is projected, shaded and blended over what is there already.

Edges are anti-aliased: a pixel's coverage is its signed distance to the shape's outline, clipped to one
pixel. Each shape touches only the pixels of its bounding box.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from byov.data.demo.camera import HEIGHT_PX, WIDTH_PX, Camera, Vector, cross

Pixels = NDArray[np.float32]

NEAREST_M = 0.06
_CIRCLE_RAD = np.arange(16) * (2 * np.pi / 16)
_CIRCLE = np.stack([np.cos(_CIRCLE_RAD), np.sin(_CIRCLE_RAD)], axis=1)


@dataclass(frozen=True)
class Light:
    direction: Vector  # unit, towards the light
    ambient: float
    diffuse: float
    tint: Vector

    def on(self, normal: Vector) -> float:
        """Brightness of a surface with this unit normal."""
        return self.ambient + self.diffuse * max(0.0, float(normal @ self.direction))


@dataclass(frozen=True)
class Window:
    """The part of the picture that a shape may touch."""

    rows: slice
    columns: slice
    x: Pixels  # 1 x width: pixel centers
    y: Pixels  # height x 1


class Canvas:
    def __init__(self, pixels: Pixels, camera: Camera, light: Light) -> None:
        self.pixels = pixels
        self.camera = camera
        self.light = light
        self._seen_light = (camera.rotation @ light.direction).tolist()

    def capsule(self, start: Vector, start_m: float, end: Vector, end_m: float, color: Vector) -> None:
        """A limb: two balls of the given radii and all between them. Equal ends give a ball."""
        ends = self._in_front(np.stack([start, end]))
        if ends is None:
            return
        spots, depths = self.camera.project(ends)
        # Python floats, unlike numpy's, keep the pixel arithmetic in single precision.
        ((x0, y0), (x1, y1)), (depth0, depth1) = spots.tolist(), depths.tolist()
        r0 = start_m * self.camera.focal_px / depth0
        r1 = end_m * self.camera.focal_px / depth1
        window = _window(min(x0 - r0, x1 - r1), min(y0 - r0, y1 - r1), max(x0 + r0, x1 + r1), max(y0 + r0, y1 + r1))
        if window is None:
            return
        along_x, along_y = x1 - x0, y1 - y0
        square = max(along_x * along_x + along_y * along_y, 1e-6)
        share = np.clip(((window.x - x0) * along_x + (window.y - y0) * along_y) * (1 / square), 0.0, 1.0)
        away_x = window.x - (x0 + share * along_x)
        away_y = window.y - (y0 + share * along_y)
        radius = r0 + share * (r1 - r0)
        coverage = np.clip(radius - np.sqrt(away_x * away_x + away_y * away_y) + 0.5, 0.0, 1.0)
        brightness = self._round_brightness(away_x / radius, away_y / radius)
        self._blend(window, coverage, brightness[..., None] * color.astype(np.float32))

    def frustum(
        self,
        start: Vector,
        start_m: float,
        end: Vector,
        end_m: float,
        color: Vector,
        *,
        opacity: float = 1.0,
        edge_opacity: float = 0.0,
        gloss: float = 0.0,
    ) -> None:
        """A round solid between two discs; `edge_opacity` adds to the outline's opacity, as on glass."""
        axis = (end - start) / max(float(np.linalg.norm(end - start)), 1e-9)
        points = np.concatenate([circle(start, axis, start_m), circle(end, axis, end_m)])
        spots, depths = self.camera.project(np.concatenate([points, [start, end]]))
        if depths.min() < NEAREST_M:
            return
        outline = _convex_hull(spots[:-2])
        window = _window_of(outline)
        if window is None:
            return
        coverage = np.clip(0.5 - _distance_to_convex(outline, window), 0.0, 1.0)
        (x0, y0), (x1, y1) = spots[-2:].tolist()
        length = max(math.hypot(x1 - x0, y1 - y0), 1e-6)
        along_x, along_y = (x1 - x0) / length, (y1 - y0) / length
        share = np.clip(((window.x - x0) * along_x + (window.y - y0) * along_y) / length, 0.0, 1.0)
        r0, r1 = (np.array([start_m, end_m]) * self.camera.focal_px / depths[-2:]).tolist()
        aside = (window.y - y0) * along_x - (window.x - x0) * along_y
        across = np.clip(aside / (r0 + share * (r1 - r0)), -1.0, 1.0)
        brightness = self._round_brightness(-across * along_y, across * along_x)
        shaded = brightness[..., None] * color.astype(np.float32)
        if gloss:
            shaded = shaded + (gloss * np.exp(-(((across + 0.45) / 0.14) ** 2)))[..., None]
        self._blend(window, coverage * (opacity + edge_opacity * across**4), shaded)

    def disc(
        self,
        center: Vector,
        axis: Vector,
        radius_m: float,
        color: Vector,
        *,
        opacity: float = 1.0,
        line_px: float = 0.0,
    ) -> None:
        """A flat disc, or only its rim if `line_px` is given."""
        self.polygon(circle(center, axis, radius_m), color, opacity=opacity, line_px=line_px)

    def polygon(self, points: Vector, color: Vector, *, opacity: float = 1.0, line_px: float = 0.0) -> None:
        """A flat convex polygon, corners in order; only its outline if `line_px` is given."""
        spots, depths = self.camera.project(points)
        if depths.min() < NEAREST_M:
            return
        window = _window_of(spots)
        if window is None:
            return
        distance = _distance_to_convex(_turned_like_hull(spots), window)
        if line_px:
            distance = np.abs(distance) - np.float32(line_px / 2)
        self._blend(window, opacity * np.clip(0.5 - distance, 0.0, 1.0), color.astype(np.float32))

    def shadow(self, center: Vector, radius_m: float, strength: float) -> None:
        """A soft round shadow on the table top."""
        spots, depths = self.camera.project(circle(np.array([*center[:2], 0.0]), np.array([0.0, 0.0, 1.0]), radius_m))
        if depths.min() < NEAREST_M:
            return
        window = _window_of(spots)
        if window is None:
            return
        # The picture of the disc is all but an affine ellipse, so this matrix maps it to the unit circle.
        middle = spots.mean(axis=0)
        middle_x, middle_y = middle.tolist()
        half_axes = (spots - middle).T @ _CIRCLE / 8
        a, b, c, d = np.linalg.inv(half_axes + 1e-3 * np.eye(2)).ravel().tolist()
        x, y = window.x - middle_x, window.y - middle_y
        falloff = np.clip(1.0 - (a * x + b * y) ** 2 - (c * x + d * y) ** 2, 0.0, 1.0)
        self.pixels[window.rows, window.columns] *= (1.0 - strength * falloff)[..., None]

    def _round_brightness(self, across_x: Pixels, across_y: Pixels) -> Pixels:
        """Brightness where the surface normal leans aside by these parts of a unit vector."""
        light_x, light_y, light_z = self._seen_light
        towards = np.sqrt(np.maximum(1.0 - across_x * across_x - across_y * across_y, 0.0))
        lambert: Pixels = np.maximum(across_x * light_x + across_y * light_y - towards * light_z, 0.0)
        return self.light.ambient + self.light.diffuse * lambert

    def _blend(self, window: Window, opacity: Pixels, color: Pixels) -> None:
        target = self.pixels[window.rows, window.columns]
        target += opacity[..., None] * (color - target)

    def _in_front(self, ends: Vector) -> Vector | None:
        """The part of a line that lies before the lens, if any."""
        depths = (ends - self.camera.position) @ self.camera.rotation[2]
        if depths.max() <= NEAREST_M:
            return None
        if depths.min() >= NEAREST_M:
            return ends
        cut = ends[0] + (ends[1] - ends[0]) * (NEAREST_M - depths[0]) / (depths[1] - depths[0])
        return np.stack([cut, ends[1]] if depths[0] < NEAREST_M else [ends[0], cut])


def circle(center: Vector, axis: Vector, radius_m: float) -> Vector:
    """Points on a circle square to the axis, in order."""
    helper = np.array([1.0, 0.0, 0.0]) if abs(axis[0]) < 0.7 else np.array([0.0, 1.0, 0.0])
    first = cross(axis, helper)
    first /= np.linalg.norm(first)
    return center + radius_m * (_CIRCLE @ np.stack([first, cross(axis, first)]))


def _window_of(spots: Vector) -> Window | None:
    left, top = spots.min(axis=0)
    right, bottom = spots.max(axis=0)
    return _window(left, top, right, bottom)


def _window(left: float, top: float, right: float, bottom: float) -> Window | None:
    x0, x1 = max(int(left) - 1, 0), min(int(right) + 2, WIDTH_PX)
    y0, y1 = max(int(top) - 1, 0), min(int(bottom) + 2, HEIGHT_PX)
    if x0 >= x1 or y0 >= y1:
        return None
    x = np.arange(x0, x1, dtype=np.float32) + np.float32(0.5)
    y = np.arange(y0, y1, dtype=np.float32) + np.float32(0.5)
    return Window(slice(y0, y1), slice(x0, x1), x[None, :], y[:, None])


def _convex_hull(spots: Vector) -> Vector:
    """Corners of the convex hull in turning order (monotone chain)."""
    points = sorted((x, y) for x, y in spots.tolist())
    lower = _half_hull(points)
    upper = _half_hull(points[::-1])
    return np.array(lower[:-1] + upper[:-1])


def _turned_like_hull(corners: Vector) -> Vector:
    """The corners in that order, of the two, in which the hull's corners come."""
    x, y = corners.T
    twice_area = float(x @ np.roll(y, -1) - y @ np.roll(x, -1))
    return corners if twice_area > 0 else corners[::-1]


def _half_hull(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    chain: list[tuple[float, float]] = []
    for x, y in points:
        while len(chain) > 1:
            (x0, y0), (x1, y1) = chain[-2:]
            if (x1 - x0) * (y - y0) - (y1 - y0) * (x - x0) > 0:
                break
            chain.pop()
        chain.append((x, y))
    return chain


def _distance_to_convex(outline: Vector, window: Window) -> Pixels:
    """Signed distance in pixels to the nearest of the polygon's sides, negative inside."""
    sides = np.roll(outline, -1, axis=0) - outline
    sides /= np.maximum(np.hypot(sides[:, 0], sides[:, 1]), 1e-9)[:, None]
    # The hull turns so that its outward normal is the side turned by (x, y) -> (y, -x).
    offset = outline[:, 0] * sides[:, 1] - outline[:, 1] * sides[:, 0]
    normal_x, normal_y, shift = (part.astype(np.float32)[:, None, None] for part in (sides[:, 1], -sides[:, 0], offset))
    distance: Pixels = (normal_x * window.x + (normal_y * window.y - shift)).max(axis=0)
    return distance
