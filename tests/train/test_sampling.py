import gc
import threading
from itertools import islice

import numpy as np
import pytest
import torch

from byov.cache.standardize import standardized
from byov.errors import CacheError
from byov.train.feature_store import FeatureStore, open_training_data
from byov.train.sampling import BatchSource, PairSampler, draw_rows

FRAMES = 8


@pytest.fixture
def source(features_dir):
    return open_training_data(features_dir, None, None, 0.3)


@pytest.fixture
def make_batches(source, make_model):
    """make_batches(**settings): the batches of the training videos, preloaded or not."""

    def make(*, batch_size=2, preload=True, standardize="none", pairs="views", crop=(1.0, 1.0), seed=0, frames=FRAMES):
        videos = source.of("train")
        store = FeatureStore(source, videos, 2**30 if preload else 0)
        assert store.preloaded == preload
        sampler = PairSampler(videos, frames=frames, pairs=pairs, crop=crop, seed=seed)
        prepare = make_model(width=source.width, standardize=standardize).prepare
        return BatchSource(sampler, store, batch_size=batch_size, prepare=prepare)

    return make


def equal(first, second):
    return all(
        torch.equal(a.frames, b.frames) and torch.equal(a.index, b.index) for a, b in zip(first, second, strict=True)
    )


def reading_threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("batches")]


def many_draws(source, epochs=40, **settings):
    videos = source.of("train")
    options = {"frames": FRAMES, "pairs": "views", "crop": (1.0, 1.0), "seed": 0} | settings
    sampler = PairSampler(videos, **options)
    return [sampler.draw(epoch, item) for epoch in range(epochs) for item in range(sampler.items)]


@pytest.mark.parametrize("length", [8, 9, 30])
def test_rows_are_sorted_without_repeats_and_cover_the_clip(length):
    random = np.random.default_rng(0)
    drawn = [draw_rows(length, 8, random) for _ in range(300)]
    for rows in drawn:
        assert rows.shape == (8,)
        assert (np.diff(rows) > 0).all()
    frequency = np.bincount(np.concatenate(drawn), minlength=length) / len(drawn)
    assert len(frequency) == length
    np.testing.assert_allclose(frequency, 8 / length, atol=0.12)


@pytest.mark.parametrize(("length", "rows"), [(1, [0, 0, 0, 0, 0]), (3, [0, 1, 2, 2, 2]), (5, [0, 1, 2, 3, 4])])
def test_short_clips_give_all_their_frames_and_repeat_the_last(length, rows):
    assert draw_rows(length, 5, np.random.default_rng(0)).tolist() == rows


def test_pairs_of_views_are_ego_with_exo_and_every_video_has_its_turn(source):
    draws = many_draws(source)
    assert {(first.video.view, second.video.view) for first, second in draws} == {("ego", "exo")}
    assert {(draw.video.view, draw.video.id) for pair in draws for draw in pair} == {
        (video.view, video.id) for video in source.of("train")
    }


def test_any_pairs_are_two_different_videos_of_whatever_view(source):
    draws = many_draws(source, pairs="any")
    assert {(first.video.view, second.video.view) for first, second in draws} == {
        ("ego", "ego"),
        ("ego", "exo"),
        ("exo", "ego"),
        ("exo", "exo"),
    }
    assert all(first.video is not second.video for first, second in draws)


def test_a_single_video_is_paired_with_itself(source):
    sampler = PairSampler(source.of("train")[:1], frames=FRAMES, pairs="any", crop=(1.0, 1.0), seed=0)
    first, second = sampler.draw(0, 0)
    assert first.video == second.video
    assert not np.array_equal(first.rows, second.rows)


def test_without_a_crop_the_interval_is_the_video(source):
    for pair in many_draws(source, epochs=3):
        for draw in pair:
            assert (draw.first, draw.end) == (0, draw.video.frames)


def test_crops_are_of_the_lengths_that_were_asked_for_and_lie_anywhere(source):
    shares, starts, ends = [], set(), set()
    for pair in many_draws(source, crop=(0.5, 0.9)):
        for draw in pair:
            frames = draw.video.frames
            length = draw.end - draw.first
            assert 0 <= draw.first < draw.end <= frames
            assert round(0.5 * frames) <= length <= round(0.9 * frames)
            assert draw.rows.min() >= 0
            assert draw.rows.max() < length
            if frames == 40:
                shares.append(length / frames)
                starts.add(draw.first)
                ends.add(draw.end)
    assert min(shares) < 0.55
    assert max(shares) > 0.85
    assert 0 in starts
    assert 40 in ends
    assert len(starts) > 8


def test_tiny_crops_keep_a_frame(source):
    for pair in many_draws(source, epochs=5, crop=(0.01, 0.01)):
        assert all(draw.end - draw.first == max(1, round(draw.video.frames * 0.01)) for draw in pair)


def test_the_same_seed_epoch_and_item_give_the_same_draw_and_others_do_not(source):
    first, again, other = (many_draws(source, epochs=2, seed=seed) for seed in (0, 0, 1))

    def flat(draws):
        return [(draw.video.id, draw.first, draw.end, draw.rows.tolist()) for pair in draws for draw in pair]

    assert flat(first) == flat(again)
    assert flat(first) != flat(other)
    videos = source.of("train")
    assert flat(first[: len(videos)]) != flat(first[len(videos) :])


def test_a_draw_does_not_depend_on_those_before_it(source):
    sampler = PairSampler(source.of("train"), frames=FRAMES, pairs="views", crop=(0.5, 1.0), seed=3)
    late = sampler.draw(7, 2)
    for item in range(4):
        sampler.draw(6, item)
    again = sampler.draw(7, 2)
    for a, b in zip(late, again, strict=True):
        assert (a.video, a.first, a.end) == (b.video, b.first, b.end)
        assert np.array_equal(a.rows, b.rows)


def test_an_epoch_has_as_many_pairs_as_there_are_videos(make_batches):
    for batch_size, sizes in ((1, [1] * 5), (2, [2, 2, 1]), (5, [5]), (8, [5])):
        batches = make_batches(batch_size=batch_size)
        assert batches.steps_per_epoch == len(sizes)
        for clips in zip(*(batches.batch(step) for step in range(batches.steps_per_epoch)), strict=True):
            assert [len(part.frames) for part in clips] == sizes


def test_the_batch_size_does_not_change_the_pairs_of_an_epoch(make_batches):
    singles, pairs = make_batches(batch_size=1), make_batches(batch_size=2)
    for view in range(2):
        by_one = torch.cat([singles.batch(step)[view].frames for step in range(5)])
        by_two = torch.cat([pairs.batch(step)[view].frames for step in range(3)])
        assert torch.equal(by_one, by_two)


def test_a_batch_holds_the_frames_of_its_draws(source, make_batches):
    batches = make_batches(crop=(0.5, 1.0), seed=4)
    sampler = PairSampler(source.of("train"), frames=FRAMES, pairs="views", crop=(0.5, 1.0), seed=4)
    store = FeatureStore(source, (), 0)
    for step in range(3):
        for view, clips in enumerate(batches.batch(step)):
            assert clips.frames.dtype == torch.float32
            for place in range(len(clips.frames)):
                draw = sampler.draw(0, 2 * step + place)[view]
                expected = store.read(draw.video)[draw.first + draw.rows].astype(np.float32)
                assert np.array_equal(clips.frames[place].numpy(), expected)
                assert clips.index[place].tolist() == draw.rows.tolist()


def test_features_are_standardised_over_the_interval_that_stands_for_the_video(source, make_batches):
    batches = make_batches(crop=(0.5, 1.0), seed=4, standardize="video", batch_size=1)
    sampler = PairSampler(source.of("train"), frames=FRAMES, pairs="views", crop=(0.5, 1.0), seed=4)
    store = FeatureStore(source, (), 0)
    for step in range(5):
        for clips, draw in zip(batches.batch(step), sampler.draw(0, step), strict=True):
            interval = torch.from_numpy(store.read(draw.video)[draw.first : draw.end]).float()
            assert torch.equal(clips.frames[0], standardized(interval)[draw.rows])


@pytest.mark.parametrize("standardize", ["none", "video"])
@pytest.mark.parametrize("pairs", ["views", "any"])
def test_preloaded_and_lazy_features_give_the_same_batches(make_batches, standardize, pairs):
    preloaded, lazy = (
        make_batches(preload=preload, standardize=standardize, pairs=pairs, crop=(0.4, 1.0))
        for preload in (True, False)
    )
    for step in range(7):
        assert equal(preloaded.batch(step), lazy.batch(step))


@pytest.mark.parametrize(("first", "end"), [(0, 9), (4, 9), (3, 4), (5, 5), (0, 2)])
def test_reading_ahead_gives_the_same_batches_in_order(make_batches, first, end):
    batches = make_batches(preload=False)
    ahead = list(batches.ahead(first, end))
    assert len(ahead) == end - first
    for step, batch in zip(range(first, end), ahead, strict=True):
        assert equal(batch, batches.batch(step))
    assert reading_threads() == []


def test_reading_ahead_stays_a_few_steps_ahead(make_batches):
    batches = make_batches()
    read = []
    whole = batches.batch
    batches.batch = lambda step: (read.append(step), whole(step))[1]
    reading = batches.ahead(0, 1000)
    list(islice(reading, 3))
    reading.close()
    assert read[:3] == [0, 1, 2]
    assert len(read) <= 3 + 4 + 1


def test_an_abandoned_reader_ends_its_thread(make_batches):
    reading = make_batches().ahead(0, 1000)
    next(reading)
    assert len(reading_threads()) == 1
    reading.close()
    assert reading_threads() == []
    reading = make_batches().ahead(0, 1000)
    next(reading)
    del reading
    gc.collect()
    assert reading_threads() == []


def test_an_error_of_the_reader_arrives_where_its_batch_was_due(source, make_batches):
    batches = make_batches(preload=False, batch_size=1)
    sampler = PairSampler(source.of("train"), frames=FRAMES, pairs="views", crop=(1.0, 1.0), seed=0)
    lost = sampler.draw(0, 3)[0].video
    good = next(step for step in range(5) if lost in [draw.video for draw in sampler.draw(0, step)])
    lost.path.write_bytes(b"damaged")
    reading = batches.ahead(0, 5)
    for _ in range(good):
        next(reading)
    with pytest.raises(CacheError, match=rf"{lost.id}\.h5: not a readable cache file"):
        next(reading)
    assert reading_threads() == []


def test_what_is_embedded_is_what_was_trained_on(source, make_model):
    """One place prepares the features: a clip that is the whole video reaches the encoder in both the same."""
    video = max(source.of("train"), key=lambda video: video.frames)
    model = make_model(width=source.width, standardize="video")
    store = FeatureStore(source, (), 0)
    sampler = PairSampler([video], frames=video.frames, pairs="any", crop=(1.0, 1.0), seed=0)
    clips, _ = BatchSource(sampler, store, batch_size=1, prepare=model.prepare).batch(0)
    assert clips.index[0].tolist() == list(range(video.frames))
    trained_on = model.encoder.embed(clips.frames[0])
    assert torch.equal(model.embed(torch.from_numpy(store.read(video))), trained_on)


def test_repeats_of_the_last_frame_are_marked_as_padding(source, make_batches):
    short = min(video.frames for video in source.of("train"))
    longer = max(video.frames for video in source.of("train")) + 5
    assert all(clips.padding is None for clips in make_batches(frames=short).batch(0))
    for clips in make_batches(frames=longer).batch(0):
        for index, padding in zip(clips.index, clips.padding, strict=True):
            frames = len(index.unique())
            assert padding.tolist() == [False] * frames + [True] * (longer - frames)
            assert clips.to(torch.device("cpu")).padding is not None
