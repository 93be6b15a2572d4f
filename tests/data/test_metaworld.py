"""Tests of Meta-World datasets and the demo set.

Rendering tests are skipped if Meta-World is not installed.
"""

import importlib.util
import sys
from pathlib import Path

import av
import numpy as np
import pytest

from byov.data import dataset_names, metaworld, open_dataset
from byov.data.metaworld import DEMO, PHASES, Performance, Studio, list_clips, write_dataset
from byov.errors import DatasetError

SHIPPED = Path(metaworld.__file__).with_name("demo")
needs_simulator = pytest.mark.skipif(
    importlib.util.find_spec("metaworld") is None, reason="needs metaworld"
)


def frame_count(path: Path) -> int:
    with av.open(path) as container:
        stream = container.streams.video[0]
        assert (stream.width, stream.height, stream.average_rate) == (192, 192, 15)
        return sum(packet.size > 0 for packet in container.demux(stream))


def test_videos_of_a_dataset():
    clips = list_clips({"train": 24, "val": 6, "test": 10})
    assert len({clip.id for clip in clips}) == len({clip.path for clip in clips}) == 80
    paired = [clip for clip in clips if clip.pair]
    assert {clip.split for clip in paired} == {"train"}
    assert (
        len(paired)
        == 2 * len({clip.pair for clip in paired})
        == 2 * len({clip.episode for clip in paired})
        == 8
    )
    assert len({clip.episode for clip in clips}) == 80 - 4, "unpaired videos are different episodes"


def test_the_demo_has_usable_videos(tmp_path):
    dataset = open_dataset("demo", tmp_path)
    assert (dataset.root, dataset.phase_names) == (tmp_path / "demo", PHASES)
    counts = {
        split: sum(video.split == split for video in dataset.videos)
        for split in ("train", "val", "test")
    }
    assert counts == {"train": 40, "val": 8, "test": 16}
    assert sum(path.stat().st_size for path in SHIPPED.rglob("*.mp4")) < 5e6
    for video in dataset.videos:
        frames = frame_count(video.path)
        assert 60 <= frames <= 140
        starts = np.array([0, *(video.events or ()), frames])
        assert len(starts) == 5
        assert np.diff(starts).min() >= 3, video.id


def test_phases_follow_from_object_and_hand():
    hands = np.zeros((20, 3))
    # The hand approaches the object at the origin, then carries it.
    hands[:8, 0] = np.linspace(0.5, 0.04, 8)
    objects = np.zeros((20, 3))
    objects[12:, 2] = hands[12:, 2] = np.linspace(0.03, 0.2, 8)
    hands[8:, 0] = 0.03
    assert metaworld._event_steps(objects, hands, started=0, done=17) == (7, 12, 17)
    assert metaworld._event_steps(objects, hands, started=0, done=12) is None, (
        "done before the object moves"
    )
    assert metaworld._event_steps(np.zeros((20, 3)), hands, started=0, done=17) is None, (
        "the object does not move"
    )


def test_waits_precede_the_episode_and_differ():
    idle = np.linspace(-1, 0, metaworld._LONGEST_WAIT, endpoint=False)[:, None]
    episode = Performance(np.arange(140.0)[:, None], (50, 80, 120))
    rng = np.random.default_rng(0)
    fractions = []
    for _ in range(50):
        waiting = metaworld._add_wait(episode, idle, rng)
        wait = len(waiting.states) - 140
        fractions.append(wait / len(waiting.states))
        assert waiting.events == (50 + wait, 80 + wait, 120 + wait)
        np.testing.assert_array_equal(waiting.states[wait:], episode.states)
        assert (np.diff(waiting.states[:, 0]) > 0).all(), "the wait ends where the episode starts"
    assert min(fractions) == pytest.approx(0.3, abs=0.03)
    assert max(fractions) == pytest.approx(0.6, abs=0.03)


def test_playback_keeps_phases_and_pauses():
    states = np.linspace(0, 1, 150)[:, None]
    is_idle = np.zeros(150, bool)
    is_idle[:20] = is_idle[120:] = True
    episode = metaworld._play_back(states, is_idle, (50, 80, 120), np.random.default_rng(0))
    assert 60 <= len(episode.states) <= 140
    starts = episode.states[list(episode.events), 0] * 149
    np.testing.assert_allclose(starts, (50, 80, 120), atol=3)
    assert (np.diff(episode.states[:, 0]) >= 0).all()
    assert len(episode.states) - episode.events[-1] == pytest.approx(30, abs=1), (
        "idle steps are played at their own pace"
    )


def test_missing_simulator_or_task(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "mujoco", None)
    with pytest.raises(DatasetError, match=r"mujoco.*pip install"):
        open_dataset("metaworld/hammer", tmp_path)
    with pytest.raises(DatasetError, match="unknown dataset 'metaworld-juggle'"):
        open_dataset("metaworld/juggle", tmp_path)
    assert "metaworld-hammer" in dataset_names()


@needs_simulator
@pytest.mark.slow
def test_the_demo_is_what_the_generator_renders(tmp_path):
    studio = Studio(DEMO["task"], DEMO["size"])
    listed = {video.id: video.events for video in open_dataset("demo", tmp_path).videos}
    clips = {clip.id: clip for clip in list_clips(DEMO["videos_per_view"])}
    for name in ("train_ego_00", "train_exo_19", "test_exo_07"):
        episode = studio.perform(0, clips[name].episode)
        assert episode.events == listed[name]
        path = tmp_path / f"{name}.mp4"
        metaworld.encode_video(
            path, studio.film(episode, 0, clips[name]), DEMO["size"], DEMO["crf"]
        )
        assert path.read_bytes() == (SHIPPED / clips[name].path).read_bytes()


@needs_simulator
@pytest.mark.slow
def test_rendering_is_resumable_and_reproducible(tmp_path):
    options = {"videos_per_view": {"train": 1, "test": 1}, "size": 64}
    write_dataset(tmp_path / "a", "hammer", **options)
    first = {
        path.relative_to(tmp_path / "a"): path.read_bytes()
        for path in (tmp_path / "a").rglob("*.*")
    }
    assert len(first) == 5
    (tmp_path / "a/videos.csv").unlink()
    (tmp_path / "a/test/exo/test_exo_00.mp4").unlink()
    kept = tmp_path / "a/test/ego/test_ego_00.mp4"
    written_at = kept.stat().st_mtime_ns
    write_dataset(tmp_path / "a", "hammer", **options)
    assert {
        path.relative_to(tmp_path / "a"): path.read_bytes()
        for path in (tmp_path / "a").rglob("*.*")
    } == first
    assert kept.stat().st_mtime_ns == written_at
