import csv
import hashlib
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import av
import numpy as np
import pytest
from numpy.typing import NDArray

from byov.data.demo import DEFAULT_VIDEOS, PHASES, write_demo
from byov.data.demo.camera import Camera, EgoRig
from byov.data.demo.film import Film, View, draw_film, encode, film_rng
from byov.data.demo.look import hides_action
from byov.data.demo.pool import RenderJob, render_all
from byov.data.demo.script import FPS, MAX_FRAMES, MIN_FRAMES, State, draw_performance, event_frames
from byov.data.demo.write import list_videos
from byov.data.own_videos import read_own_videos

SEED = 147  # its first videos are short
TINY = {"train": (1, 1), "test": (1, 0)}
TINY_PATHS = ["train/ego/pour_ego_000.mp4", "train/exo/pour_exo_000.mp4", "test/ego/pour_ego_001.mp4"]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("demo") / "tiny"
    write_demo(root, seed=SEED, videos=TINY)
    return root


@pytest.fixture(scope="module")
def performances() -> list[list[State]]:
    return [draw_performance(film_rng(3, index)) for index in range(300)]


@pytest.fixture(scope="module", params=["ego", "exo"])
def film(request: pytest.FixtureRequest) -> Film:
    view: View = request.param
    return draw_film(0, 4, view)


def digests(root: Path) -> dict[str, str]:
    files = sorted(path for path in root.rglob("*") if path.is_file())
    return {path.relative_to(root).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def rows_of(root: Path) -> list[dict[str, str]]:
    with (root / "videos.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def phase_table(states: Sequence[State]) -> NDArray[np.int64]:
    return np.array([state.phase for state in states])


def change(first: NDArray[np.uint8], second: NDArray[np.uint8]) -> NDArray[np.int64]:
    """The largest difference over the color channels at every pixel."""
    difference: NDArray[np.int64] = np.abs(first.astype(np.int64) - second.astype(np.int64)).max(axis=2)
    return difference


def index_of(film: Film, phase: int) -> int:
    """A frame in the middle of the phase."""
    return int(np.median(np.flatnonzero(phase_table(film.states) == phase)))


# --- the dataset on disk


def test_layout(tiny: Path) -> None:
    assert sorted(digests(tiny)) == sorted([*TINY_PATHS, "videos.csv"])
    assert (tiny / "videos.csv").read_text().startswith("path,view,split,id,events,pair\n")
    rows = rows_of(tiny)
    assert [row["path"] for row in rows] == TINY_PATHS
    assert [row["id"] for row in rows] == [Path(path).stem for path in TINY_PATHS]
    assert [(row["split"], row["view"]) for row in rows] == [
        ("train", "ego"),
        ("train", "exo"),
        ("test", "ego"),
    ]


def test_events_agree_with_the_performance(tiny: Path) -> None:
    for row, index in zip(rows_of(tiny), [0, 1, 2], strict=True):
        states = draw_performance(film_rng(SEED, index))
        with av.open(tiny / row["path"]) as container:
            times_s = [float(frame.time or 0.0) for frame in container.decode(video=0)]
        assert times_s == pytest.approx(np.arange(len(states)) / FPS)
        events_s = [float(event) for event in row["events"].split(";")]
        phases = [sum(event <= time for event in events_s) for time in times_s]
        assert phases == phase_table(states).tolist()
        assert [round(event * FPS + 0.5) for event in events_s] == event_frames(states)


@pytest.mark.slow
def test_same_seed_gives_the_same_bytes_and_another_seed_others(tiny: Path, tmp_path: Path) -> None:
    calls: list[tuple[int, int]] = []
    write_demo(tmp_path / "again", seed=SEED, videos=TINY, progress=lambda done, total: calls.append((done, total)))
    assert digests(tmp_path / "again") == digests(tiny)
    assert calls == [(1, 3), (2, 3), (3, 3)]

    encode(draw_film(SEED, 0, "ego"), tmp_path / "here.mp4")  # in this process instead of a worker
    assert (tmp_path / "here.mp4").read_bytes() == (tiny / TINY_PATHS[0]).read_bytes()

    write_demo(tmp_path / "other", seed=27, videos={"train": (1, 0)})
    assert digests(tmp_path / "other")[TINY_PATHS[0]] != digests(tiny)[TINY_PATHS[0]]


def test_videos_decode_to_the_painted_pictures(tiny: Path) -> None:
    with av.open(tiny / TINY_PATHS[1]) as container:
        assert container.streams.video[0].codec_context.name == "h264"
        assert container.streams.video[0].codec_context.pix_fmt == "yuv420p"
        decoded = [frame.to_ndarray(format="rgb24").astype(np.uint8) for frame in container.decode(video=0)]
    film = draw_film(SEED, 1, "exo")
    for index in (0, len(decoded) // 2, len(decoded) - 1):
        assert change(decoded[index], film.frame(index)).mean() < 12


def test_failure_leaves_nothing_behind(tmp_path: Path) -> None:
    def stop(_done: int, _total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_demo(tmp_path / "demo", seed=SEED, videos=TINY, progress=stop)
    assert list(tmp_path.iterdir()) == []


def test_failing_worker_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="failed"):
        render_all([RenderJob(SEED, 0, "ego", str(tmp_path / "no such folder" / "video.mp4"), 0)], None)


def test_existing_root_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileExistsError):
        write_demo(tmp_path, videos=TINY)
    assert list(tmp_path.iterdir()) == []


def test_root_written_meanwhile_by_another_process_is_kept(tmp_path: Path) -> None:
    root = tmp_path / "demo"

    def overtake(_done: int, _total: int) -> None:
        root.mkdir()
        (root / "videos.csv").write_text("theirs")

    write_demo(root, seed=SEED, videos={"train": (1, 0)}, progress=overtake)
    assert (root / "videos.csv").read_text() == "theirs"
    assert list(tmp_path.iterdir()) == [root]


def test_works_from_a_script_without_main_guard(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "from pathlib import Path\n"
        "from byov.data.demo import write_demo\n"
        f"write_demo(Path({str(tmp_path / 'demo')!r}), seed={SEED}, videos={{'val': (0, 1)}})\n"
    )
    subprocess.run([sys.executable, "-P", str(script)], check=True)
    assert sorted(digests(tmp_path / "demo")) == ["val/exo/pour_exo_000.mp4", "videos.csv"]


# --- pairs


@pytest.fixture(scope="module")
def paired(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three training videos of each view, of which the last are a pair."""
    root = tmp_path_factory.mktemp("demo") / "paired"
    write_demo(root, seed=SEED, videos={"train": (3, 3)})
    return root


def liquid_hue(film: Film) -> NDArray[np.float64]:
    """Shares of red, green and blue in the pixels that a full glass changes; brightness depends on the side."""
    index = index_of(film, 2)
    empty, full = (film.picture(replace(film.states[index], fill=fill), index) for fill in (0.0, 0.9))
    color: NDArray[np.float64] = np.median(full[change(empty, full) > 25], axis=0)
    return color / color.sum()


@pytest.mark.parametrize(
    ("videos", "numbers"),
    [
        (DEFAULT_VIDEOS, [8, 9, 10, 11]),
        ({"train": (3, 3)}, [2]),
        ({"train": (2, 2), "val": (9, 9)}, []),
        ({"train": (9, 4), "val": (0, 5)}, [3]),
        ({"val": (0, 2), "train": (6, 7)}, [5]),  # ego 0 to 5, exo 2 to 8
        ({"val": (0, 6), "train": (6, 6)}, []),
        ({"val": (12, 12)}, []),
    ],
)
def test_the_last_third_of_the_training_videos_are_pairs(
    videos: dict[str, tuple[int, int]], numbers: list[int]
) -> None:
    listed = [video for video in list_videos(videos) if video.pair]
    assert [(video.view, video.number) for video in listed] == [(view, n) for view in ("ego", "exo") for n in numbers]
    assert {video.split for video in listed} <= {"train"}


@pytest.mark.slow
def test_a_pair_is_read_as_one_with_equal_lengths_and_events(paired: Path) -> None:
    videos = {video.id: video for video in read_own_videos("demo", paired / "videos.csv").videos}
    ego, exo = videos.pop("pour_ego_002"), videos.pop("pour_exo_002")
    assert ego.pair == exo.pair == "pour_002"
    assert ego.events == exo.events
    counts = []
    for video in (ego, exo):
        with av.open(video.path) as container:
            counts.append(sum(1 for _ in container.decode(video=0)))
    assert counts == [len(draw_performance(film_rng(SEED, 4)))] * 2
    assert {video.pair for video in videos.values()} == {None}
    assert len({video.events for video in videos.values()}) == 4


@pytest.mark.slow
def test_of_a_pair_only_the_exo_video_is_drawn_by_the_other(paired: Path, tmp_path: Path) -> None:
    films = {
        "exo/pour_exo_001": draw_film(SEED, 3, "exo"),
        "ego/pour_ego_002": draw_film(SEED, 4, "ego"),
        "exo/pour_exo_002": draw_film(SEED, 5, "exo", 4),
    }
    for name, film in films.items():
        encode(film, tmp_path / "here.mp4")
        assert (paired / "train" / f"{name}.mp4").read_bytes() == (tmp_path / "here.mp4").read_bytes()


@pytest.mark.parametrize("number", [8, 9, 10, 11])
def test_both_cameras_of_a_pair_see_the_same(number: int) -> None:
    ego, exo = draw_film(0, 2 * number, "ego"), draw_film(0, 2 * number + 1, "exo", 2 * number)
    assert isinstance(ego.camera, EgoRig)
    assert isinstance(exo.camera, Camera)
    assert ego.states == exo.states
    np.testing.assert_equal(asdict(exo.props), asdict(ego.props))
    np.testing.assert_array_equal(exo.tremor_phases_rad, ego.tremor_phases_rad)
    own = {"noise": 0.0, "decorations": ()}
    np.testing.assert_equal(asdict(replace(exo.look, **own)), asdict(replace(ego.look, **own)))
    assert exo.look.decorations
    assert exo.look.noise != ego.look.noise
    assert not np.array_equal(exo.noise_offsets, ego.noise_offsets)
    alone = draw_film(0, 2 * number + 1, "exo")
    difference, otherwise = (np.abs(liquid_hue(ego) - liquid_hue(film)).max() for film in (exo, alone))
    assert difference < 0.05 < otherwise


def test_things_on_the_table_seldom_hide_the_action_from_the_other_camera() -> None:
    hidden = 0
    for seed in range(40):
        film = draw_film(seed, 17, "exo", 16)
        assert isinstance(film.camera, Camera)
        position = film.camera.position
        hidden += any(hides_action(thing.place, film.props, position) for thing in film.look.clutter)
    assert hidden <= 4


# --- the performance


def test_every_performance_has_all_phases_in_order(performances: list[list[State]]) -> None:
    for states in performances:
        assert MIN_FRAMES <= len(states) <= MAX_FRAMES
        phases = phase_table(states)
        assert set(phases.tolist()) == set(range(len(PHASES)))
        assert (np.diff(phases) >= 0).all()


def test_stream_runs_in_the_middle_phase_only_and_fills_the_glass(performances: list[list[State]]) -> None:
    for states in performances:
        assert all((state.flow > 0) == (state.phase == 1) for state in states)
        fill = np.array([state.fill for state in states])
        pouring = phase_table(states) == 1
        assert (np.diff(fill[pouring]) > 0).all()
        assert np.unique(fill[phase_table(states) == 0]).size == 1
        assert fill[-1] - fill[0] > 0.4


def test_bottle_moves_only_in_the_hand(performances: list[list[State]]) -> None:
    for states in performances:
        assert all(state.grasp == pytest.approx(1.0) for state in states if state.lift > 0)
        assert all(state.lift == pytest.approx(1.0) for state in states if state.tilt > 0)


def test_elapsed_time_does_not_give_the_phase(performances: list[list[State]]) -> None:
    first_events = [event_frames(states)[0] / len(states) for states in performances]
    low, high = np.percentile(first_events, [5, 95])
    assert low < 0.2
    assert high > 0.6

    time = np.concatenate([np.arange(len(states)) / len(states) for states in performances])
    phases = np.concatenate([phase_table(states) for states in performances])
    thresholds = np.arange(0.1, 1.0, 0.03)
    best = max(
        (np.digitize(time, [first, second]) == phases).mean()
        for first in thresholds
        for second in thresholds[thresholds > first]
    )
    assert 0.5 < best < 0.78


# --- the pictures


def test_stream_is_seen(film: Film) -> None:
    index = index_of(film, 1)
    state = film.states[index]
    changed = change(film.picture(state, index), film.picture(replace(state, flow=0.0), index)) > 25
    assert changed.sum() > 15
    rows, columns = np.nonzero(changed)
    assert np.ptp(rows) > np.ptp(columns)  # it falls


def test_rising_level_is_seen(film: Film) -> None:
    index = index_of(film, 2)
    pictures = [film.picture(replace(film.states[index], fill=fill), index) for fill in (0.0, 0.4, 0.8)]
    areas = [(change(pictures[0], picture) > 25).sum() for picture in pictures]
    assert areas[2] > areas[1] + 20 > 40
    rows, columns = np.nonzero(change(pictures[0], pictures[2]) > 25)
    assert np.ptp(rows) < 60, "the change is confined to the glass"
    assert np.ptp(columns) < 60


def test_movement_is_seen(film: Film) -> None:
    frames = [film.frame(index_of(film, phase)) for phase in range(len(PHASES))]
    assert (change(frames[0], frames[1]) > 25).sum() > 200
    assert (change(frames[1], frames[2]) > 25).sum() > 200


def test_no_frame_is_blank(film: Film) -> None:
    for index in range(0, len(film.states), 10):
        frame = film.frame(index)
        assert frame.shape == (192, 256, 3)
        assert frame.std() > 15
        assert 25 < frame.mean() < 230


def test_views_of_the_same_performance_differ_and_only_ego_moves() -> None:
    ego, exo = draw_film(0, 4, "ego"), draw_film(0, 4, "exo")
    assert ego.states == exo.states
    state = ego.states[0]
    assert (change(ego.picture(state, 0), exo.picture(state, 0)) > 25).mean() > 0.3
    later = 40
    assert (change(exo.picture(state, 0), exo.picture(state, later)) > 60).mean() < 0.01
    assert (change(ego.picture(state, 0), ego.picture(state, later)) > 25).mean() > 0.05
