import gc
import threading
from collections import Counter
from dataclasses import fields, replace
from itertools import islice

import numpy as np
import pytest
import torch
from torch import Tensor

from byov.cache.features import standardize
from byov.errors import CacheError, TrainError
from byov.train.feature_store import FeatureStore
from byov.train.sampling import BatchSource, Sampler, any_two, draw_rows, ego_with_exo, one, paired, part, several

FRAMES = 8


def sampler_of(videos, pick=ego_with_exo, *, crop=(1.0, 1.0), frames=FRAMES, whole=0.0, context=0):
    picked = pick(videos, "why") if pick is ego_with_exo else pick(videos)
    return Sampler(videos, picked, part(frames, crop, whole), items=len(videos), context=context)


@pytest.fixture
def make_source(training_data, make_method):
    """make_source(**settings): the batches of the training videos, preloaded or not."""

    def make(*, batch_size=2, preload=True, standardize="none", seed=0, **how):
        videos = training_data.of("train")
        store = FeatureStore(training_data, videos, 2**30 if preload else 0)
        assert store.preloaded == preload
        prepare = make_method(width=training_data.width, standardize=standardize).prepare
        return BatchSource(sampler_of(videos, **how), store, seed=seed, batch_size=batch_size, prepare=prepare)

    return make


def equal(first, second):
    return len(first) == len(second) and all(
        torch.equal(ours, theirs) if isinstance(ours, Tensor) else ours == theirs
        for clips in zip(first, second, strict=True)
        for ours, theirs in ([getattr(side, field.name) for side in clips] for field in fields(clips[0]))
    )


def reading_threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("batches")]


def many_draws(videos, *, epochs=40, seed=0, **how):
    sampler = sampler_of(videos, **how)
    return [sampler.draw(seed, epoch, item) for epoch in range(epochs) for item in range(sampler.items)]


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


def test_pairs_of_views_are_ego_with_exo_and_every_video_has_its_turn(training_data):
    draws = many_draws(training_data.of("train"))
    assert {(first.video.view, second.video.view) for first, second in draws} == {("ego", "exo")}
    assert {(draw.video.view, draw.video.id) for pair in draws for draw in pair} == {
        (video.view, video.id) for video in training_data.of("train")
    }


def test_any_pairs_are_two_different_videos_of_whatever_view(training_data):
    draws = many_draws(training_data.of("train"), pick=any_two)
    assert {(first.video.view, second.video.view) for first, second in draws} == {
        ("ego", "ego"),
        ("ego", "exo"),
        ("exo", "ego"),
        ("exo", "exo"),
    }
    assert all(first.video is not second.video for first, second in draws)


def test_a_single_video_is_paired_with_itself(training_data):
    first, second = sampler_of(training_data.of("train")[:1], any_two).draw(0, 0, 0)
    assert first.video == second.video
    assert not np.array_equal(first.rows, second.rows)


def test_one_is_a_single_video_and_every_video_has_its_turn(training_data):
    draws = many_draws(training_data.of("train"), pick=one)
    assert {len(drawn) for drawn in draws} == {1}
    assert {drawn[0].video for drawn in draws} == set(training_data.of("train"))


@pytest.fixture
def videos(training_data):
    """videos(ego, exo): so many of each view, with names of their own."""
    first = training_data.of("train")[0]
    return lambda ego, exo: [
        replace(first, id=f"{view}{number}", view=view, path=first.path.with_name(f"{view}{number}.h5"))
        for view, count in (("ego", ego), ("exo", exo))
        for number in range(count)
    ]


@pytest.mark.parametrize(
    ("there", "count", "expected"),
    [
        ((9, 9), 8, (4, 4)),
        ((9, 9), 5, (2, 3)),
        ((9, 9), 2, (1, 1)),
        ((2, 9), 8, (2, 6)),
        ((9, 1), 8, (7, 1)),
        ((9, 0), 8, (8, 0)),
        ((0, 9), 4, (0, 4)),
        ((3, 2), 8, (3, 2)),
        ((1, 1), 8, (1, 1)),
        ((2, 0), 8, (2, 0)),
    ],
)
def test_several_are_different_videos_half_of_each_view_as_far_as_there_are(videos, there, count, expected):
    pick, random, seen = several(videos(*there), count), np.random.default_rng(0), set()
    for _ in range(100):
        picked = pick(random)
        assert len({video.path for video in picked}) == len(picked)
        views = Counter(video.view for video in picked)
        assert (views["ego"], views["exo"]) == expected
        seen |= {video.path for video in picked}
    assert len(seen) == sum(there)


@pytest.mark.parametrize(("ego", "exo", "told"), [(0, 0, "no videos"), (1, 0, "1 video"), (0, 1, "1 video")])
def test_several_of_fewer_than_two_videos_are_refused_in_one_line(videos, ego, exo, told):
    with pytest.raises(TrainError, match=f"^the train split has {told}; videos are compared with each other$"):
        several(videos(ego, exo), 8)


def test_paired_are_an_ego_and_an_exo_video_that_share_a_name(videos):
    there = videos(4, 4)
    names = {"ego0": "p", "exo2": "p", "ego1": "q", "exo1": "q", "ego2": "alone", "exo0": "none"}
    named = [replace(video, pair=names.get(video.id)) for video in there]
    pick, random = paired(named, "why"), np.random.default_rng(0)
    assert {tuple(video.id for video in pick(random)) for _ in range(50)} == {("ego0", "exo2"), ("ego1", "exo1")}
    with pytest.raises(
        TrainError, match=r"^the train split has no ego and exo videos of the same performance, and so$"
    ):
        paired([replace(video, pair=None) for video in there], "so")


def test_what_is_not_there_to_pick_from_is_refused_in_one_line(videos):
    for pick in (any_two, one):
        with pytest.raises(TrainError, match=r"^the train split has no videos; there is nothing to learn from$"):
            pick([])
    for there, view in (((0, 2), "ego"), ((2, 0), "exo"), ((0, 0), "ego")):
        with pytest.raises(TrainError, match=f"^the train split has no {view} video, and so it is$"):
            ego_with_exo(videos(*there), "so it is")


@pytest.mark.parametrize("whole", [0.0, 0.3, 1.0])
def test_a_clip_is_the_whole_video_with_the_given_probability(training_data, whole):
    draws = many_draws(training_data.of("train")[:1], epochs=2000, pick=any_two, crop=(0.3, 0.8), whole=whole)
    share = np.mean([draw.end - draw.first == draw.video.frames for pair in draws for draw in pair])
    assert abs(share - whole) < 0.035  # of 4,000: more than four deviations
    lengths = [draw.end - draw.first for pair in draws for draw in pair if draw.end - draw.first < draw.video.frames]
    assert all(0.3 * 40 <= length <= 0.8 * 40 for length in lengths)


def test_without_a_crop_the_interval_is_the_video(training_data):
    for pair in many_draws(training_data.of("train"), epochs=3):
        for draw in pair:
            assert (draw.first, draw.end) == (0, draw.video.frames)


def test_crops_are_of_the_lengths_that_were_asked_for_and_lie_anywhere(training_data):
    shares, starts, ends = [], set(), set()
    for pair in many_draws(training_data.of("train"), crop=(0.5, 0.9)):
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


def test_tiny_crops_keep_a_frame(training_data):
    for pair in many_draws(training_data.of("train"), epochs=5, crop=(0.01, 0.01)):
        assert all(draw.end - draw.first == max(1, round(draw.video.frames * 0.01)) for draw in pair)


def test_the_same_seed_epoch_and_item_give_the_same_draw_and_others_do_not(training_data):
    first, again, other = (many_draws(training_data.of("train"), epochs=2, seed=seed) for seed in (0, 0, 1))

    def flat(draws):
        return [(draw.video.id, draw.first, draw.end, draw.rows.tolist()) for pair in draws for draw in pair]

    assert flat(first) == flat(again)
    assert flat(first) != flat(other)
    videos = training_data.of("train")
    assert flat(first[: len(videos)]) != flat(first[len(videos) :])


def test_a_draw_does_not_depend_on_those_before_it(training_data):
    sampler = sampler_of(training_data.of("train"), crop=(0.5, 1.0))
    late = sampler.draw(3, 7, 2)
    for item in range(4):
        sampler.draw(3, 6, item)
    again = sampler.draw(3, 7, 2)
    for a, b in zip(late, again, strict=True):
        assert (a.video, a.first, a.end) == (b.video, b.first, b.end)
        assert np.array_equal(a.rows, b.rows)


def test_an_epoch_has_as_many_pairs_as_there_are_videos(make_source):
    for batch_size, sizes in ((1, [1] * 5), (2, [2, 2, 1]), (5, [5]), (8, [5])):
        batches = make_source(batch_size=batch_size)
        assert batches.steps_per_epoch == len(sizes)
        for clips in zip(*(batches.batch(step) for step in range(batches.steps_per_epoch)), strict=True):
            assert [len(part.features) for part in clips] == sizes
            assert [(part.first_item, part.items) for part in clips] == [(0, size) for size in sizes]


def test_the_batch_size_does_not_change_the_pairs_of_an_epoch(make_source):
    singles, pairs = make_source(batch_size=1), make_source(batch_size=2)
    for view in range(2):
        by_one = torch.cat([singles.batch(step)[view].features for step in range(5)])
        by_two = torch.cat([pairs.batch(step)[view].features for step in range(3)])
        assert torch.equal(by_one, by_two)


def test_a_batch_holds_the_frames_of_its_draws(training_data, make_source):
    batches = make_source(crop=(0.5, 1.0), seed=4)
    sampler = sampler_of(training_data.of("train"), crop=(0.5, 1.0))
    store = FeatureStore(training_data, (), 0)
    for step in range(3):
        for view, clips in enumerate(batches.batch(step)):
            assert clips.features.dtype == torch.float32
            for place in range(len(clips.features)):
                draw = sampler.draw(4, 0, 2 * step + place)[view]
                expected = store.read(draw.video)[draw.first + draw.rows].astype(np.float32)
                assert np.array_equal(clips.features[place].numpy(), expected)
                assert clips.index[place].tolist() == draw.rows.tolist()
                assert clips.frame[place].tolist() == (draw.first + draw.rows).tolist()
                assert clips.length[place] == draw.end - draw.first
                assert clips.video_length[place] == draw.video.frames
                assert training_data.of("train")[clips.video[place]] == draw.video
                assert ("ego", "exo")[clips.view[place]] == draw.video.view


def test_context_is_the_frame_so_many_before_or_the_first_of_the_clip(training_data, make_source):
    without, batches = make_source(crop=(0.5, 1.0)), make_source(crop=(0.5, 1.0), context=4)
    for step in range(3):
        for plain, clips in zip(without.batch(step), batches.batch(step), strict=True):
            assert plain.context is None
            assert torch.equal(plain.features, clips.features)
            for place, frames in enumerate(clips.index.tolist()):
                video = training_data.of("train")[clips.video[place]]
                whole = torch.from_numpy(FeatureStore(training_data, (), 0).read(video)).float()
                for row, frame in enumerate(frames):
                    expected = whole[int(clips.first[place]) + max(frame - 4, 0)]
                    assert torch.equal(clips.context[place, row], expected)


def test_features_are_standardized_over_the_interval_that_stands_for_the_video(training_data, make_source):
    batches = make_source(crop=(0.5, 1.0), seed=4, standardize="video", batch_size=1)
    sampler = sampler_of(training_data.of("train"), crop=(0.5, 1.0))
    store = FeatureStore(training_data, (), 0)
    for step in range(5):
        for clips, draw in zip(batches.batch(step), sampler.draw(4, 0, step), strict=True):
            interval = torch.from_numpy(store.read(draw.video)[draw.first : draw.end]).float()
            assert torch.equal(clips.features[0], standardize(interval)[draw.rows])


@pytest.mark.parametrize("standardize", ["none", "video"])
@pytest.mark.parametrize("pick", [ego_with_exo, any_two])
def test_preloaded_and_lazy_features_give_the_same_batches(make_source, standardize, pick):
    preloaded, lazy = (
        make_source(preload=preload, standardize=standardize, pick=pick, crop=(0.4, 1.0)) for preload in (True, False)
    )
    for step in range(7):
        assert equal(preloaded.batch(step), lazy.batch(step))


@pytest.mark.parametrize(("first", "end"), [(0, 9), (4, 9), (3, 4), (5, 5), (0, 2)])
def test_reading_ahead_gives_the_same_batches_in_order(make_source, first, end):
    batches = make_source(preload=False)
    ahead = list(batches.ahead(first, end))
    assert len(ahead) == end - first
    for step, batch in zip(range(first, end), ahead, strict=True):
        assert equal(batch, batches.batch(step))
    assert reading_threads() == []


def test_reading_ahead_stays_a_few_steps_ahead(make_source):
    batches = make_source()
    read = []
    whole = batches.batch
    batches.batch = lambda step: (read.append(step), whole(step))[1]
    reading = batches.ahead(0, 1000)
    list(islice(reading, 3))
    reading.close()
    assert read[:3] == [0, 1, 2]
    assert len(read) <= 3 + 4 + 1


def test_an_abandoned_reader_ends_its_thread(make_source):
    reading = make_source().ahead(0, 1000)
    next(reading)
    assert len(reading_threads()) == 1
    reading.close()
    assert reading_threads() == []
    reading = make_source().ahead(0, 1000)
    next(reading)
    del reading
    gc.collect()
    assert reading_threads() == []


def test_an_error_of_the_reader_arrives_where_its_batch_was_due(training_data, make_source):
    batches = make_source(preload=False, batch_size=1)
    sampler = sampler_of(training_data.of("train"))
    lost = sampler.draw(0, 0, 3)[0].video
    good = next(step for step in range(5) if lost in [draw.video for draw in sampler.draw(0, 0, step)])
    lost.path.write_bytes(b"damaged")
    reading = batches.ahead(0, 5)
    for _ in range(good):
        next(reading)
    with pytest.raises(CacheError, match=rf"{lost.id}\.h5: not a readable cache file"):
        next(reading)
    assert reading_threads() == []


def test_what_is_embedded_is_what_was_trained_on(training_data, make_method):
    """One place prepares the features: a clip that is the whole video reaches the encoder in both the same."""
    video = max(training_data.of("train"), key=lambda video: video.frames)
    model = make_method(width=training_data.width, standardize="video")
    store = FeatureStore(training_data, (), 0)
    sampler = sampler_of([video], any_two, frames=video.frames)
    clips, _ = BatchSource(sampler, store, seed=0, batch_size=1, prepare=model.prepare).batch(0)
    assert clips.index[0].tolist() == list(range(video.frames))
    trained_on = model.encoder.embed(clips.features[0])
    assert torch.equal(model.embed(torch.from_numpy(store.read(video))), trained_on)


def test_repeats_of_the_last_frame_are_marked_as_padding(training_data, make_source):
    short = min(video.frames for video in training_data.of("train"))
    longer = max(video.frames for video in training_data.of("train")) + 5
    assert all(clips.padding is None for clips in make_source(frames=short).batch(0))
    for clips in make_source(frames=longer).batch(0):
        for index, padding in zip(clips.index, clips.padding, strict=True):
            frames = len(index.unique())
            assert padding.tolist() == [False] * frames + [True] * (longer - frames)
            assert clips.to(torch.device("cpu")).padding is not None
