"""Pinhole cameras: the fixed exo camera and the swaying ego camera.

World coordinates are metres: x to the person's right, y from the person over the table, z up, the table top
at z = 0. Camera coordinates: x right, y down, z along the view.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]
Rays = tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float32]]  # x, y and z parts

WIDTH_PX = 256
HEIGHT_PX = 192


@dataclass(frozen=True)
class Camera:
    position: Vector
    rotation: Vector  # rows: the camera's right, down and forward axes in the world
    focal_px: float

    def project(self, points: Vector) -> tuple[Vector, Vector]:
        """Pixel coordinates (n x 2) and depths in metres (n) of world points (n x 3)."""
        seen = (points - self.position) @ self.rotation.T
        depth = seen[:, 2]
        center = np.array([WIDTH_PX / 2, HEIGHT_PX / 2])
        # Points at or behind the lens have no picture; callers look at the depth.
        return seen[:, :2] * (self.focal_px / np.maximum(depth, 1e-3))[:, None] + center, depth

    def depth(self, point: Vector) -> float:
        return float((point - self.position) @ self.rotation[2])

    def pixel_rays(self) -> Rays:
        """World x, y and z parts (each height x width) of every pixel's view ray; their depth is 1 m."""
        across = (np.arange(WIDTH_PX) + 0.5 - WIDTH_PX / 2) / self.focal_px
        down = (np.arange(HEIGHT_PX) + 0.5 - HEIGHT_PX / 2) / self.focal_px
        right_axis, down_axis, forward_axis = self.rotation
        x, y, z = (
            ((down * down_axis[i] + forward_axis[i])[:, None] + (across * right_axis[i])[None, :]).astype(np.float32)
            for i in range(3)
        )
        return x, y, z


def cross(first: Vector, second: Vector) -> Vector:
    """The cross product of two plain vectors; numpy's general one takes ten times as long."""
    (x0, y0, z0), (x1, y1, z1) = first.tolist(), second.tolist()
    return np.array([y0 * z1 - z0 * y1, z0 * x1 - x0 * z1, x0 * y1 - y0 * x1])


def look_at(position: Vector, target: Vector, focal_px: float, roll_rad: float = 0.0) -> Camera:
    forward = (target - position) / np.linalg.norm(target - position)
    right = cross(forward, np.array([0.0, 0.0, 1.0]))
    right /= np.linalg.norm(right)
    down = cross(forward, right)
    cosine, sine = np.cos(roll_rad), np.sin(roll_rad)
    return Camera(position, np.stack([cosine * right + sine * down, cosine * down - sine * right, forward]), focal_px)


def draw_exo_camera(rng: np.random.Generator) -> Camera:
    """A camera on a stand somewhere across the table or to its side."""
    # Not from the bottle's own side: there the bottle would hide the glass and the stream.
    azimuth_rad = np.deg2rad(rng.uniform(-80.0, 40.0))
    distance = rng.uniform(1.25, 1.75)
    height = rng.uniform(0.3, 0.95)
    target = np.array([0.05, -0.1, 0.22]) + rng.uniform(-1.0, 1.0, 3) * [0.1, 0.05, 0.06]
    offset = np.array([np.sin(azimuth_rad) * distance, np.cos(azimuth_rad) * distance, height - target[2]])
    focal_px = _focal_px(field_of_view_deg=rng.uniform(42.0, 50.0))
    return look_at(target + offset, target, focal_px, np.deg2rad(rng.uniform(-2.0, 2.0)))


@dataclass(frozen=True)
class EgoRig:
    """A camera on the person's head: a place and a gaze, both swaying as sums of slow sines."""

    position: Vector
    target: Vector
    focal_px: float
    gaze_following: float  # share of the hand's way that the gaze goes along
    amplitudes: Vector  # sines x 7: position (m), gaze target (m), roll (rad)
    frequencies_hz: Vector
    phases_rad: Vector

    def at(self, time_s: float, hand: Vector) -> Camera:
        sway = (self.amplitudes * np.sin(2 * np.pi * self.frequencies_hz * time_s + self.phases_rad)).sum(axis=0)
        gaze = self.target + self.gaze_following * (hand - self.target) * [1.0, 1.0, 0.3]
        return look_at(self.position + sway[:3], gaze + sway[3:6], self.focal_px, float(sway[6]))


def draw_ego_rig(rng: np.random.Generator) -> EgoRig:
    sines = 3
    sway = np.array([0.014, 0.012, 0.01, 0.022, 0.022, 0.012, 0.022]) * rng.uniform(0.5, 1.6)
    return EgoRig(
        position=np.array([0.0, -0.33, 0.52]) + rng.uniform(-1.0, 1.0, 3) * [0.07, 0.05, 0.06],
        target=np.array([0.06, 0.06, 0.05]) + rng.uniform(-1.0, 1.0, 3) * [0.04, 0.03, 0.02],
        focal_px=_focal_px(field_of_view_deg=rng.uniform(58.0, 70.0)),
        gaze_following=rng.uniform(0.0, 0.3),
        amplitudes=sway * rng.uniform(0.3, 1.0, (sines, 7)),
        frequencies_hz=rng.uniform(0.08, 0.55, (sines, 7)),
        phases_rad=rng.uniform(0.0, 2 * np.pi, (sines, 7)),
    )


def _focal_px(*, field_of_view_deg: float) -> float:
    return float(WIDTH_PX / 2 / np.tan(np.deg2rad(field_of_view_deg) / 2))
