"""What a video's things look like: colors, textures, light, clutter. Drawn once per video."""

import colorsys
from dataclasses import dataclass, replace

import numpy as np

from byov.data.demo.camera import Vector
from byov.data.demo.pose import Props
from byov.data.demo.raster import Light
from byov.data.demo.texture import Texture, draw_table_texture, draw_wall_texture

_SKINS = ((0.96, 0.8, 0.69), (0.9, 0.7, 0.56), (0.78, 0.57, 0.42), (0.58, 0.39, 0.27), (0.4, 0.26, 0.18))
_HAIRS = ((0.1, 0.08, 0.07), (0.3, 0.18, 0.1), (0.6, 0.42, 0.2), (0.55, 0.55, 0.55), (0.45, 0.15, 0.08))
_LIQUIDS = (
    (0.98, 0.55, 0.05),  # orange juice
    (0.75, 0.05, 0.1),  # cherry juice
    (0.95, 0.95, 0.9),  # milk
    (0.22, 0.09, 0.04),  # cola
    (0.2, 0.5, 0.95),  # blue lemonade
    (0.35, 0.75, 0.2),  # woodruff
    (0.95, 0.85, 0.2),  # lemonade
)
_MIN_LIQUID_CONTRAST = 0.55
_NOISE = (0.004, 0.016)
CLUTTER_KINDS = ("mug", "box", "fruit", "plate", "book", "can")


@dataclass(frozen=True)
class Clutter:
    kind: str
    place: Vector
    size_m: float
    color: Vector
    second_color: Vector
    turn_rad: float


@dataclass(frozen=True)
class Decoration:
    """A flat thing on the wall: its rectangle in wall coordinates (metres) and its colors."""

    kind: str
    left_m: float
    bottom_m: float
    width_m: float
    height_m: float
    color: Vector
    second_color: Vector


@dataclass(frozen=True)
class Look:
    mirrored: bool
    skin: Vector
    sleeve: Vector
    sleeve_share: float  # how much of the forearm the sleeve covers
    hair: Vector
    bottle: Vector
    label: Vector
    liquid: Vector
    glass: Vector
    counter: Vector
    table: Texture
    table_half_width_m: float
    table_depth_m: float  # how far the table goes beyond the person's side
    wall: Texture
    floor: Texture
    light: Light
    noise: float
    other_hand_rest: Vector | None
    clutter: tuple[Clutter, ...]
    decorations: tuple[Decoration, ...]


def draw_look(rng: np.random.Generator, props: Props, exo_position: Vector | None) -> Look:
    """Draw a look. For an exo camera it has a decorated wall and more clutter, though none in the way."""
    busy = exo_position is not None
    table = _color(rng, saturation=(0.05, 0.55), value=(0.35, 0.9))
    wall = _color(rng, saturation=(0.03, 0.4), value=(0.45, 0.95))
    shirt = _color(rng, saturation=(0.2, 0.9), value=(0.25, 0.9))
    bottle = _color(rng, saturation=(0.3, 0.9), value=(0.3, 0.85))
    return Look(
        mirrored=bool(rng.random() < 0.4),
        skin=_jitter(rng, _SKINS[rng.integers(len(_SKINS))]),
        sleeve=shirt,
        sleeve_share=rng.choice([0.0, 0.45, 0.8]),
        hair=_jitter(rng, _HAIRS[rng.integers(len(_HAIRS))]),
        bottle=bottle,
        label=_color(rng, saturation=(0.0, 0.8), value=(0.6, 1.0)),
        liquid=_draw_liquid(rng, table, wall),
        glass=np.array([0.86, 0.93, 0.97]) * rng.uniform(0.9, 1.0, 3),
        counter=table * rng.uniform(0.45, 0.75),
        table=draw_table_texture(rng, table),
        table_half_width_m=rng.uniform(0.55, 0.8),
        table_depth_m=rng.uniform(0.36, 0.55),
        wall=draw_wall_texture(rng, wall),
        floor=draw_wall_texture(rng, _color(rng, saturation=(0.05, 0.4), value=(0.2, 0.6))),
        light=_draw_light(rng),
        noise=rng.uniform(*_NOISE),
        other_hand_rest=_draw_other_hand(rng),
        clutter=_draw_clutter(rng, props, int(rng.integers(3, 7) if busy else rng.integers(0, 4)), exo_position),
        decorations=_draw_decorations(rng) if busy else (),
    )


def with_decorated_wall(rng: np.random.Generator, look: Look) -> Look:
    """The look of an ego video for an exo camera: nothing changes but what hangs on the wall, and the noise."""
    return replace(look, noise=rng.uniform(*_NOISE), decorations=_draw_decorations(rng))


def _draw_liquid(rng: np.random.Generator, *surroundings: Vector) -> Vector:
    """A liquid that stands out from table and wall if there is such a one, so that the stream can be seen."""
    choices = [_jitter(rng, _LIQUIDS[i]) for i in rng.permutation(len(_LIQUIDS))]
    contrasts = [min(float(np.linalg.norm(choice - other)) for other in surroundings) for choice in choices]
    clear = [choice for choice, contrast in zip(choices, contrasts, strict=True) if contrast > _MIN_LIQUID_CONTRAST]
    return clear[0] if clear else choices[int(np.argmax(contrasts))]


def _draw_light(rng: np.random.Generator) -> Light:
    direction = np.array([rng.uniform(-1.0, 1.0), rng.uniform(-0.6, 0.9), rng.uniform(0.7, 1.3)])
    return Light(
        direction=direction / np.linalg.norm(direction),
        ambient=rng.uniform(0.5, 0.65),
        diffuse=rng.uniform(0.4, 0.6),
        tint=rng.uniform(0.9, 1.1) * (1.0 + rng.uniform(-0.07, 0.07, 3)),
    )


def _draw_other_hand(rng: np.random.Generator) -> Vector | None:
    place = np.array([rng.uniform(-0.32, -0.2), rng.uniform(-0.2, -0.08), 0.0])
    return place if rng.random() < 0.6 else None


def _draw_clutter(
    rng: np.random.Generator, props: Props, count: int, exo_position: Vector | None
) -> tuple[Clutter, ...]:
    """Things standing about, clear of the action, of one another and of the view on glass and bottle."""
    taken = [(props.glass_place, 0.13), (props.bottle_place, 0.13), (props.hand_rest, 0.14)]
    clutter: list[Clutter] = []
    for _ in range(8 * count):  # some tries fail; fewer things than asked for is fine
        place = np.array([rng.uniform(-0.48, 0.48), rng.uniform(-0.05, 0.36), 0.0])
        size = rng.uniform(0.05, 0.09)
        thing = Clutter(
            kind=CLUTTER_KINDS[rng.integers(len(CLUTTER_KINDS))],
            place=place,
            size_m=size,
            color=_color(rng, saturation=(0.2, 0.9), value=(0.3, 0.95)),
            second_color=_color(rng, saturation=(0.0, 0.6), value=(0.5, 1.0)),
            turn_rad=rng.uniform(0.0, np.pi),
        )
        in_hands_way = place[1] < 0.05 and abs(place[0]) < 0.4
        crowded = any(np.linalg.norm(place - other) < gap + size * 0.5 for other, gap in taken)
        hiding = exo_position is not None and hides_action(place, props, exo_position)
        if len(clutter) < count and not (crowded or in_hands_way or hiding):
            clutter.append(thing)
            taken.append((place, 0.1))
    return tuple(clutter)


def hides_action(place: Vector, props: Props, seen_from: Vector) -> bool:
    """Whether something at the place could stand before glass or bottle."""
    return any(_hides(place, thing, seen_from) for thing in (props.glass_place, props.bottle_place))


def _hides(place: Vector, thing: Vector, seen_from: Vector) -> bool:
    """Whether something at the place could stand before the thing."""
    view = (seen_from - thing)[:2] / np.linalg.norm((seen_from - thing)[:2])
    x, y = (place - thing)[:2]
    return bool(x * view[0] + y * view[1] > 0 and abs(x * view[1] - y * view[0]) < 0.1)


def _draw_decorations(rng: np.random.Generator) -> tuple[Decoration, ...]:
    """Pictures, windows and shelves side by side along the wall."""
    decorations = []
    left = rng.uniform(-1.5, -1.1)
    while left < 1.2:
        width = rng.uniform(0.3, 0.65)
        kind = rng.choice(["picture", "window", "shelf", "gap"])
        if kind != "gap":
            color = _color(rng, saturation=(0.2, 0.8), value=(0.2, 0.9))
            second = _color(rng, saturation=(0.1, 0.7), value=(0.4, 1.0))
            bottom = rng.uniform(0.0, 0.45)
            decorations.append(Decoration(kind, left, bottom, width, rng.uniform(0.3, 0.6), color, second))
        left += width + rng.uniform(0.1, 0.3)
    return tuple(decorations)


def _color(rng: np.random.Generator, *, saturation: tuple[float, float], value: tuple[float, float]) -> Vector:
    return np.array(colorsys.hsv_to_rgb(rng.random(), rng.uniform(*saturation), rng.uniform(*value)))


def _jitter(rng: np.random.Generator, color: tuple[float, float, float]) -> Vector:
    return np.clip(np.array(color) * (1.0 + rng.uniform(-0.08, 0.08, 3)), 0.0, 1.0)
