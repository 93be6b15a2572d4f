"""Tests of loss properties; test_golden_losses.py compares the losses with the published code."""

from math import log

import pytest
import torch
import torch.nn.functional as F
from tests.train.conftest import seeded

from byov.train.methods.ae2_alignment import ae2_losses
from byov.train.methods.carl import sequence_contrastive_loss
from byov.train.methods.gta import gta_losses
from byov.train.methods.tcc import MIN_VARIANCE, tcc_loss
from byov.train.methods.tcn import npairs, positive_and_negative, semi_hard_triplets
from byov.train.methods.timeline import timeline_losses

LENGTHS = torch.tensor([7, 4, 1])
PADDED = torch.arange(7) >= LENGTHS[:, None]  # (3, 7)
OTHER_PADDED = torch.arange(7) >= torch.tensor([5, 7, 2])[:, None]


def unit_vectors(*shape, seed=0, dtype=torch.float64):
    return F.normalize(torch.randn(*shape, generator=seeded(seed), dtype=torch.float64), dim=-1).to(
        dtype
    )


def no_padding(clips):
    return torch.zeros(clips.shape[:2], dtype=torch.bool)


# Losses between two batches of padded clips (B, T, D), wrapped in one signature to test their
# shared properties.
TIMES = torch.linspace(0, 1, 7).expand(3, 7)
FRAMES = torch.arange(7).expand(3, 7)


def contrast(a, b, p, q):
    frames = FRAMES[: len(a), : a.shape[1]].expand(2, -1, -1)
    return sequence_contrastive_loss(torch.stack([a, b]), frames, torch.stack([p, q]))


def timeline(a, b, p, q):
    times = TIMES[: len(a), None, : a.shape[1]].repeat(1, 4, 1)
    clips = torch.stack([a, b, a, b], 1)
    padding = torch.stack([p, q, p, q], 1)
    return sum(timeline_losses(clips, times, padding, sigma=0.1, temperature=0.1))


def tcc(**options):
    return lambda a, b, p, q: tcc_loss(a, b, TIMES[: len(a), : a.shape[1]], p, q, **options)


def ae2(a, b, p, q):
    subset = torch.arange(min(3, a.shape[1], b.shape[1])).expand(len(a), -1)
    return sum(ae2_losses(a, b, p, q, (subset, subset), margin=0.1))


def triplets(a, b, p, q):
    pairs = positive_and_negative(FRAMES[: len(a), : a.shape[1]].repeat(1, 2), 1, 1)
    return semi_hard_triplets(torch.cat([a, b], 1), *pairs, torch.cat([p, q], 1))


PAIR_LOSSES = {
    "npairs": lambda a, b, p, _: npairs(a, b, p),
    "npairs labels": lambda a, b, p, _: npairs(a, b, p, labels=FRAMES[: len(a), : a.shape[1]] // 2),
    "triplets": triplets,
    "carl": contrast,
    "tcc": tcc(),
    "tcc mse": tcc(loss="mse"),
    "tcc classes": tcc(loss="classification"),
    "gta": lambda a, b, p, q: sum(gta_losses(a, b, p, q)),
    "ae2": ae2,
    "timeline": timeline,
}


@pytest.fixture(params=PAIR_LOSSES)
def pair_loss(request):
    return PAIR_LOSSES[request.param]


@pytest.mark.parametrize("kind", ["same", "opposite", 0.0, 1.0, 1e3])
@pytest.mark.parametrize("frames", [1, 7])
@pytest.mark.parametrize("padded", [False, True])
def test_degenerate_clips_give_finite_losses_and_gradients(pair_loss, kind, frames, padded):
    first, second = (unit_vectors(3, frames, 8, seed=seed, dtype=torch.float32) for seed in (0, 1))
    if isinstance(kind, float):
        first = first * kind
        second = second * kind
    else:
        first = first[:, :1].expand_as(first).clone()
        second = first.clone() * (-1 if kind == "opposite" else 1)
    padding = PADDED[:, :frames] if padded else no_padding(first)
    first.requires_grad_(), second.requires_grad_()
    loss = pair_loss(first, second, padding, padding)
    loss.backward()
    assert loss.dtype == torch.float32
    assert loss.isfinite()
    assert first.grad.isfinite().all()
    assert second.grad.isfinite().all()


def test_autocast_and_half_precision_compute_in_float32(pair_loss):
    first, second = (unit_vectors(3, 7, 8, seed=seed, dtype=torch.bfloat16) for seed in (0, 1))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = pair_loss(first, second, PADDED, PADDED)
    assert mixed.dtype == torch.float32
    assert torch.equal(mixed, pair_loss(first.float(), second.float(), PADDED, PADDED))


@pytest.mark.parametrize("name", [name for name in PAIR_LOSSES if name != "carl"])
def test_a_loss_is_the_mean_over_the_items_without_their_padding(name):
    first = unit_vectors(3, 7, 8)
    second = unit_vectors(3, 7, 8, seed=1)
    # The other losses need clips of equal length.
    other = OTHER_PADDED if name.startswith(("tcc", "gta")) else PADDED
    items = []
    for item in range(3):
        clips = first[item : item + 1, ~PADDED[item]], second[item : item + 1, ~other[item]]
        items.append(PAIR_LOSSES[name](*clips, *map(no_padding, clips)).item())
    assert PAIR_LOSSES[name](first, second, PADDED, other).item() == pytest.approx(
        sum(items) / 3, rel=1e-9
    )


# TCN


@pytest.mark.parametrize("missing", ["positive", "negative", "frames"])
def test_an_item_without_triplets_has_loss_zero(missing):
    embeddings = unit_vectors(1, 6, 8, dtype=torch.float32).requires_grad_()
    positive, negative = positive_and_negative(torch.arange(6)[None], 1, 1)
    padding = no_padding(embeddings) | (missing == "frames")
    loss = semi_hard_triplets(
        embeddings, positive & (missing != "positive"), negative & (missing != "negative"), padding
    )
    loss.backward()
    assert loss.item() == 0
    assert not embeddings.grad.any()


# TCC


def test_hard_matches_cost_the_minimum_variance():
    home = 1000 * torch.eye(5)[None]
    times = torch.linspace(0, 1, 5)[None]
    right = tcc_loss(home, home, times, no_padding(home), no_padding(home))
    assert right.item() == pytest.approx(0.001 * log(MIN_VARIANCE))
    # All cycles return to time 0.
    wrong = tcc_loss(home, home[:, :1], times, no_padding(home), no_padding(home[:, :1]))
    assert wrong.item() == pytest.approx(
        (times.square().mean() / MIN_VARIANCE).item() + 0.001 * log(MIN_VARIANCE)
    )


# Timeline


def naive_timeline(z, times, padding, sigma, temperature):
    clips = [
        [(z[clip][t], times[clip][t].item()) for t in range(len(z[clip])) if not padding[clip][t]]
        for clip in range(len(z))
    ]

    def cross_entropy(frame, candidates):
        vector, time = frame
        apart = torch.tensor([time - other for _, other in candidates], dtype=torch.float64)
        predicted = torch.stack(
            [vector @ other / temperature for other, _ in candidates]
        ).log_softmax(dim=0)
        return -((-apart.square() / (2 * sigma**2)).softmax(dim=0) @ predicted).item()

    per_clip = []
    all_clips = []
    for own, clip in enumerate(clips):
        # Clips of the other video.
        others = [other for number, other in enumerate(clips) if number % 2 != own % 2]
        for frame in clip:
            per_clip += [cross_entropy(frame, other) for other in others]
            all_clips.append(
                cross_entropy(frame, [candidate for other in others for candidate in other])
            )
    return sum(per_clip) / len(per_clip), sum(all_clips) / len(all_clips)


@pytest.mark.parametrize(
    ("sigma", "temperature"), [(0.15, 0.1), (1.0, 1.0), (0.003, 0.1), (0.15, 1e-5)]
)
def test_timeline_losses_equal_the_formula(sigma, temperature):
    z = unit_vectors(2, 4, 7, 8)
    times = torch.rand(2, 4, 7, generator=seeded(1), dtype=torch.float64)
    padding = torch.zeros(2, 4, 7, dtype=torch.bool)
    padding[0, :3] = PADDED
    items = [
        naive_timeline(z[item], times[item], padding[item], sigma, temperature) for item in range(2)
    ]
    ours = timeline_losses(z, times, padding, sigma=sigma, temperature=temperature)
    expected = [sum(values) / 2 for values in zip(*items, strict=True)]
    assert [loss.item() for loss in ours] == pytest.approx(expected, rel=1e-9)


def test_progress_is_a_label_and_not_an_input(make_method, make_clips):
    method = make_method("timeline")
    seen = []
    method.backbone.register_forward_hook(lambda _, __, latents: seen.append(torch.stack(latents)))
    clips = tuple(make_clips(2, 6, seed) for seed in range(4))
    losses = []
    for power in (1, 2):
        method.progress = (torch.linspace(0, 1, 100) ** power).repeat(10, 1)
        losses.append(method(clips, seeded())["loss"].item())
    assert torch.equal(*seen)
    assert losses[0] != losses[1]
