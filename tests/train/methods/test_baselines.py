"""What the methods of the paper's tables make of videos: which clips they draw, and what their switches change."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from byov.errors import SettingsError, TrainError
from byov.train.baseline_settings import BASELINES
from byov.train.method_settings import choose
from byov.train.methods.actor_observer import triplets
from byov.train.methods.carl import two_crops
from byov.train.methods.tcn import consecutive, just_before, same_shares
from byov.train.sampling import at_share


@pytest.fixture
def video(training_data):
    """video(frames): a video of that length."""
    return lambda frames: replace(training_data.of("train")[0], frames=frames)


def draws(cut, videos, count=200):
    random = np.random.default_rng(0)
    return [cut(videos, random) for _ in range(count)]


def check(draw, frames):
    assert draw.rows.shape == (frames,)
    assert 0 <= draw.first < draw.end <= draw.video.frames
    assert draw.rows.min() >= 0
    assert draw.rows.max() < draw.end - draw.first


@pytest.mark.parametrize("length", [1, 3, 8, 9, 40, 700])
@pytest.mark.parametrize(
    ("cut", "videos"),
    [
        (partial(just_before, crop=(0.5, 1.0), window=5), 1),
        (partial(consecutive, crop=(0.5, 1.0)), 1),
        (partial(same_shares, span=580), 2),
        (partial(two_crops, overlap=0.2), 1),
        (partial(triplets, every=4, far=0.3), 2),
    ],
)
@pytest.mark.parametrize("other", [1, 30])
def test_clips_are_of_their_videos_however_short_those_are(video, cut, videos, length, other):
    frames = 8
    for drawn in draws(cut(frames), [video(length), video(other)][:videos], 50):
        assert len({draw.drawn for draw in drawn}) == 1 or cut.func is two_crops
        for draw in drawn:
            check(draw, frames)
            assert 1 <= draw.drawn <= frames


def test_a_positive_of_one_view_is_up_to_five_frames_before(video):
    apart = set()
    for anchors, positives in draws(just_before(8, (1.0, 1.0), 5), [video(60)]):
        assert (anchors.first, anchors.end, anchors.drawn) == (positives.first, positives.end, 8)
        assert (np.diff(anchors.rows) > 0).all()
        apart |= set((anchors.rows - positives.rows)[anchors.rows >= 5].tolist())
        assert (positives.rows[anchors.rows < 1] == 0).all()
    assert apart == {1, 2, 3, 4, 5}


def test_consecutive_frames_are_neighbors_anywhere_in_the_video(video):
    starts = set()
    for (draw,) in draws(consecutive(8, (1.0, 1.0)), [video(12)]):
        assert (np.diff(draw.rows) == 1).all()
        starts.add(int(draw.rows[0]))
    assert starts == {0, 1, 2, 3, 4}


def test_videos_filmed_at_once_give_the_same_frames_within_the_span(video):
    starts = set()
    for ego, exo in draws(same_shares(8, 20), [video(50), video(50)]):
        assert (ego.first, ego.end) == (exo.first, exo.end)
        assert ego.end - ego.first == 20
        assert ego.rows.tolist() == exo.rows.tolist()
        starts.add(ego.first)
    assert {0, 30} <= starts


def test_videos_of_other_lengths_give_the_frames_at_the_same_share(video):
    for ego, exo in draws(same_shares(8, 20), [video(51), video(101)]):
        assert ((exo.first + exo.rows) == 2 * (ego.first + ego.rows)).all()
    frames = np.arange(51)
    assert at_share(frames, video(51), video(51)).tolist() == frames.tolist()
    assert at_share(frames, video(51), video(1)).tolist() == [0] * 51
    assert at_share(np.array([0]), video(1), video(9)).tolist() == [0]


def test_two_crops_overlap_and_are_as_long_as_the_rule_says(video):
    frames, lengths, orders = 10, set(), set()
    for first, second in draws(two_crops(frames, 0.2), [video(100)], 500):
        for crop in (first, second):
            assert 10 <= crop.end - crop.first <= 15
            assert (np.diff(crop.rows) > 0).all()
            lengths.add(crop.end - crop.first)
        assert abs(first.first - second.first) <= 8  # 0.8 of 10
        assert min(first.end, second.end) - max(first.first, second.first) >= 2
        orders.add(np.sign(second.first - first.first))
    assert lengths == set(range(11, 16)) | ({10} & lengths)
    assert orders == {-1, 0, 1}


def test_a_short_video_is_a_crop_as_a_whole(video):
    for first, second in draws(two_crops(80, 0.2), [video(30)], 20):
        assert (first.first, first.end, first.drawn) == (second.first, second.end, second.drawn) == (0, 30, 30)


def test_triplets_are_at_the_same_share_and_far_from_it(video):
    ego_frames, exo_frames = 41, 81
    for exo, positive, negative in draws(triplets(8, 4, 0.3), [video(ego_frames), video(exo_frames)]):
        assert (exo.video.frames, positive.video.frames, negative.video.frames) == (exo_frames, ego_frames, ego_frames)
        assert (exo.rows % 4 == 0).all()
        assert (positive.rows * 2 == exo.rows).all()
        assert (np.abs(negative.rows - positive.rows) > 0.3 * ego_frames).all()


def test_of_two_frames_the_other_is_the_far_one(video):
    for _, positive, negative in draws(triplets(4, 4, 0.9), [video(2), video(30)], 20):
        assert (positive.rows + negative.rows == 1).all()


@pytest.mark.parametrize(
    ("method", "settings", "told"),
    [
        ("tcn", {"tcn": "multi"}, "the same performance, and --tcn multi compares the same instant in both"),
        ("actor-observer", {}, "the same performance, and actor-observer compares such two"),
    ],
)
def test_methods_that_need_pairs_say_so_in_one_line(make_method, training_data, method, settings, told):
    alone = [replace(video, pair=None) for video in training_data.of("train")]
    with pytest.raises(TrainError) as error:
        make_method(method, width=training_data.width, **settings).sampler(alone)
    assert told in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("method", BASELINES)
def test_one_video_of_each_view_is_enough(make_method, training_data, method):
    pair = [video for video in training_data.of("train") if video.pair == "p"]
    assert len(pair) == 2
    model = make_method(method, width=training_data.width)
    assert len(model.sampler(pair).draw(0, 0, 0)) >= 2


def test_views_are_only_paired_if_asked_for(make_method, training_data):
    ego = training_data.of("train", "ego")
    make_method("gta", width=training_data.width).sampler(ego)
    with pytest.raises(TrainError, match=r"^the train split has no exo video, and --pairs is views$"):
        make_method("gta", width=training_data.width, pairs="views").sampler(ego)


@pytest.mark.parametrize(
    ("method", "settings", "message"),
    [
        ("ae2-alignment", {"frames": 16}, "subset 30 of 16 frames"),
        ("tcn", {"tcn": "multi", "crop": (0.5, 1.0)}, "--tcn multi compares whole videos"),
        ("carl", {"crop": (0.5, 1.0)}, "carl has a rule of its own"),
        ("actor-observer", {"crop": (0.5, 1.0)}, "actor-observer compares whole videos"),
        ("tcc", {"tcn": "multi"}, "--tcn is a setting of tcn, and the method is tcc"),
        ("tcc", {"tcc_loss": "regression"}, "tcc_loss is "),
        ("tcc", {"depth": 3}, "depth is of the backbone encoder, and the backbone is frame"),
        ("carl", {"context": 3}, "context is of the backbone frame, and the backbone is transformer"),
        ("tcn", {"tcn_loss": "triplet", "frames": 13}, "give --frames 14 or more"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(method, settings, message):
    with pytest.raises(SettingsError) as error:
        choose("demo", method=method, **settings)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_the_constants_are_those_of_the_sources():
    of = partial(choose, "demo")
    tcc, gta, ae2, tcn = (of(method=name) for name in ("tcc", "gta", "ae2-alignment", "tcn"))
    carl, actor = of(method="carl"), of(method="actor-observer")
    assert (tcc.temperature, tcc.variance_weight, tcc.context, tcc.latent, tcc.frames) == (0.1, 0.001, 15, 256, 32)
    assert (gta.gamma, gta.temperature, gta.smoothing, gta.path_weight) == (0.1, 0.1, 0.1, 0.1)
    assert (ae2.subset, ae2.reversed_weight, ae2.margin, ae2.lr) == (30, 1.0, 0.0, 5e-5)
    assert (tcn.regularization, tcn.window, tcn.span, tcn.margin) == (0.002, 5, 580, 0.2)
    assert (carl.variance, carl.temperature, carl.frames, carl.backbone, carl.clip_grad) == (
        10,
        0.1,
        80,
        "transformer",
        10,
    )
    assert (actor.far, actor.every, actor.decay) == (0.3, 4, 0.95)
    assert {(s.batch_size, s.weight_decay, s.optimizer) for s in (tcc, gta, ae2, tcn, carl, actor)} == {
        (4, 1e-5, "adam")
    }
    assert choose("tennis_forehand", method="ae2-alignment").subset == 10
    assert choose("pour_liquid", method="ae2-alignment").halves
    assert not choose("pour_milk", method="ae2-alignment").contrastive
    assert choose("demo", method="tcn", tcn_loss="triplet").frames == 36


@pytest.mark.parametrize(
    ("settings", "title"),
    [
        ({"method": "tcc"}, "TCC"),
        ({"method": "tcc", "backbone": "encoder"}, "TCC, BYOV's encoder"),
        ({"method": "carl", "backbone": "frame"}, "CARL, frame by frame"),
        ({"method": "tcn", "tcn": "unpaired"}, "TCN, unpaired multi-view"),
        ({"method": "ae2-alignment"}, "AE2 alignment loss, no object encoder"),
        ({"method": "byov", "recipe": "official"}, "BYOV, official"),
        ({"method": "byov", "recipe": "cycle"}, "BYOV, cycle"),
        ({"method": "byov", "standardize": "video"}, "BYOV, paper, standardized"),
        ({"method": "timeline", "standardize": "none"}, "Timeline, not standardized"),
        ({"method": "tcc", "tcc_loss": "mse", "standardize": "video"}, "TCC, mse, standardized"),
        ({"method": "gta", "unnormalized": True}, "GTA, unnormalized"),
        (
            {"method": "gta", "backbone": "encoder", "position": "none"},
            "GTA, BYOV's encoder without positions",
        ),
        ({"method": "ae2-alignment", "contrastive": False}, "AE2 alignment loss, no object encoder, not contrastive"),
        ({"method": "actor-observer", "weighted": False}, "ActorObserverNet, unweighted"),
        ({"method": "tcn", "tcn_loss": "triplet"}, "TCN, single-view, triplets"),
    ],
)
def test_titles_say_what_a_row_is(settings, title):
    assert choose("demo", **settings).title == title


def loss_of(method, batches, seed=0):
    return method(batches.batch(0), torch.Generator().manual_seed(seed))["loss"]


@pytest.mark.parametrize("tcn", ["single", "multi", "unpaired"])
@pytest.mark.parametrize("tcn_loss", ["npairs", "triplet"])
def test_every_kind_of_tcn_learns(make_method, make_batches, training_data, tcn, tcn_loss):
    method = make_method("tcn", width=training_data.width, tcn=tcn, tcn_loss=tcn_loss, frames=20)
    assert len(make_batches(method).batch(0)) == (1 if (tcn, tcn_loss) == ("single", "triplet") else 2)
    loss = loss_of(method, make_batches(method))
    loss.backward()
    assert all(weights.grad.isfinite().all() for weights in method.parameters())
    assert any(weights.grad.abs().sum() > 0 for weights in method.parameters())
    embedding = method.embed(torch.randn(9, training_data.width))
    unit = torch.allclose(embedding.norm(dim=1), torch.ones(9))
    assert unit == (tcn_loss == "triplet")


def test_which_view_is_the_anchors_is_drawn_for_each_pair(make_method, make_batches, training_data, monkeypatch):
    seen = {}
    monkeypatch.setattr("byov.train.methods.tcn.npairs", lambda a, p, *_, **__: seen.update(a=a, p=p) or a.sum())
    method = make_method("tcn", width=training_data.width, tcn="multi")
    clips = make_batches(method).batch(0)
    with torch.no_grad():
        method(clips, torch.Generator().manual_seed(0))
        ego, exo = method.backbone(clips, torch.Generator().manual_seed(0))
    is_ego = (seen["a"] == ego).all(dim=-1)
    assert is_ego.any()
    assert not is_ego.all()
    assert torch.equal(seen["a"], torch.where(is_ego[..., None], ego, exo))
    assert torch.equal(seen["p"], torch.where(is_ego[..., None], exo, ego))


@pytest.mark.parametrize(
    ("method", "unit"),
    [
        ("tcc", False),
        ("gta", True),
        ("ae2-alignment", False),
        ("carl", True),
        ("actor-observer", False),
        ("tcn", False),
    ],
)
def test_methods_are_judged_by_the_vectors_that_they_compare(make_method, method, unit):
    model = make_method(method)
    embedding, plain = model.embed(torch.randn(9, 12)), model.backbone.embed
    assert torch.allclose(embedding.norm(dim=1), torch.ones(9)) == unit
    features = torch.randn(9, 12)
    torch.testing.assert_close(model.embed(features), F.normalize(plain(features), dim=-1) if unit else plain(features))


def test_gta_as_in_ae2s_code_has_no_unit_vectors_and_a_hundredth_of_the_loss(make_method, make_batches, training_data):
    ours, theirs = (make_method("gta", width=training_data.width, unnormalized=u) for u in (False, True))
    assert (ours.unit, theirs.unit) == (True, False)
    clips, random = make_batches(ours).batch(0), torch.Generator()
    of_ours, of_theirs = (method(clips, random.manual_seed(0))["cycle"].item() for method in (ours, theirs))
    assert 1 < of_ours < 3  # around the logarithm of 6 frames
    assert 0.01 < of_theirs < 0.03


def test_positions_of_ae2_are_frames_in_order_and_halves_are_of_them(make_method, make_batches, training_data):
    method = make_method("ae2-alignment", width=training_data.width, frames=12, subset=8, halves=False)
    halved = make_method("ae2-alignment", width=training_data.width, frames=12, subset=8, halves=True)
    for step in range(2):
        clips = make_batches(method).batch(step)
        chosen = method.positions(clips, torch.Generator().manual_seed(step))
        for clip, positions in zip(clips, chosen, strict=True):
            assert positions.shape == (len(clip.features), 8)
            assert (positions.diff(dim=1) > 0).all()
            real = (~clip.repeated).sum(dim=1)
            inside = (~clip.repeated.gather(1, positions)).sum(dim=1)
            assert torch.equal(inside, real.clamp(max=8))  # padding only where there is nothing else
        some = halved.positions(clips, torch.Generator().manual_seed(step))
        for first, second, of_first, of_second in zip(*chosen, *some, strict=True):
            later = torch.equal(of_first, first[4:])
            assert torch.equal(of_first, first[4:] if later else first[:4])
            assert torch.equal(of_second, second[4:] if later else second[:4])


def test_the_plain_loss_of_ae2_has_no_reversed_part(make_method, make_batches, training_data):
    method = make_method("ae2-alignment", width=training_data.width, contrastive=False, subset=99)
    losses = method(make_batches(method).batch(0), torch.Generator().manual_seed(0))
    assert losses["reversed"] == 0
    assert losses["loss"] == losses["alignment"]


def test_actor_observer_remembers_and_forgets_with_its_checkpoint(make_method, make_batches, training_data):
    method = make_method("actor-observer", width=training_data.width)
    batches = make_batches(method)
    assert {name: tuple(tensor.shape) for name, tensor in method.memory().items()} == {
        "scores": (3, 5),
        "losses": (1,),
        "weights": (1,),
    }
    first = loss_of(method, batches)
    kept = {name: tensor.clone() for name, tensor in method.memory().items()}
    second = loss_of(method, batches)
    assert first != second  # it has seen these triplets before
    for name, tensor in method.memory().items():
        tensor.copy_(kept[name])
    assert loss_of(method, batches) == second
    assert not any("means" in name for name in method.state_dict())


def test_without_weights_there_is_nothing_to_remember_and_steps_can_be_split(make_method):
    method = make_method("actor-observer", weighted=False)
    assert method.memory() == {}
    assert method.needs_whole_steps is None
    assert method.heads is None
    assert "triplets" in make_method("actor-observer").needs_whole_steps


@pytest.mark.parametrize("method", BASELINES)
@pytest.mark.parametrize("backbone", ["frame", "transformer", "encoder"])
def test_every_baseline_has_every_backbone(make_method, make_batches, training_data, method, backbone):
    model = make_method(method, width=training_data.width, backbone=backbone)
    loss = loss_of(model, make_batches(model))
    loss.backward()
    assert loss.isfinite()
    assert all(weights.grad is None or weights.grad.isfinite().all() for weights in model.parameters())
    assert (model.needs_whole_steps is not None) == (backbone == "transformer" or method in ("carl", "actor-observer"))


def test_feature_dropout_makes_the_two_crops_of_carl_differ(make_method, make_batches, training_data):
    plain, dropped = (make_method("carl", width=training_data.width, feature_dropout=p) for p in (0.0, 0.5))
    assert loss_of(plain, make_batches(plain)) != loss_of(dropped, make_batches(dropped))
