"""One video: draws everything about it, paints its frames and encodes them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Literal

import av
import numpy as np
from numpy.typing import NDArray

from byov.data.demo.camera import HEIGHT_PX, WIDTH_PX, Camera, EgoRig, draw_ego_rig, draw_exo_camera
from byov.data.demo.look import Look, draw_look, hides_action, with_decorated_wall
from byov.data.demo.pose import Props, draw_props, pose_at
from byov.data.demo.raster import Canvas, Pixels
from byov.data.demo.scene import Wall, paint_action, paint_backdrop, paint_table_and_room, wall_behind_table
from byov.data.demo.script import FPS, State, draw_performance

View = Literal["ego", "exo"]

_NOISE_SPARE_PX = 64
_TREMOR_M = 0.003
_CAMERA_TRIES = 20


@dataclass(frozen=True)
class Film:
    """A drawn video, ready to be painted frame by frame."""

    states: list[State]
    props: Props
    look: Look
    camera: Camera | EgoRig
    wall: Wall
    backdrop: Pixels | None  # all that never changes before a camera that stands still
    tremor_phases_rad: NDArray[np.float64]
    noise: Pixels
    noise_offsets: NDArray[np.int64]  # frames x 2: which part of `noise` a frame gets
    vignette: Pixels

    def frame(self, index: int) -> NDArray[np.uint8]:
        """The picture at a frame of the performance."""
        return self.picture(self.states[index], index)

    def picture(self, state: State, index: int) -> NDArray[np.uint8]:
        """The picture of any state, with the sway, tremor and noise of the frame at `index`."""
        time_s = index / FPS
        tremor = _TREMOR_M * np.sin(2 * np.pi * np.array([0.7, 0.9, 1.3]) * time_s + self.tremor_phases_rad)
        pose = pose_at(self.props, state, tremor)
        if isinstance(self.camera, EgoRig):
            camera = self.camera.at(time_s, pose.hand.palm)
            pixels = paint_table_and_room(camera, self.look, self.wall)
        else:
            camera = self.camera
            assert self.backdrop is not None
            pixels = self.backdrop.copy()
        canvas = Canvas(pixels, camera, self.look.light)
        paint_action(canvas, self.props, self.look, pose, state, with_body=self.backdrop is not None)
        return self._develop(pixels, index)

    def _develop(self, pixels: Pixels, index: int) -> NDArray[np.uint8]:
        """Light's tint, lens and sensor."""
        pixels *= self.vignette
        top, left = self.noise_offsets[index]
        pixels += self.noise[top : top + HEIGHT_PX, left : left + WIDTH_PX]
        levels = np.clip(pixels * 255.0 + 0.5, 0.0, 255.0).astype(np.uint8)
        return np.ascontiguousarray(levels[:, ::-1]) if self.look.mirrored else levels


def draw_film(seed: int, index: int, view: View, performance: int | None = None) -> Film:
    """Draw the video of this number; nothing else than the arguments has a say in it.

    With `performance`, the number of an ego video: an exo camera that stood by when that one was filmed.
    """
    if performance is None or performance == index:
        return _draw_alone(seed, index, view)
    return _draw_beside(seed, index, performance)


def _draw_alone(seed: int, index: int, view: View) -> Film:
    rng = film_rng(seed, index)
    states = draw_performance(rng)
    props = draw_props(rng)
    camera: Camera | EgoRig = draw_exo_camera(rng) if view == "exo" else draw_ego_rig(rng)
    look = draw_look(rng, props, camera.position if isinstance(camera, Camera) else None)
    first_camera = camera.at(0.0, props.hand_rest) if isinstance(camera, EgoRig) else camera
    wall = wall_behind_table(first_camera, np.deg2rad(rng.uniform(-25.0, 25.0)))
    return Film(
        states=states,
        props=props,
        look=look,
        camera=camera,
        wall=wall,
        backdrop=paint_backdrop(camera, look, wall, props) if isinstance(camera, Camera) else None,
        tremor_phases_rad=rng.uniform(0.0, 2 * np.pi, 3),
        noise=_draw_noise(rng, look),
        noise_offsets=_draw_noise_offsets(rng, states),
        vignette=_vignette(look),
    )


def _draw_beside(seed: int, index: int, performance: int) -> Film:
    """The ego video's film from outside: what is filmed is the same, camera, noise and the wall behind are its own."""
    ego = _draw_alone(seed, performance, "ego")
    rng = film_rng(seed, index)
    camera = _draw_clear_camera(rng, ego)
    look = with_decorated_wall(rng, ego.look)
    wall = wall_behind_table(camera, np.deg2rad(rng.uniform(-25.0, 25.0)))
    return replace(
        ego,
        look=look,
        camera=camera,
        wall=wall,
        backdrop=paint_backdrop(camera, look, wall, ego.props),
        noise=_draw_noise(rng, look),
        noise_offsets=_draw_noise_offsets(rng, ego.states),
    )


def _draw_clear_camera(rng: np.random.Generator, ego: Film) -> Camera:
    """An exo camera from which nothing on the ego video's table hides glass or bottle; seldom there is none."""

    def hiding(camera: Camera) -> int:
        return sum(hides_action(thing.place, ego.props, camera.position) for thing in ego.look.clutter)

    return min((draw_exo_camera(rng) for _ in range(_CAMERA_TRIES)), key=hiding)


def _draw_noise(rng: np.random.Generator, look: Look) -> Pixels:
    shape = (HEIGHT_PX + _NOISE_SPARE_PX, WIDTH_PX + _NOISE_SPARE_PX, 3)
    return rng.standard_normal(shape, np.float32) * np.float32(look.noise)


def _draw_noise_offsets(rng: np.random.Generator, states: Sequence[State]) -> NDArray[np.int64]:
    return rng.integers(0, _NOISE_SPARE_PX, (len(states), 2))


def film_rng(seed: int, index: int) -> np.random.Generator:
    return np.random.default_rng([seed, index])


def encode(film: Film, path: Path) -> None:
    # One thread and no version strings or dates: the same film gives the same bytes.
    with av.open(path, "w", format="mp4", options={"fflags": "+bitexact"}) as container:
        stream = container.add_stream("libx264", rate=FPS, options={"preset": "superfast", "crf": "20", "threads": "1"})
        stream.width, stream.height, stream.pix_fmt = WIDTH_PX, HEIGHT_PX, "yuv420p"
        stream.time_base = Fraction(1, FPS)
        for picture in _pictures(film):
            container.mux(stream.encode(picture))
        container.mux(stream.encode(None))


def _pictures(film: Film) -> Iterator[av.VideoFrame]:
    for index in range(len(film.states)):
        picture = av.VideoFrame.from_ndarray(film.frame(index), format="rgb24")
        picture.pts = index
        picture.time_base = Fraction(1, FPS)
        yield picture


def _vignette(look: Look) -> Pixels:
    x = (np.arange(WIDTH_PX) + 0.5) / WIDTH_PX - 0.5
    y = (np.arange(HEIGHT_PX) + 0.5) / HEIGHT_PX - 0.5
    falloff = 1.0 - 0.35 * (x[None, :] ** 2 + y[:, None] ** 2)
    return (falloff[..., None] * look.light.tint).astype(np.float32)
