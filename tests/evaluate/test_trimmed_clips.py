import pytest

from byov.cache.layout import trimmed_clips


def test_clips_are_the_same_everywhere_and_for_ever():
    """Pin the clips, which must not change because results from different versions are compared."""
    assert trimmed_clips("demo", "ego", "pour_ego_000", 100) == [(14, 62), (32, 89)]
    assert trimmed_clips("demo", "exo", "Küche 1", 37) == [(18, 32), (23, 35)]


def test_clips_depend_on_dataset_view_video_length_and_seed():
    clips = [
        trimmed_clips("demo", "ego", "v", 1000),
        trimmed_clips("other", "ego", "v", 1000),
        trimmed_clips("demo", "exo", "v", 1000),
        trimmed_clips("demo", "ego", "w", 1000),
        trimmed_clips("demo", "ego", "v", 1001),
        trimmed_clips("demo", "ego", "v", 1000, seed=1),
    ]
    assert len({str(of_video) for of_video in clips}) == len(clips)


@pytest.mark.parametrize("frames", [10, 100, 12345])
def test_clips_lie_in_the_video_and_have_30_to_60_percent_of_it(frames):
    lengths = []
    for video in range(300):
        clips = trimmed_clips("demo", "ego", str(video), frames)
        assert clips == sorted(clips)
        assert all(0 <= start < stop <= frames for start, stop in clips)
        lengths += [(stop - start) / frames for start, stop in clips]
    half_a_frame = 0.5 / frames
    assert 0.3 - half_a_frame <= min(lengths) < 0.35
    assert 0.55 < max(lengths) <= 0.6 + half_a_frame


def test_long_videos_have_two_clips_and_the_shortest_one_of_one_frame():
    assert all(len(trimmed_clips("demo", "ego", str(video), 5000)) == 2 for video in range(50))
    assert trimmed_clips("demo", "ego", "v", 1) == [(0, 1)]
    for frames in (2, 3, 4):
        for video in range(20):
            clips = trimmed_clips("demo", "ego", str(video), frames)
            assert len(clips) == len(set(clips)) in (1, 2)
