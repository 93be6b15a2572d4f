from dataclasses import replace
from math import exp, log

import pytest
import torch
import torch.nn.functional as F

from byov.errors import TrainError
from byov.train.methods.timeline import place_losses

SIGMA, TEMPERATURE = 0.15, 0.1


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def unit_vectors(*shape, seed=0, dtype=torch.float64):
    return F.normalize(torch.randn(*shape, generator=seeded(seed), dtype=torch.float64), dim=-1).to(dtype)


def random_places(*shape, seed=1):
    return torch.rand(*shape, generator=seeded(seed), dtype=torch.float64)


def no_padding(places):
    return torch.zeros_like(places, dtype=torch.bool)


def log_softmax(logits):
    highest = max(logits)
    total = highest + log(sum(exp(logit - highest) for logit in logits))
    return [logit - total for logit in logits]


def naive(z, places, padding, sigma=SIGMA, temperature=TEMPERATURE, perfect=False):
    """The formula, frame by frame: of one item, clips of frames as lists. perfect: if p were q."""
    frames = [
        [(z[clip][t], places[clip][t].item()) for t in range(len(z[clip])) if not padding[clip][t]]
        for clip in range(len(z))
    ]

    def cross_entropy(frame, candidates):
        vector, place = frame
        target = log_softmax([-((place - other) ** 2) / (2 * sigma**2) for _, other in candidates])
        found = log_softmax([(vector @ other).item() / temperature for other, _ in candidates])
        return -sum(exp(q) * (q if perfect else p) for q, p in zip(target, found, strict=True))

    in_each, among_all = [], []
    for own, clip in enumerate(frames):
        others = [other for number, other in enumerate(frames) if number != own]
        for frame in clip:
            in_each += [cross_entropy(frame, other) for other in others]
            among_all.append(cross_entropy(frame, [candidate for other in others for candidate in other]))
    return sum(in_each) / len(in_each), sum(among_all) / len(among_all)


def batch_losses(z, places, padding, sigma=SIGMA, temperature=TEMPERATURE):
    losses = place_losses(z, places, padding, sigma=sigma, temperature=temperature)
    return [loss.item() for loss in losses]


PADDED = torch.tensor([[0, 0, 0, 0, 1], [0, 1, 1, 1, 1], [0, 0, 0, 0, 0]], dtype=torch.bool)


@pytest.mark.parametrize(("sigma", "temperature"), [(0.15, 0.1), (1.0, 1.0), (0.02, 0.05), (0.003, 0.1), (0.15, 1e-5)])
@pytest.mark.parametrize("padding", [torch.zeros(3, 5, dtype=torch.bool), PADDED], ids=["full", "padded"])
def test_the_losses_are_the_formula(padding, sigma, temperature):
    z, places = unit_vectors(1, 3, 5, 8), random_places(1, 3, 5)
    expected = naive(z[0], places[0], padding, sigma, temperature)
    assert batch_losses(z, places, padding[None], sigma, temperature) == pytest.approx(expected, rel=1e-9)


def test_a_batch_is_the_mean_of_its_items_however_much_of_each_is_padding():
    z, places = unit_vectors(2, 3, 5, 8), random_places(2, 3, 5)
    padding = torch.stack([PADDED, torch.zeros_like(PADDED)])
    items = [naive(z[item], places[item], padding[item]) for item in range(2)]
    expected = [sum(losses) / 2 for losses in zip(*items, strict=True)]
    assert batch_losses(z, places, padding) == pytest.approx(expected, rel=1e-9)


def test_padded_frames_are_neither_rows_nor_targets():
    z, places = unit_vectors(1, 3, 5, 8).requires_grad_(), random_places(1, 3, 5)
    losses = place_losses(z, places, PADDED[None], sigma=SIGMA, temperature=TEMPERATURE)
    (gradient,) = torch.autograd.grad(sum(losses), z)
    assert torch.equal(gradient.abs().sum(-1)[0] > 0, ~PADDED)
    other_z = torch.where(PADDED[None, ..., None], unit_vectors(1, 3, 5, 8, seed=7), z.detach())
    other_places = torch.where(PADDED[None], random_places(1, 3, 5, seed=8), places)
    again = batch_losses(other_z, other_places, PADDED[None])
    assert again == [loss.item() for loss in losses]


@pytest.mark.parametrize(("sigma", "temperature"), [(0.15, 0.1), (1e-3, 0.1), (0.15, 1e-4), (1e3, 1e3)])
@pytest.mark.parametrize("vectors", ["random", "all the same", "opposite"])
def test_losses_and_gradients_are_finite_in_single_precision(sigma, temperature, vectors):
    z = unit_vectors(2, 2, 5, 8, dtype=torch.float32)
    if vectors != "random":
        z = z[:1, :1, :1].expand(2, 2, 5, 8).clone()
    if vectors == "opposite":
        z[:, 1] *= -1
    places = torch.stack([torch.zeros(2, 5), torch.ones(2, 5)], dim=1)
    padding = torch.arange(5).expand(2, 2, 5) >= torch.tensor([[5, 1], [3, 4]])[..., None]
    z.requires_grad_()
    losses = place_losses(z, places, padding, sigma=sigma, temperature=temperature)
    sum(losses).backward()
    assert all(loss.isfinite() for loss in losses)
    assert z.grad.isfinite().all()


def test_frames_that_are_all_the_same_cost_what_chance_costs():
    z, places = unit_vectors(1, 1, 1, 8).expand(1, 3, 4, 8), random_places(1, 3, 4)
    assert batch_losses(z, places, no_padding(places)) == pytest.approx([log(4), log(8)])


def test_frames_that_are_alike_where_their_places_are_cost_less_than_any_others():
    """A circle's arc whose cosines fall like the Gaussian: at the same places p is q."""
    places = torch.linspace(0, 1, 6, dtype=torch.float64).expand(1, 3, 6)
    angle = places * 1.5
    along, against = (torch.stack([angle.cos(), sign * angle.sin()], dim=-1) for sign in (1, -1))
    in_order = batch_losses(along, places, no_padding(places))
    backwards = batch_losses(torch.cat([along[:, :2], against[:, 2:]], dim=1), places, no_padding(places))
    assert in_order[0] < backwards[0]
    assert in_order[1] < backwards[1]


def test_bfloat16_around_it_does_not_make_it_coarse():
    z, places = unit_vectors(2, 3, 5, 8, dtype=torch.float32), random_places(2, 3, 5).float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = batch_losses(z, places, no_padding(places))
    assert mixed == batch_losses(z, places, no_padding(places))


@pytest.fixture
def group(make_clips):
    """Two items of three clips each, from different parts of their videos."""
    return tuple(
        make_clips(2, 6, seed, first=torch.tensor([seed, 3]), video_length=torch.tensor([40, 25])) for seed in range(3)
    )


def test_the_loss_compares_unit_vectors_by_the_shares_of_their_whole_videos(make_method, group):
    method = make_method("timeline", feature_dropout=0.0, sigma=SIGMA)
    losses = method(group, seeded())
    latents = method.backbone(group, seeded())
    for item in range(2):
        assert not torch.equal(group[0].share_of_video[item], group[0].share_of_clip[item])
    found = [
        naive(
            [F.normalize(clip[item], dim=-1).detach() for clip in latents],
            [clip.share_of_video[item] for clip in group],
            [clip.repeated[item] for clip in group],
        )
        for item in range(2)
    ]
    each, everywhere = (sum(values) / 2 for values in zip(*found, strict=True))
    assert losses["each"].item() == pytest.approx(each, rel=1e-5)
    assert losses["all"].item() == pytest.approx(everywhere, rel=1e-5)
    assert losses["loss"].item() == pytest.approx(each + everywhere, rel=1e-5)


def test_the_place_in_the_video_is_never_an_input(make_method, group):
    method, seen = make_method("timeline"), []
    hook = method.backbone.register_forward_hook(lambda _, __, latents: seen.append(torch.stack(latents)))
    elsewhere = tuple(replace(clip, first=clip.first + 5, video_length=clip.video_length + 20) for clip in group)
    first, second = (method(clips, seeded())["loss"].item() for clips in (group, elsewhere))
    hook.remove()
    assert torch.equal(*seen)
    assert first != second


def test_some_values_of_the_features_are_dropped_and_the_others_grow(make_method, make_clips):
    method, seen = make_method("timeline", feature_dropout=0.25), []
    clips = tuple(make_clips(4, 30, features=torch.ones(4, 30, 12)) for _ in range(3))
    method.backbone.register_forward_pre_hook(lambda _, given: seen.extend(clip.features for clip in given[0]))
    method(clips, seeded())
    values = torch.stack(seen)
    assert values.unique().tolist() == pytest.approx([0, 1 / 0.75])
    assert (values == 0).float().mean().item() == pytest.approx(0.25, abs=0.03)
    assert len({tuple(clip.flatten().tolist()) for clip in values.flatten(0, 1)}) == 12
    assert torch.equal(clips[0].features, torch.ones(4, 30, 12))


def test_nothing_is_dropped_from_what_is_embedded(make_method):
    features = torch.randn(9, 12)
    without, with_dropout = (make_method("timeline", feature_dropout=share) for share in (0.0, 0.5))
    assert torch.equal(without.embed(features), with_dropout.embed(features))


def test_embeddings_are_unit_vectors(make_method):
    embedding = make_method("timeline").embed(torch.randn(9, 12) * 50)
    torch.testing.assert_close(embedding.norm(dim=-1), torch.ones(9))


def test_a_group_is_learned_by_heart_almost_to_the_entropy_of_its_targets(make_method, group):
    method = make_method("timeline", latent=32, heads=4, feature_dropout=0.0, sigma=SIGMA)
    places, padding = ([getattr(clip, name) for clip in group] for name in ("share_of_video", "repeated"))
    items = [
        naive([torch.zeros(6, 1)] * 3, [clip[item] for clip in places], [clip[item] for clip in padding], perfect=True)
        for item in range(2)
    ]
    least = sum(sum(losses) for losses in items) / 2
    optimizer = torch.optim.Adam(method.parameters(), lr=3e-3)
    above = []
    for _ in range(200):
        loss = method(group, seeded())["loss"]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        above.append(loss.item() - least)
    assert 0 < above[-1] < 0.1 * above[0]


def test_a_group_has_different_videos_half_of_each_view(make_method, training_data):
    videos = training_data.of("train")
    method = make_method("timeline", width=training_data.width, clips=4)
    sampler = method.sampler(videos)
    assert sampler.items == 2  # 5 videos in groups of 4
    for epoch in range(50):
        draws = sampler.draw(0, epoch, 0)
        assert [draw.video.view for draw in draws] == ["ego", "ego", "exo", "exo"]
        assert len({draw.video.path for draw in draws}) == 4


def test_some_clips_are_whole_videos_and_others_parts_of_it(make_method, training_data):
    videos = [video for video in training_data.of("train") if video.frames > 20]
    method = make_method("timeline", width=training_data.width, clips=2, crop=(0.3, 0.7), whole=0.25)
    sampler = method.sampler(videos)
    draws = [draw for epoch in range(1000) for draw in sampler.draw(0, epoch, 0)]
    shares = torch.tensor([(draw.end - draw.first) / draw.video.frames for draw in draws])
    assert (shares == 1).float().mean().item() == pytest.approx(0.25, abs=0.04)
    assert 0.28 < shares.min() < 0.35
    assert 0.65 < shares[shares < 1].max() < 0.72


@pytest.mark.parametrize("count", [0, 1])
def test_fewer_than_two_videos_are_refused_in_one_line(make_method, training_data, count):
    told = f"^the train split has {count or 'no'} video{'s' * (count != 1)}; videos are compared with each other$"
    with pytest.raises(TrainError, match=told):
        make_method("timeline").sampler(training_data.of("train")[:count])


def test_one_view_is_enough(make_method, training_data, make_batches):
    method = make_method("timeline", width=training_data.width)
    draws = method.sampler(training_data.of("train", "ego")).draw(0, 0, 0)
    assert [draw.video.view for draw in draws] == ["ego"] * 3
    assert len(make_batches(method).batch(0)) == 5  # as many as there are, since there are fewer than 8
