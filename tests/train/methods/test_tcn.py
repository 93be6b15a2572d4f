from math import exp, log

import pytest
import torch
import torch.nn.functional as F
from tests.train.methods.golden_cases import assert_met, cases, tensors

from byov.train.methods.tcn import near_and_far, npairs, semi_hard_triplets

GOLDEN = cases("tcn")
PADDED = torch.tensor([[0, 0, 0, 0, 0, 0], [0, 0, 1, 0, 1, 1], [0, 1, 1, 1, 1, 1]], dtype=torch.bool)


def vectors(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def unit_vectors(*shape, seed=0, dtype=torch.float64):
    return F.normalize(vectors(*shape, seed=seed), dim=-1).to(dtype)


def no_padding(embeddings):
    return torch.zeros(embeddings.shape[:2], dtype=torch.bool)


def all_pairs(size):
    """Every two neighbors are positive, every other two frames negative."""
    return near_and_far(torch.arange(size)[None], positive_radius=1, negative_radius=1)


# n-pairs


@pytest.mark.parametrize("case", ["npairs", "npairs_unit_norm", "npairs_labels"])
def test_npairs_meet_the_published_numbers(case):
    golden = tensors(GOLDEN[case])
    anchors, positives = (golden[name][None].requires_grad_() for name in ("anchors", "positives"))
    labels = golden["labels"][None] if "labels" in golden else None
    regularization = GOLDEN[case][1]["reg_lambda"]
    loss = npairs(anchors, positives, no_padding(anchors), regularization=regularization, labels=labels)
    loss.backward()
    assert_met(golden, loss, gradient_anchors=anchors.grad[0], gradient_positives=positives.grad[0])


def naive_npairs(anchors, positives, padding, regularization, labels):
    """The formula, pair by pair, of one item."""
    kept = [pair for pair in range(len(anchors)) if not padding[pair]]
    costs = []
    for i in kept:
        logits = {j: (anchors[i] @ positives[j]).item() for j in kept}
        total = log(sum(exp(logit) for logit in logits.values()))
        own = [j for j in kept if labels[i] == labels[j]]
        costs.append(sum(total - logits[j] for j in own) / len(own))
    squares = [(side[i] @ side[i]).item() for side in (anchors, positives) for i in kept]
    return (sum(costs) + 0.25 * regularization * sum(squares)) / len(kept)


@pytest.mark.parametrize("labels", [torch.arange(6), torch.tensor([4, 1, 4, 4, 2, 1])], ids=["each its own", "shared"])
def test_npairs_are_the_formula_averaged_over_the_items(labels):
    anchors, positives = vectors(3, 6, 8), vectors(3, 6, 8, seed=1)
    labels = labels.expand(3, 6)
    items = [naive_npairs(*item, 0.3, own) for *item, own in zip(anchors, positives, PADDED, labels, strict=True)]
    loss = npairs(anchors, positives, PADDED, regularization=0.3, labels=labels)
    assert loss.item() == pytest.approx(sum(items) / 3, rel=1e-9)


def test_without_labels_every_pair_is_a_moment_of_its_own():
    anchors, positives = vectors(3, 6, 8), vectors(3, 6, 8, seed=1)
    labeled = npairs(anchors, positives, PADDED, labels=torch.arange(6).expand(3, 6))
    torch.testing.assert_close(npairs(anchors, positives, PADDED), labeled, rtol=0, atol=1e-12)


@pytest.mark.parametrize("labels", [None, torch.tensor([[4, 1, 4, 4, 2, 1]]).expand(3, 6)])
def test_padded_pairs_change_nothing_and_have_no_gradient(labels):
    anchors, positives = vectors(3, 6, 8).requires_grad_(), vectors(3, 6, 8, seed=1).requires_grad_()
    loss = npairs(anchors, positives, PADDED, labels=labels)
    gradients = torch.autograd.grad(loss, [anchors, positives])
    for gradient in gradients:
        assert torch.equal(gradient.abs().sum(dim=-1) > 0, ~PADDED)
    others = [side.detach().masked_fill(PADDED[..., None], torch.nan) for side in (anchors, positives)]
    assert torch.equal(npairs(*others, PADDED, labels=labels), loss)


def test_pairs_that_are_alike_and_as_unlike_all_others_as_can_be_cost_least():
    """The corners of a simplex: of all vectors of a length, those that face away from each other most."""
    corners = torch.eye(6, dtype=torch.float64)[None]
    corners = 3 * F.normalize(corners - corners.mean(dim=1, keepdim=True), dim=-1)
    padding = no_padding(corners)
    best = npairs(corners, corners, padding).item()
    for seed in range(20):
        anchors, positives = (3 * unit_vectors(1, 6, 6, seed=seed + kind) for kind in (0, 100))
        mixed_up = corners.roll(1 + seed % 5, dims=1)
        others = [(corners, mixed_up), (corners, positives), (anchors, anchors), (anchors, positives)]
        assert best < min(npairs(*pairs, padding).item() for pairs in others)


def test_the_order_of_the_items_changes_nothing():
    anchors, positives = vectors(3, 6, 8).requires_grad_(), vectors(3, 6, 8, seed=1)
    order = torch.tensor([2, 0, 1])
    loss = npairs(anchors, positives, PADDED)
    again = npairs(anchors[order], positives[order], PADDED[order])
    torch.testing.assert_close(loss, again)
    torch.testing.assert_close(*(torch.autograd.grad(value, anchors)[0] for value in (loss, again)))


@pytest.mark.parametrize("scale", [0, 1, 1e3])
@pytest.mark.parametrize("labels", [None, torch.zeros(3, 6, dtype=torch.long)])
@pytest.mark.parametrize("padding", [PADDED, PADDED | True], ids=["some", "everything padded"])
def test_pairs_that_are_all_the_same_give_finite_numbers_in_single_precision(scale, labels, padding):
    anchors, positives = (torch.full((3, 6, 8), float(scale), requires_grad=True) for _ in range(2))
    loss = npairs(anchors, positives, padding, labels=labels)
    loss.backward()
    assert loss.isfinite()
    assert anchors.grad.isfinite().all()
    assert positives.grad.isfinite().all()


def test_one_pair_costs_its_lengths_alone():
    anchors, positives = vectors(1, 1, 8), vectors(1, 1, 8, seed=1)
    lengths = (anchors.square().sum() + positives.square().sum()).item()
    assert npairs(anchors, positives, no_padding(anchors)).item() == pytest.approx(0.0005 * lengths)


def test_bfloat16_around_npairs_does_not_make_them_coarse():
    anchors, positives = (vectors(3, 6, 8, seed=seed, dtype=torch.bfloat16) for seed in range(2))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = npairs(anchors, positives, PADDED)
    assert mixed.dtype == torch.float32
    assert torch.equal(mixed, npairs(anchors.float(), positives.float(), PADDED))


# Semi-hard triplets


@pytest.mark.parametrize("case", ["triplet_one_view", "triplet_two_sequences"])
def test_triplets_of_one_view_meet_the_published_numbers(case):
    golden, constants = tensors(GOLDEN[case]), GOLDEN[case][1]
    embeddings = golden["embeddings"][None].requires_grad_()
    tables = near_and_far(
        golden["timesteps"][None],
        golden["sequence_ids"][None] if constants["multiseq"] else None,
        positive_radius=constants["pos_radius"],
        negative_radius=constants["neg_radius"],
    )
    loss = semi_hard_triplets(embeddings, *tables, no_padding(embeddings), margin=constants["margin"])
    loss.backward()
    assert_met(golden, loss, gradient=embeddings.grad[0])


def test_triplets_of_two_views_meet_the_published_numbers():
    golden, constants = tensors(GOLDEN["triplet_two_views"]), GOLDEN["triplet_two_views"][1]
    views = [golden[name][None].requires_grad_() for name in ("anchors", "positives")]
    embeddings = torch.cat(views, dim=1)
    tables = near_and_far(golden["labels"].repeat(2)[None], positive_radius=0, negative_radius=0)
    loss = semi_hard_triplets(embeddings, *tables, no_padding(embeddings), margin=constants["margin"])
    loss.backward()
    assert_met(golden, loss, gradient_anchors=views[0].grad[0], gradient_positives=views[1].grad[0])


def test_near_frames_of_a_sequence_are_positive_and_far_ones_and_those_of_others_negative():
    timesteps, sequences = torch.tensor([[0, 2, 3, 6]]), torch.tensor([[5, 5, 5, 7]])
    positive, negative = near_and_far(timesteps, positive_radius=2, negative_radius=3)
    assert positive[0].int().tolist() == [[0, 1, 0, 0], [1, 0, 1, 0], [0, 1, 0, 0], [0, 0, 0, 0]]
    assert negative[0].int().tolist() == [[0, 0, 0, 1], [0, 0, 0, 1], [0, 0, 0, 0], [1, 1, 0, 0]]
    positive, negative = near_and_far(timesteps, sequences, positive_radius=9, negative_radius=9)
    assert positive[0].int().tolist() == [[0, 1, 1, 0], [1, 0, 1, 0], [1, 1, 0, 0], [0, 0, 0, 0]]
    assert negative[0].int().tolist() == [[0, 0, 0, 1], [0, 0, 0, 1], [0, 0, 0, 1], [1, 1, 1, 0]]


def naive_triplets(embeddings, positive, negative, padding, margin):
    """The definition, pair by pair, of one item."""
    kept = [frame for frame in range(len(embeddings)) if not padding[frame]]
    distance = (embeddings[:, None] - embeddings).square().sum(dim=-1).tolist()
    costs = []
    for i in kept:
        others = [distance[i][k] for k in kept if negative[i][k]]
        for j in kept:
            if positive[i][j] and others:
                further = [other for other in others if other > distance[i][j]]
                costs.append(max(0, margin + distance[i][j] - (min(further) if further else max(others))))
    return sum(costs) / len(costs) if costs else 0.0


@pytest.mark.parametrize("margin", [0.2, 0.0, 1.5])
def test_triplets_are_the_definition_averaged_over_the_items(margin):
    embeddings = unit_vectors(20, 6, 3)
    padding = torch.cat([PADDED, torch.rand(17, 6, generator=torch.Generator().manual_seed(2)) < 0.3])
    kinds = torch.rand(20, 6, 6, generator=torch.Generator().manual_seed(3))
    positive, negative = kinds < 0.3, kinds > 0.7
    items = [naive_triplets(*item, margin) for item in zip(embeddings, positive, negative, padding, strict=True)]
    assert 0 in items
    loss = semi_hard_triplets(embeddings, positive, negative, padding, margin=margin)
    assert loss.item() == pytest.approx(sum(items) / 20, rel=1e-9)


def test_a_pair_whose_frame_has_no_negative_does_not_count():
    embeddings = unit_vectors(1, 3, 4)
    positive = torch.tensor([[[0, 1, 0], [1, 0, 0], [0, 0, 0]]], dtype=torch.bool)
    negative = torch.tensor([[[0, 0, 1], [0, 0, 0], [1, 0, 0]]], dtype=torch.bool)
    loss = semi_hard_triplets(embeddings, positive, negative, no_padding(embeddings), margin=9)
    apart = (embeddings[0, 0] - embeddings[0]).square().sum(dim=-1)
    assert loss.item() == pytest.approx(9 + (apart[1] - apart[2]).item())


def test_a_negative_as_far_as_the_positive_is_passed_over_for_one_that_is_further():
    embeddings = torch.tensor([[[1.0, 0], [0, 1], [0, -1], [-1, 0]]])  # from the first: 2, 2 and 4 away
    positive, negative = (torch.zeros(1, 4, 4, dtype=torch.bool) for _ in range(2))
    positive[0, 0, 1] = negative[0, 0, 2] = True
    assert semi_hard_triplets(embeddings, positive, negative, no_padding(embeddings)).item() == pytest.approx(0.2)
    negative[0, 0, 3] = True
    assert semi_hard_triplets(embeddings, positive, negative, no_padding(embeddings)).item() == 0


@pytest.mark.parametrize("missing", ["positive", "negative", "frames"])
def test_an_item_without_triplets_costs_nothing_and_has_no_gradient(missing):
    embeddings = unit_vectors(1, 6, 8, dtype=torch.float32).requires_grad_()
    positive, negative = all_pairs(6)
    if missing == "positive":
        positive = positive & False
    if missing == "negative":
        negative = negative & False
    loss = semi_hard_triplets(embeddings, positive, negative, no_padding(embeddings) | (missing == "frames"))
    loss.backward()
    assert loss.item() == 0
    assert torch.equal(embeddings.grad, torch.zeros(1, 6, 8))


def test_padded_frames_are_in_no_triplet_and_have_no_gradient():
    embeddings = unit_vectors(3, 6, 3).requires_grad_()
    positive, negative = (table.expand(3, 6, 6) for table in all_pairs(6))
    padding = torch.arange(6) >= torch.tensor([[6], [4], [1]])
    loss = semi_hard_triplets(embeddings, positive, negative, padding, margin=4)
    (gradient,) = torch.autograd.grad(loss, embeddings)
    assert not gradient[padding].any()
    assert gradient[1, :4].any(dim=-1).all()
    other = embeddings.detach().masked_fill(padding[..., None], torch.nan)
    assert torch.equal(semi_hard_triplets(other, positive, negative, padding, margin=4), loss)


def test_frames_on_their_positives_and_away_from_their_negatives_cost_nothing():
    tables = near_and_far(torch.arange(4).repeat(2)[None], positive_radius=0, negative_radius=0)
    apart = torch.eye(4).repeat(2, 1)[None]
    assert semi_hard_triplets(apart, *tables, no_padding(apart)).item() == 0
    same = unit_vectors(1, 1, 8).expand(1, 8, 8)
    assert semi_hard_triplets(same, *tables, no_padding(same)).item() == pytest.approx(0.2)


def test_the_order_of_items_and_frames_changes_nothing():
    embeddings = unit_vectors(3, 6, 3).requires_grad_()
    positive, negative = (table.expand(3, 6, 6) for table in all_pairs(6))
    items, frames = torch.tensor([2, 0, 1]), torch.tensor([3, 5, 0, 1, 4, 2])
    tables = [table[items][:, frames][:, :, frames] for table in (positive, negative)]
    loss = semi_hard_triplets(embeddings, positive, negative, PADDED)
    again = semi_hard_triplets(embeddings[items][:, frames], *tables, PADDED[items][:, frames])
    torch.testing.assert_close(loss, again)
    torch.testing.assert_close(*(torch.autograd.grad(value, embeddings)[0] for value in (loss, again)))


@pytest.mark.parametrize("size", [1, 2, 6])
@pytest.mark.parametrize("padding", ["none", "all but one", "all"])
def test_frames_that_are_all_the_same_give_finite_numbers_in_single_precision(size, padding):
    embeddings = unit_vectors(1, 1, 8, dtype=torch.float32).expand(1, size, 8).clone().requires_grad_()
    padded = torch.arange(size)[None] >= {"none": size, "all but one": 1, "all": 0}[padding]
    loss = semi_hard_triplets(embeddings, *all_pairs(size), padded)
    loss.backward()
    assert loss.isfinite()
    assert embeddings.grad.isfinite().all()


def test_bfloat16_around_triplets_does_not_make_them_coarse():
    embeddings = unit_vectors(2, 6, 8, dtype=torch.bfloat16)
    tables = [table.expand(2, 6, 6) for table in all_pairs(6)]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = semi_hard_triplets(embeddings, *tables, no_padding(embeddings))
    assert mixed.dtype == torch.float32
    assert torch.equal(mixed, semi_hard_triplets(embeddings.float(), *tables, no_padding(embeddings)))
