"""Tileable surface patterns."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Pixels = NDArray[np.float32]
Color = NDArray[np.float64]

TILE_PX = 256


@dataclass(frozen=True)
class Texture:
    tile: Pixels  # TILE_PX x TILE_PX x 3
    size_m: float  # length of the tile's side on the surface

    def sample(self, u_m: Pixels, v_m: Pixels) -> Pixels:
        """Colors at surface coordinates of any shape; the tile repeats."""
        scale = np.float32(TILE_PX / self.size_m)
        column = (u_m * scale).astype(np.int32) & (TILE_PX - 1)
        row = (v_m * scale).astype(np.int32) & (TILE_PX - 1)
        return self.tile.reshape(-1, 3).take(row * TILE_PX + column, axis=0)


def draw_table_texture(rng: np.random.Generator, color: Color) -> Texture:
    kind = rng.choice(["wood", "wood", "checks", "stripes", "speckles", "plain"])
    return Texture(_tile(rng, kind, color, contrast=rng.uniform(0.12, 0.3)), rng.uniform(0.5, 0.8))


def draw_wall_texture(rng: np.random.Generator, color: Color) -> Texture:
    kind = rng.choice(["stripes", "checks", "speckles", "plain", "plain"])
    return Texture(_tile(rng, kind, color, contrast=rng.uniform(0.05, 0.18)), rng.uniform(0.7, 1.6))


def _tile(rng: np.random.Generator, kind: str, color: Color, contrast: float) -> Pixels:
    pattern = 0.3 * periodic_noise(rng, 8, 8)
    if kind == "wood":
        grain = 7.0 * np.arange(TILE_PX)[:, None] / TILE_PX + 0.8 * periodic_noise(rng, 4, 2)
        pattern = 0.6 * np.sin(2 * np.pi * grain) + 0.6 * periodic_noise(rng, 64, 4)
    elif kind == "checks":
        wave = np.sin(2 * np.pi * int(rng.integers(3, 7)) * np.arange(TILE_PX) / TILE_PX)
        pattern = pattern + _sharpen(wave)[:, None] * _sharpen(wave)[None, :]
    elif kind == "stripes":
        wave = np.sin(2 * np.pi * int(rng.integers(4, 10)) * np.arange(TILE_PX) / TILE_PX)
        pattern = pattern + _sharpen(wave)[None, :]
    elif kind == "speckles":
        pattern = periodic_noise(rng, 32, 32) + 0.7 * periodic_noise(rng, 64, 64)
    tint = 1.0 + 0.25 * rng.uniform(-1.0, 1.0, 3)
    shades = np.clip(color * (1.0 + contrast * pattern[..., None] * tint), 0.02, 1.0)
    return np.ascontiguousarray(shades, np.float32)


def periodic_noise(rng: np.random.Generator, rows: int, columns: int) -> NDArray[np.float64]:
    """Smooth noise in -1..1 from a grid of random values, tile-sized and tileable."""
    grid = rng.uniform(-1.0, 1.0, (rows, columns))
    along_rows = _stretch(grid)
    return _stretch(along_rows.T).T


def _stretch(grid: NDArray[np.float64]) -> NDArray[np.float64]:
    position = np.arange(TILE_PX) * (len(grid) / TILE_PX)
    index = position.astype(np.int64)
    part = position - index
    eased = (part * part * (3.0 - 2.0 * part))[:, None]
    stretched: NDArray[np.float64] = grid[index] * (1.0 - eased) + grid[(index + 1) % len(grid)] * eased
    return stretched


def _sharpen(wave: NDArray[np.float64]) -> NDArray[np.float64]:
    """Nearly a square wave, with edges soft enough not to alias."""
    return np.clip(wave * 4.0, -1.0, 1.0)
