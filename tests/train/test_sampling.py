import gc
import threading
from collections import Counter
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch

from byov.cache.features import standardize
from byov.errors import TrainError
from byov.train import sampling
from byov.train.feature_store import CachedVideo, FeatureStore
from byov.train.methods.actor_observer import draw_triplets
from byov.train.methods.carl import draw_two_crops
from byov.train.methods.tcn import draw_earlier, draw_same_times
from byov.train.sampling import (
    BatchSource,
    Sampler,
    draw_clip,
    draw_rows,
    pick_any_two,
    pick_several,
    pick_views,
)

FRAMES = 8
CROP = (0.5, 0.9)
WHOLE = (1.0, 1.0)


def rng(seed=0):
    return np.random.default_rng(seed)


def make_sampler(videos, *, crop=WHOLE, frames=FRAMES, context=0):
    pick = pick_views(videos, "reason")
    return Sampler(
        videos, lambda g: [draw_clip(video, frames, crop, g) for video in pick(g)], context
    )


@pytest.fixture
def make_source(training_data, make_method):
    """Return a function that builds the batches of a method with the given settings."""

    def make(*, batch_size=2, preload=True, standardize="none", seed=0, **how):
        videos = training_data.split("train")
        store = FeatureStore(training_data, videos, 2**30 if preload else 0)
        method = make_method(width=training_data.width, standardize=standardize)
        sampler = make_sampler(videos, **how)
        return BatchSource(sampler, store, method.prepare, batch_size=batch_size, seed=seed)

    return make


def video(frames, view="ego", name="a"):
    return CachedVideo(
        id=name,
        view=view,
        split="train",
        frames=frames,
        fps=None,
        labels=None,
        actions=None,
        path=Path(view) / name,
        sha256="",
    )


def videos(ego, exo):
    """Make the given numbers of ego and exo videos."""
    return [
        video(9, view, f"{view}{n}")
        for view, count in (("ego", ego), ("exo", exo))
        for n in range(count)
    ]


def assert_equal(first, second):
    torch.testing.assert_close(
        [vars(clip) for clip in first], [vars(clip) for clip in second], rtol=0, atol=0
    )


def reading_threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("batches")]


# Draws


@pytest.mark.parametrize("length", [8, 9, 30])
def test_rows_are_sorted_distinct_and_uniform(length):
    assert draw_rows(3, 5, rng()).tolist() == [0, 1, 2, 2, 2]  # a short clip repeats its last frame
    generator = rng()
    drawn = [draw_rows(length, 8, generator) for _ in range(300)]
    assert all((np.diff(rows) > 0).all() and rows.shape == (8,) for rows in drawn)
    frequency = np.bincount(np.concatenate(drawn), minlength=length) / len(drawn)
    np.testing.assert_allclose(frequency, 8 / length, atol=0.12)


def test_parts_have_lengths_within_the_crop_and_lie_anywhere():
    generator = rng()
    starts = set()
    lengths = set()
    for _ in range(1000):
        draw = draw_clip(video(40), FRAMES, CROP, generator)
        starts.add(draw.first)
        lengths.add(draw.end - draw.first)
        assert 0 <= draw.first < draw.end <= 40
        assert draw.rows.max() < draw.end - draw.first
    assert set(range(21, 36)) <= lengths <= set(range(20, 37))
    assert {0, 20} <= starts
    whole = draw_clip(video(40), FRAMES, WHOLE, generator)
    assert (whole.first, whole.end, whole.sampled) == (0, 40, FRAMES)
    assert draw_clip(video(40), FRAMES, (0.01, 0.01), generator).sampled == 1


def test_earlier_frames_are_within_the_window():
    generator = rng()
    apart = set()
    for _ in range(200):
        anchors, positives = draw_earlier(video(60), 8, WHOLE, generator)
        apart |= set((anchors.rows - positives.rows)[anchors.rows >= 5].tolist())
        assert (positives.rows >= 0).all()
    assert apart == {1, 2, 3, 4, 5}


def test_synchronized_videos_give_the_same_frames_within_the_span():
    generator = rng()
    starts = set()
    for _ in range(200):
        ego, exo = draw_same_times(video(50), video(50), 8, 20, generator)
        assert (ego.first, ego.end) == (exo.first, exo.end)
        assert ego.end - ego.first == 20
        assert ego.rows.tolist() == exo.rows.tolist()
        starts.add(ego.first)
    assert {0, 30} <= starts
    ego, exo = draw_same_times(video(51), video(101), 8, 20, generator)
    assert ((exo.first + exo.rows) == 2 * (ego.first + ego.rows)).all()


def test_two_crops_overlap():
    generator = rng()
    orders = set()
    for _ in range(500):
        first, second = draw_two_crops(video(100), 10, generator)
        assert all(10 <= crop.end - crop.first <= 15 for crop in (first, second))
        assert abs(first.first - second.first) <= 8
        orders.add(np.sign(second.first - first.first))
    assert orders == {-1, 0, 1}
    first, second = draw_two_crops(video(30), 80, generator)
    assert (
        (first.first, first.end, first.sampled)
        == (second.first, second.end, second.sampled)
        == (0, 30, 30)
    )


def test_triplets_have_their_positive_at_the_same_time_and_their_negative_far_away():
    generator = rng()
    for _ in range(100):
        exo, positive, negative = draw_triplets(video(41), video(81), 8, 0.3, generator)
        assert (exo.rows % 4 == 0).all()
        assert (positive.rows * 2 == exo.rows).all()
        assert (np.abs(negative.rows - positive.rows) > 0.3 * 41).all()
    _, positive, negative = draw_triplets(video(2), video(30), 4, 0.9, generator)
    # No frame is far enough, so the farthest is used.
    assert (positive.rows + negative.rows == 1).all()


# Picks


def test_picks_cover_all_videos():
    there = videos(3, 2)
    generator = rng()
    views = {tuple(video.id for video in pick_views(there, "")(generator)) for _ in range(200)}
    assert views == {(f"ego{i}", f"exo{j}") for i in range(3) for j in range(2)}
    pairs = {tuple(video.id for video in pick_any_two(there)(generator)) for _ in range(500)}
    assert len(pairs) == 20
    assert all(first != second for first, second in pairs)
    assert {sampling.pick_one(there)(generator).id for _ in range(100)} == {
        video.id for video in there
    }
    alone = pick_any_two(there[:1])(generator)
    assert alone[0] == alone[1]


@pytest.mark.parametrize(
    ("there", "count", "expected"),
    [
        ((9, 9), 8, (4, 4)),
        ((9, 9), 5, (2, 3)),
        ((2, 9), 8, (2, 6)),
        ((9, 1), 8, (7, 1)),
        ((9, 0), 8, (8, 0)),
        ((0, 9), 4, (0, 4)),
        ((3, 2), 8, (3, 2)),
    ],
)
def test_several_are_different_videos_half_of_each_view_if_possible(there, count, expected):
    pick = pick_several(videos(*there), count)
    generator = rng()
    seen = set()
    for _ in range(100):
        picked = pick(generator)
        views = Counter(video.view for video in picked)
        assert len({video.path for video in picked}) == len(picked)
        assert (views["ego"], views["exo"]) == expected
        seen |= {video.path for video in picked}
    assert len(seen) == sum(there)


def test_views_are_of_the_same_action():
    def labeled(view, name, actions, pair=None):
        return replace(video(9, view, name), actions=actions, pair=pair)

    there = [
        labeled("ego", "a", (1, 2)),
        labeled("ego", "b", (5,), pair="p"),
        labeled("ego", "alone", (6,)),
        labeled("exo", "c", (2, 3)),
        labeled("exo", "d", (1,)),
        labeled("exo", "e", (4,), pair="p"),
    ]
    pick = pick_views(there, "so")
    generator = rng()
    picked = {(ego.id, exo.id) for ego, exo in (pick(generator) for _ in range(100))}
    assert picked == {("a", "c"), ("a", "d"), ("b", "e")}
    with pytest.raises(
        TrainError, match="no ego and exo videos of the train split share an action, but so"
    ):
        pick_views([there[2], *there[3:]], "so")


@pytest.mark.parametrize(("length", "skipped"), [(9, 0), (10, 1), (40, 1)])
def test_the_first_frame_is_skipped_only_in_long_videos(length, skipped):
    draws = [
        draw_clip(video(length), FRAMES, WHOLE, rng(seed), skip_first=True) for seed in range(300)
    ]
    rows = np.concatenate([draw.rows for draw in draws])
    assert (rows.min(), rows.max()) == (skipped, length - 1)


def test_synchronized_videos_share_a_pair_name():
    names = {"ego0": "p", "exo2": "p", "ego1": "q", "exo1": "q", "ego2": "alone"}
    pick = sampling.pick_synchronized(
        [replace(video, pair=names.get(video.id)) for video in videos(4, 4)], "reason"
    )
    generator = rng()
    assert {tuple(video.id for video in pick(generator)) for _ in range(50)} == {
        ("ego0", "exo2"),
        ("ego1", "exo1"),
    }


@pytest.mark.parametrize(
    ("pick", "there", "message"),
    [
        (pick_any_two, (0, 0), "at least 1 required"),
        (lambda videos: pick_several(videos, 8), (1, 0), "at least 2 required"),
        (lambda videos: pick_views(videos, "so"), (2, 0), "no exo video, but so"),
        (
            lambda videos: sampling.pick_synchronized(videos, "so"),
            (2, 2),
            r"the same performance \(the column pair of a CSV\), but so",
        ),
    ],
)
def test_missing_videos_are_reported(pick, there, message):
    with pytest.raises(TrainError, match=message):
        pick(videos(*there))


# Batches


@pytest.mark.parametrize(
    ("batch_size", "sizes"), [(1, [1] * 5), (2, [2, 2, 1]), (5, [5]), (8, [5])]
)
def test_an_epoch_has_one_item_per_video(make_source, batch_size, sizes):
    batches = make_source(batch_size=batch_size)
    singles = make_source(batch_size=1)
    assert batches.steps_per_epoch == len(sizes)
    for view in range(2):
        clips = [batches.batch(step)[view] for step in range(len(sizes))]
        assert [len(clip.features) for clip in clips] == [clip.items for clip in clips] == sizes
        expected = torch.cat([singles.batch(step)[view].features for step in range(5)])
        assert torch.equal(torch.cat([clip.features for clip in clips]), expected)


@pytest.mark.parametrize("scaled", [False, True])
def test_a_batch_holds_the_frames_of_its_draws(training_data, make_source, scaled):
    batches = make_source(crop=CROP, seed=4, context=4, standardize="video" if scaled else "none")
    sampler = make_sampler(training_data.split("train"), crop=CROP)
    store = FeatureStore(training_data, (), 0)
    for step in range(3):
        for view, clips in enumerate(batches.batch(step)):
            for item in range(len(clips.features)):
                draw = sampler.draw(4, 0, 2 * step + item)[view]
                part = torch.from_numpy(store.read(draw.video)[draw.first : draw.end]).float()
                part = standardize(part) if scaled else part
                assert torch.equal(clips.features[item], part[draw.rows])
                assert torch.equal(clips.context[item], part[np.maximum(draw.rows - 4, 0)])
                assert clips.frame[item].tolist() == (draw.first + draw.rows).tolist()
                assert clips.length[item] == draw.end - draw.first
                assert clips.video_length[item] == draw.video.frames
                assert training_data.split("train")[clips.video[item]] == draw.video
                padding = [False] * draw.sampled + [True] * (FRAMES - draw.sampled)
                assert clips.padding[item].tolist() == padding


@pytest.mark.parametrize(("first", "end"), [(0, 9), (3, 4), (5, 5)])
def test_reading_ahead_gives_the_same_batches(make_source, first, end):
    batches = make_source(preload=False)
    ahead = list(batches.ahead(first, end))
    assert len(ahead) == end - first
    for step, batch in zip(range(first, end), ahead, strict=True):
        assert_equal(batch, batches.batch(step))
    assert reading_threads() == []


def test_reading_ahead_is_bounded_and_ends_its_thread(make_source):
    batches = make_source()
    read = []
    original = batches.batch
    batches.batch = lambda step: (read.append(step), original(step))[1]
    reading = batches.ahead(0, 1000)
    list(islice(reading, 3))
    assert len(reading_threads()) == 1
    del reading
    gc.collect()
    assert reading_threads() == []
    assert len(read) <= 3 + 4 + 1


# Clips


def test_random_numbers_of_an_item_do_not_depend_on_the_split_of_a_step(make_clips):
    def drawn(clips):
        generator = torch.Generator().manual_seed(3)
        return torch.stack([clips.rand(4, generator=generator) for _ in range(2)])

    parts = [make_clips(2, 3, items=5), make_clips(3, 3, first_item=2, items=5)]
    assert torch.equal(drawn(make_clips(5, 3)), torch.cat([drawn(part) for part in parts], dim=1))


def test_feature_dropout_scales_what_is_kept(make_clips):
    ones = torch.ones(4, 30, 12)
    clips = make_clips(4, 30, features=ones, context=ones)
    dropped = clips.feature_dropout(0.25, torch.Generator().manual_seed(0))
    for values in (dropped.features, dropped.context):
        assert values.unique().tolist() == pytest.approx([0, 1 / 0.75])
        assert (values == 0).float().mean().item() == pytest.approx(0.25, abs=0.03)
    assert not torch.equal(dropped.features, dropped.context)
    assert clips.feature_dropout(0.0, torch.Generator()) is clips
