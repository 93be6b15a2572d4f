import resource

import numpy as np
import pytest

from byov.apply.video_writer import write_video
from byov.data.video import FrameReader

pytestmark = pytest.mark.usefixtures("nothing_left")


def noise(count, seed=0):
    random = np.random.default_rng(seed)
    return (random.integers(0, 256, (64, 96, 3), np.uint8) for _ in range(count))


def times(path):
    return np.concatenate([block.pts_seconds for block in FrameReader(path).blocks()])


@pytest.mark.parametrize("ending", [".mp4", ".mkv"])
def test_frames_of_one_time_or_out_of_order_still_make_a_video(tmp_path, ending):
    path = tmp_path / f"a{ending}"
    write_video(path, noise(6), np.array([0.0, 0.1, 0.1, 0.05, 0.2, 0.3]))
    np.testing.assert_allclose(times(path), [0.0, 0.1, 0.1, 0.1, 0.2, 0.3], atol=2e-3)


@pytest.mark.parametrize("seconds", [[0, 20_000], [*np.arange(10) / 30, *(1e5 + np.arange(5) / 30)]], ids=len)
def test_a_gap_of_hours_is_kept(tmp_path, seconds):
    write_video(tmp_path / "a.mkv", noise(len(seconds)), np.array(seconds, np.float64))
    np.testing.assert_allclose(times(tmp_path / "a.mkv"), seconds, atol=2e-3)


def test_the_first_frame_is_at_zero(tmp_path):
    write_video(tmp_path / "a.mp4", noise(3), np.array([5.0, 5.5, 6.5]))
    np.testing.assert_allclose(times(tmp_path / "a.mp4"), [0, 0.5, 1.5], atol=1e-4)


@pytest.mark.parametrize("ending", [".mp4", ".mov", ".mkv"])
@pytest.mark.parametrize("share", [0.3, 0.999])
def test_a_disk_without_room_is_an_error_and_leaves_nothing(tmp_path, ending, share):
    path = tmp_path / f"a{ending}"
    write_video(path, noise(20), np.arange(20) / 10)
    size = path.stat().st_size
    path.unlink()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(size * share), before[1]))
    try:
        with pytest.raises(OSError, match="too large") as error:
            write_video(path, noise(20), np.arange(20) / 10)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert error.value.filename == str(path)
    assert not list(tmp_path.iterdir())


def test_an_error_in_the_pictures_leaves_nothing(tmp_path):
    def pictures():
        yield from noise(3)
        raise RuntimeError("no more")

    with pytest.raises(RuntimeError, match="no more"):
        write_video(tmp_path / "a.mp4", pictures(), np.arange(9) / 10)
    assert not list(tmp_path.iterdir())
