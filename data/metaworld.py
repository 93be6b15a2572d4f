"""Meta-World datasets: simulated robot manipulation, filmed by a wrist camera (ego) and by corner
cameras (exo).

Each video shows a different episode of Meta-World's scripted policy, with random object and goal
positions, start, speed, pauses, idle time, colors, lights and camera pose. Phases are derived from
the simulator state:

- reach: the gripper approaches the object
- contact: the gripper-object distance stays within 3 cm of its value when the object starts to move
- move: the object is more than 2 cm from its initial position
- done: Meta-World reports success

In the variants called `<task>-wait`, the robot first waits for 30 to 60% of the video.

Rendering requires the `metaworld` extra, and OSMesa or EGL (environment variable MUJOCO_GL). The
`demo` dataset, a smaller version of `metaworld-door-open`, ships with the package.
"""

import os
import warnings
from collections.abc import Iterator, Mapping
from fractions import Fraction
from itertools import count
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import av
import numpy as np
from numpy.typing import NDArray

from byov.data.dataset import Dataset
from byov.data.own_videos import read_own_videos
from byov.data.reader import DatasetReader
from byov.errors import DatasetError
from byov.progress import NO_PROGRESS, Progress, track
from byov.records import VIEWS, Split, View

# A task's index is part of its random seeds, so append new tasks at the end.
TASKS = ("pick-place", "drawer-open", "door-open", "peg-insert-side", "coffee-pull", "hammer")
WAITING_TASKS = ("pick-place-wait",)
PHASES = ("reach", "contact", "move", "done")
VIDEOS_PER_VIEW: Mapping[Split, int] = {"train": 24, "val": 6, "test": 10}
DEMO = {
    "task": "door-open",
    "videos_per_view": {"train": 20, "val": 4, "test": 8},
    "size": 192,
    "crf": 30,
}
PAIRS = 4  # number of train episodes that are filmed in both views
FPS = 15

# Sites to show, as nothing else marks the goal.
_GOAL_MARKERS = {"pick-place": "goal", "coffee-pull": "mug_goal"}
_CORNERS = ("corner", "corner2", "corner3", "corner4")
_FRAMES = (60, 140)  # minimum and maximum length of a video, without the wait of `<task>-wait`
_WAIT = (0.3, 0.6)  # minimum and maximum wait as a fraction of the video
_LONGEST_WAIT = 210  # in frames: 60% of a video of which 140 frames follow the wait
_SHORTEST_PHASE = 3  # in frames
_SETTLING_STEPS = 10  # simulation steps until objects come to rest; not filmed
_MAX_STEPS = 420
_WORKSPACE = np.array((0.0, 0.65, 0.12))  # look-at point of the corner cameras
_WORKSPACE_RADIUS = 0.42  # meters


class MetaWorld(DatasetReader):
    """Base class of the readers of Meta-World datasets; videos are rendered if they are missing."""

    is_created = True
    task: ClassVar[str]

    def read(self, folder: Path, progress: Progress = NO_PROGRESS) -> Dataset:
        if not (folder / "videos.csv").exists():
            write_dataset(folder, self.task, progress=progress)
        return read_own_videos(self.name, folder / "videos.csv")


def _reader_of(task_name: str) -> type[MetaWorld]:
    class MetaWorldTask(MetaWorld):
        name = f"metaworld-{task_name}"
        task = task_name

    return MetaWorldTask


METAWORLD = [_reader_of(task) for task in (*TASKS, *WAITING_TASKS)]


class Clip(NamedTuple):
    """A video to render."""

    split: Split
    view: View
    id: str
    episode: int  # index across all splits and views
    pair: str  # name shared by two videos of the same episode; "" if unpaired

    @property
    def path(self) -> str:
        return f"{self.split}/{self.view}/{self.id}.mp4"


class Performance(NamedTuple):
    """A simulated episode."""

    states: NDArray[np.float64]  # (T, nq) joint positions in each frame
    events: tuple[int, ...]  # first frame of each phase except the first


def write_dataset(
    root: Path,
    task: str,
    *,
    seed: int = 0,
    videos_per_view: Mapping[Split, int] = VIDEOS_PER_VIEW,
    size: int = 224,
    crf: int = 20,
    progress: Progress = NO_PROGRESS,
) -> None:
    """Render the videos of a task, then write videos.csv. Existing videos are kept, so you can
    resume rendering.

    The files are byte-identical for the same arguments, package versions and OpenGL library.

    Args:
        root: Dataset folder.
        task: One of TASKS or WAITING_TASKS.
        seed: Random seed.
        videos_per_view: Number of videos per view in each split.
        size: Width and height in pixels.
        crf: H.264 constant rate factor; lower means better quality.
        progress: Progress reporter.

    Raises:
        DatasetError: If the simulator or its renderer is not installed.
    """
    studio = Studio(task, size)
    rows = [("path", "view", "split", "id", "events", "phases", "pair")]
    for clip in track(list_clips(videos_per_view), progress, f"rendering {task}", unit="video"):
        episode = studio.perform(seed, clip.episode)
        path = root / clip.path
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            scratch = path.with_name(f".{path.name}.partial")
            encode_video(scratch, studio.film(episode, seed, clip), size, crf)
            scratch.replace(path)
        events = ";".join(f"{frame}f" for frame in episode.events)
        rows.append(
            (clip.path, clip.view, clip.split, clip.id, events, ";".join(PHASES), clip.pair)
        )
    scratch = root / ".videos.csv.partial"
    scratch.write_text(
        "".join(",".join(row) + "\n" for row in rows), encoding="utf-8", newline="\n"
    )
    scratch.replace(root / "videos.csv")


def list_clips(videos_per_view: Mapping[Split, int]) -> list[Clip]:
    """List the videos of a dataset. The last PAIRS train videos of each view form pairs."""
    clips = []
    episodes = count()
    for split, videos in videos_per_view.items():
        unpaired = max(0, videos - PAIRS) if split == "train" else videos
        pairs = {index: next(episodes) for index in range(unpaired, videos)}
        for view in VIEWS:
            for index in range(videos):
                episode = pairs[index] if index in pairs else next(episodes)
                pair = f"pair_{index:02d}" if index in pairs else ""
                clips.append(Clip(split, view, f"{split}_{view}_{index:02d}", episode, pair))
    return clips


def encode_video(path: Path, frames: Iterator[NDArray[np.uint8]], size: int, crf: int) -> None:
    """Encode RGB frames `(size, size, 3)` to a reproducible H.264 MP4 file."""
    # With assembly or threads, x264's output varies between runs; bitexact omits version strings.
    options = {"preset": "medium", "crf": str(crf), "threads": "1", "x264-params": "asm=0"}
    with av.open(path, "w", format="mp4", options={"fflags": "+bitexact"}) as container:
        stream = container.add_stream("libx264", rate=FPS, options=options)
        stream.width = size
        stream.height = size
        stream.pix_fmt = "yuv420p"
        stream.time_base = Fraction(1, FPS)
        for index, pixels in enumerate(frames):
            frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
            frame.pts = index
            frame.time_base = Fraction(1, FPS)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))


class Studio:
    """Simulator and renderer for one task."""

    def __init__(self, task: str, size: int) -> None:
        self._waits = task in WAITING_TASKS
        task = task.removesuffix("-wait")
        self._number = TASKS.index(task)
        environments, policies, self._mujoco = _import_simulator()
        self.env = environments[f"{task}-v3-goal-observable"](seed=0)
        # new object and goal positions at each reset
        self.env._freeze_rand_vec = False
        self.env.seeded_rand_vec = True
        self.env.max_path_length = 10**6
        self._policy = policies[f"{task}-v3"]()
        self._hand = np.array(self.env.hand_init_pos, np.float64)
        model = self.env.model
        for site in range(model.nsite):
            if model.site(site).name != _GOAL_MARKERS.get(task):
                model.site_rgba[site, 3] = 0
        self._original = {
            "mat_rgba": model.mat_rgba.copy(),
            "geom_rgba": model.geom_rgba.copy(),
            "light_diffuse": model.light_diffuse.copy(),
            "light_pos": model.light_pos.copy(),
            "cam_pos": model.cam_pos.copy(),
            "cam_quat": model.cam_quat.copy(),
            "cam_fovy": model.cam_fovy.copy(),
        }
        model.vis.quality.shadowsize = model.vis.quality.offsamples = 0
        self._renderer = self._mujoco.Renderer(model, size, size)
        for flag in (
            self._mujoco.mjtRndFlag.mjRND_SHADOW,
            self._mujoco.mjtRndFlag.mjRND_REFLECTION,
        ):
            self._renderer.scene.flags[flag] = 0

    def perform(self, seed: int, episode: int) -> Performance:
        """Simulate an episode, retrying until the policy succeeds and no phase is too short."""
        seeds = ((seed, self._number, episode, attempt) for attempt in count())
        return next(filter(None, (self._attempt(np.random.default_rng(each)) for each in seeds)))

    def film(self, episode: Performance, seed: int, clip: Clip) -> Iterator[NDArray[np.uint8]]:
        """Render RGB frames `(size, size, 3)` of `episode`, which must be the last one
        performed.
        """
        self._change_colors(np.random.default_rng((seed, self._number, clip.episode, 0, 1)))
        camera = self._place_camera(
            clip.view, np.random.default_rng((seed, self._number, clip.episode, 0, 2))
        )
        for state in episode.states:
            self.env.data.qpos[:] = state
            self._mujoco.mj_forward(self.env.model, self.env.data)
            self._renderer.update_scene(self.env.data, camera=camera)
            yield self._renderer.render()

    def _attempt(self, rng: np.random.Generator) -> Performance | None:
        env = self.env
        env.seed(int(rng.integers(2**31)))
        start = self._hand + rng.uniform((-0.15, -0.1, 0.0), (0.15, 0.05, 0.15))
        env.hand_init_pos = np.clip(start, env.mocap_low, env.mocap_high).astype(np.float32)
        observation, _ = env.reset()
        speed = rng.uniform(0.8, 1.0)
        noise = rng.uniform(0.0, 0.1)
        # Tuples of joint positions, object position, hand position and whether the step is idle.
        steps = []

        def step(action: Any, *, idle: bool) -> bool:
            nonlocal observation
            action = np.clip(np.asarray(action, np.float64), -1, 1)
            action[:3] = action[:3] * speed + rng.normal(0, noise, 3)
            observation, _, _, _, info = env.step(action)
            steps.append(
                (env.data.qpos.copy(), observation[4:7].copy(), env.tcp_center.copy(), idle)
            )
            return bool(info["success"])

        for _ in range(_SETTLING_STEPS + rng.integers(0, 31) + _LONGEST_WAIT * self._waits):
            step((0, 0, 0, -1), idle=True)
        started = len(steps) - 1
        pauses = dict(
            zip(rng.integers(3, 100, rng.integers(1, 4)), rng.integers(3, 26, 3), strict=False)
        )
        for number in range(_MAX_STEPS):
            # Policies warn that large actions are clipped.
            with warnings.catch_warnings(action="ignore"):
                action = np.asarray(self._policy.get_action(observation), np.float64)
            for _ in range(pauses.get(number, 0)):
                step((0, 0, 0, action[3]), idle=True)
            if step(action, idle=False):
                break
        else:
            return None
        done = len(steps) - 1
        for _ in range(rng.integers(5, 61)):
            step((0, 0, 0, action[3]), idle=True)
        states, objects, hands, is_idle = (np.array(values) for values in zip(*steps, strict=True))
        events = _event_steps(objects, hands, started, done)
        if events is None:
            return None
        if not self._waits:
            return _play_back(states, is_idle, events, rng)
        episode = _play_back(
            states[_LONGEST_WAIT:],
            is_idle[_LONGEST_WAIT:],
            tuple(e - _LONGEST_WAIT for e in events),
            rng,
        )
        return episode and _add_wait(
            episode, states[_SETTLING_STEPS : _SETTLING_STEPS + _LONGEST_WAIT], rng
        )

    def _change_colors(self, rng: np.random.Generator) -> None:
        model = self.env.model
        for name, values in self._original.items():
            getattr(model, name)[:] = values
        model.mat_rgba[:, :3] = np.clip(
            model.mat_rgba[:, :3] * rng.uniform(0.5, 1.25, (model.nmat, 3)), 0, 1
        )
        # The other geoms use the color of their material.
        colored = np.any(model.geom_rgba[:, :3] != 0.5, axis=1)
        factors = rng.uniform(0.6, 1.2, (colored.sum(), 3))
        model.geom_rgba[colored, :3] = np.clip(model.geom_rgba[colored, :3] * factors, 0, 1)
        model.light_diffuse[:] *= rng.uniform(0.4, 1.8, (model.nlight, 1))
        model.light_pos[:] += rng.normal(0, 0.3, (model.nlight, 3))
        model.vis.headlight.ambient[:] = rng.uniform(0.25, 0.5)
        model.vis.headlight.diffuse[:] = rng.uniform(0.25, 0.5)

    def _place_camera(self, view: View, rng: np.random.Generator) -> str:
        model = self.env.model
        name = "gripperPOV" if view == "ego" else _CORNERS[rng.integers(len(_CORNERS))]
        camera = model.camera(name).id
        if view == "ego":
            model.cam_pos[camera] += rng.normal(0, 0.005, 3)
            model.cam_fovy[camera] += rng.uniform(-6, 6)
            return name
        model.cam_pos[camera] += rng.normal(0, 0.06, 3)
        # Meta-World's corner cameras are upside down, so point them at the workspace with the z
        # axis up.
        back = model.cam_pos[camera] - (_WORKSPACE + rng.normal(0, 0.03, 3))
        distance = np.linalg.norm(back)
        model.cam_fovy[camera] = (
            2 * np.degrees(np.arctan(_WORKSPACE_RADIUS / distance)) * rng.uniform(0.9, 1.2)
        )
        back /= distance
        right = np.cross((0, 0, 1), back)
        right /= np.linalg.norm(right)
        rotation = np.column_stack((right, np.cross(back, right), back))
        self._mujoco.mju_mat2Quat(model.cam_quat[camera], rotation.ravel())
        return name


def _event_steps(
    objects: NDArray[np.float64], hands: NDArray[np.float64], started: int, done: int
) -> tuple[int, ...] | None:
    """Return the first step of each phase except the first;

    None if a phase is missing or out of order.
    """
    has_moved = np.linalg.norm(objects - objects[started], axis=1) > 0.02
    move = started + int(np.argmax(has_moved[started:]))
    distances = np.linalg.norm(objects - hands, axis=1)
    far = np.flatnonzero(distances[:move] > distances[move] + 0.03)
    if not has_moved[move] or move >= done or len(far) == 0:
        return None
    return int(far[-1]) + 1, move, done


def _play_back(
    states: NDArray[np.float64],
    is_idle: NDArray[np.bool_],
    events: tuple[int, ...],
    rng: np.random.Generator,
) -> Performance | None:
    """Resample steps to frames at varying speed: one frame per idle step, 40 to 75 in total for the
    others.
    """
    knots = np.linspace(0, len(states) - 1, 6)
    log_rates = rng.uniform(-0.55, 0.55, 6)
    frames_per_step = np.exp(np.interp(np.arange(len(states)), knots, log_rates))
    frames_per_step[~is_idle] *= rng.integers(40, 76) / frames_per_step[~is_idle].sum()
    frames_per_step[is_idle] = 1.0
    times = np.concatenate([[0.0], np.cumsum(frames_per_step)[:-1]])[_SETTLING_STEPS:]
    times -= times[0]
    steps = np.interp(np.arange(int(times[-1]) + 1), times, np.arange(_SETTLING_STEPS, len(states)))
    lower = steps.astype(np.int64)
    starts = np.searchsorted(lower, events)
    shortest = np.diff(starts, prepend=0, append=len(steps)).min()
    if not _FRAMES[0] <= len(steps) <= _FRAMES[1] or shortest < _SHORTEST_PHASE:
        return None
    upper = np.minimum(lower + 1, len(states) - 1)
    weight = (steps - lower)[:, None]
    return Performance(
        (1 - weight) * states[lower] + weight * states[upper], tuple(starts.tolist())
    )


def _add_wait(
    episode: Performance, idle_states: NDArray[np.float64], rng: np.random.Generator
) -> Performance:
    """Put idle states before an episode so that they make up a random fraction of the video."""
    fraction = rng.uniform(*_WAIT)
    wait = round(fraction / (1 - fraction) * len(episode.states))
    states = np.concatenate([idle_states[len(idle_states) - wait :], episode.states])
    return Performance(states, tuple(event + wait for event in episode.events))


def _import_simulator() -> tuple[Any, Any, Any]:
    """Import Meta-World and MuJoCo, which are optional and choose their renderer at import time."""
    os.environ.setdefault("MUJOCO_GL", "osmesa")
    os.environ.setdefault("LP_NUM_THREADS", "1")  # threads slow OSMesa down for frames this small
    try:
        import mujoco
        from metaworld.env_dict import ALL_V3_ENVIRONMENTS_GOAL_OBSERVABLE
        from metaworld.policies import ENV_POLICY_MAP
    except ModuleNotFoundError as error:
        raise DatasetError(
            f"Meta-World needs {error.name}, which is not installed. Run pip install "
            "'byov-egoexo[metaworld]'."
        ) from None
    except (AttributeError, ImportError, OSError) as error:
        raise DatasetError(
            f"MuJoCo found no {os.environ['MUJOCO_GL']} library ({error}). Run apt-get install "
            "libosmesa6."
        ) from None
    return ALL_V3_ENVIRONMENTS_GOAL_OBSERVABLE, ENV_POLICY_MAP, mujoco
