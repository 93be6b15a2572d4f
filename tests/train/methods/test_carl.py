from math import exp, log

import pytest
import torch
import torch.nn.functional as F
from tests.train.methods.golden_cases import assert_met, cases, tensors

from byov.train.methods.carl import sequence_contrast

GOLDEN = cases("carl")
ENDS = torch.tensor([[7, 7], [4, 6], [1, 5]])  # valid frames of the two crops of each of three videos
PADDED = [torch.arange(7) >= ends[:, None] for ends in ENDS.T]  # two of (3, 7)


def seeded(seed):
    return torch.Generator().manual_seed(seed)


def unit_vectors(*shape, seed=0, dtype=torch.float64):
    return F.normalize(torch.randn(*shape, generator=seeded(seed), dtype=torch.float64), dim=-1).to(dtype)


def two_crops(items=3, size=7, dtype=torch.float64):
    return [unit_vectors(items, size, 8, seed=crop, dtype=dtype) for crop in range(2)]


def frame_numbers(items=3, size=7):
    return [torch.randint(20, (items, size), generator=seeded(crop)).sort(dim=-1).values for crop in range(2)]


def no_padding(frames):
    return [torch.zeros_like(crop, dtype=torch.bool) for crop in frames]


@pytest.mark.parametrize("case", GOLDEN)
def test_the_published_numbers_are_met(case):
    golden, constants = tensors(GOLDEN[case]), GOLDEN[case][1]
    clips = range(len(golden["mask"]))
    embeddings = [golden[f"embeddings_{clip}"].requires_grad_() for clip in clips]
    padding = [golden["mask"][clip] == 0 for clip in clips]
    frames = [golden[f"frames_{clip}"] for clip in clips]
    arguments = [torch.stack(clips[crop::2]) for clips in (embeddings, frames, padding) for crop in range(2)]
    loss = sequence_contrast(
        *arguments,
        variance=constants["variance"],
        temperature=constants["temperature"],
        all_negatives=constants["negatives"] != "single_noself",
    )
    loss.backward()
    assert_met(golden, loss, **{f"gradient_{clip}": embeddings[clip].grad for clip in clips})


def naive(crops, frames, padding, variance, temperature, among=None):
    """The formula, frame by frame, of one item. among: the vectors of a whole batch and if they are padding."""
    costs = []
    for own, other in ((0, 1), (1, 0)):
        kept = [j for j in range(len(crops[other])) if not padding[other][j]]
        nearby = [(crops[other][j], False) for j in kept]
        nearby += [(crops[crop][j], True) for crop in range(2) for j in range(len(crops[crop])) if padding[crop][j]]
        for i in range(len(crops[own])):
            if padding[own][i]:
                continue
            z, frame = crops[own][i], frames[own][i]
            everything = nearby if among is None else among
            total = sum((1e-6 if light else 1) * exp((z @ vector).item() / temperature) for vector, light in everything)
            closeness = [exp(-((frame - frames[other][j]).item() ** 2) / (2 * variance)) for j in kept]
            for j, close in zip(kept, closeness, strict=True):
                q, p = close / sum(closeness), exp((z @ crops[other][j]).item() / temperature) / total
                costs.append(q * (log(q) - log(p + 1e-6)) if q else 0.0)
    return sum(costs) / sum((~crop).sum().item() for crop in padding)


@pytest.mark.parametrize("all_negatives", [False, True])
@pytest.mark.parametrize(("variance", "temperature"), [(10.0, 0.1), (2.0, 0.05), (0.1, 1.0)])
@pytest.mark.parametrize("padded", [False, True])
def test_the_loss_is_the_formula_averaged_over_the_items(padded, variance, temperature, all_negatives):
    crops, frames = two_crops(), frame_numbers()
    padding = PADDED if padded else no_padding(frames)
    batch = [
        (vector, light)
        for crop, lights in zip(crops, padding, strict=True)
        for vector, light in zip(crop.flatten(0, 1), lights.flatten(), strict=True)
    ]
    among = batch if all_negatives else None
    items = [
        naive(*([crop[item] for crop in of] for of in (crops, frames, padding)), variance, temperature, among)
        for item in range(3)
    ]
    options = {"variance": variance, "temperature": temperature, "all_negatives": all_negatives}
    loss = sequence_contrast(*crops, *frames, *padding, **options)
    assert loss.item() == pytest.approx(sum(items) / 3, rel=1e-9)


def test_padding_costs_no_more_than_its_small_part_of_the_sums():
    """Each -log p grows by at most log(1 + 1e-6 e^s of the padding / e^s of the rest); targets stay as they were."""
    crops, frames = [crop[:, [0, 1, 2, 3, 4, 4, 4]] for crop in two_crops(1)], frame_numbers(1)
    padding = [torch.arange(7)[None] >= 5] * 2
    padded = sequence_contrast(*crops, *frames, *padding).item()
    bare = sequence_contrast(*(clip[:, :5] for clip in (*crops, *frames, *padding))).item()
    sums = []
    for own, other in (crops, crops[::-1]):
        to_own, to_other = ((own[0, :5] @ clip[0].T / 0.1).exp() for clip in (own, other))
        light = to_own[:, 5:].sum(dim=1) + to_other[:, 5:].sum(dim=1)
        sums.append(1 + 1e-6 * light / to_other[:, :5].sum(dim=1))
    allowed = torch.cat(sums).log().mean().item()
    assert 0 < allowed < 0.01
    assert bare <= padded <= bare + allowed


@pytest.mark.parametrize("all_negatives", [False, True])
def test_the_numbers_of_padded_frames_change_nothing(all_negatives):
    crops, frames = two_crops(), frame_numbers()
    others = [crop.masked_fill(padding, 10**6) for crop, padding in zip(frames, PADDED, strict=True)]
    loss, again = (sequence_contrast(*crops, *of, *PADDED, all_negatives=all_negatives) for of in (frames, others))
    assert torch.equal(loss, again)


def test_padded_frames_have_hardly_a_gradient():
    """Of the sum that a frame's p is divided by, a padded one is at most 1e-6 e^1, and a valid one at least e^-1."""
    crops = [crop.requires_grad_() for crop in two_crops()]
    loss = sequence_contrast(*crops, *frame_numbers(), *PADDED, temperature=1.0)
    for gradient, padding in zip(torch.autograd.grad(loss, crops), PADDED, strict=True):
        lengths = gradient.norm(dim=-1)
        assert lengths[padding].min() > 0
        assert lengths[padding].max() < 1e-6 * exp(2) / 3


def test_vectors_that_turn_with_time_at_the_right_pace_cost_next_to_nothing():
    """exp(cos(angle) / t) is almost exp(-angle² / 2t): with angles of sqrt(t / variance) per frame p is almost q."""
    frames = [torch.arange(start, start + 20)[None] for start in (0, 4)]
    angles = [(0.1 / 10) ** 0.5 * clip.double() for clip in frames]
    circle = [torch.stack([angle.cos(), angle.sin()], dim=-1) for angle in angles]
    backwards = [circle[0], circle[1].flip(1)]
    same = [clip[:, :1].expand_as(clip) for clip in circle[:1] * 2]
    right, wrong, blind = (
        sequence_contrast(*crops, *frames, *no_padding(frames)).item() for crops in (circle, backwards, same)
    )
    assert 0 < right < 0.01
    assert right < blind < wrong


@pytest.mark.parametrize("all_negatives", [False, True])
def test_the_order_of_items_frames_and_crops_changes_nothing(all_negatives):
    (first, second), (frames_first, frames_second), padding = two_crops(), frame_numbers(), PADDED
    first.requires_grad_()
    items, order = torch.tensor([2, 0, 1]), torch.tensor([3, 5, 0, 6, 1, 4, 2])
    loss = sequence_contrast(first, second, frames_first, frames_second, *padding, all_negatives=all_negatives)
    arguments = [second, first, frames_second, frames_first, *padding[::-1]]
    again = sequence_contrast(*(clip[items][:, order] for clip in arguments), all_negatives=all_negatives)
    torch.testing.assert_close(loss, again)
    torch.testing.assert_close(*(torch.autograd.grad(value, first)[0] for value in (loss, again)))


def test_other_videos_of_the_batch_are_negatives_only_if_all_are():
    crops, frames = two_crops(2), frame_numbers(2)
    padding = no_padding(frames)
    arguments = (*crops, *frames, *padding)
    alone = [sequence_contrast(*(clip[[item]] for clip in arguments)).item() for item in range(2)]
    assert sequence_contrast(*arguments).item() == pytest.approx(sum(alone) / 2)
    assert sequence_contrast(*arguments, all_negatives=True).item() > sum(alone) / 2


@pytest.mark.parametrize("all_negatives", [False, True])
@pytest.mark.parametrize("vectors", ["all the same", "opposite", "random"])
@pytest.mark.parametrize(("size", "ends"), [(1, (1, 1)), (6, (6, 6)), (6, (1, 1)), (6, (6, 0)), (6, (0, 0))])
@pytest.mark.parametrize(("variance", "temperature"), [(10.0, 0.1), (1e-3, 0.02), (1e6, 10.0)])
def test_numbers_are_finite_in_single_precision(size, ends, vectors, variance, temperature, all_negatives):
    first, second = two_crops(1, size, torch.float32)
    if vectors != "random":
        first = second = first[:, :1].expand_as(first)
    if vectors == "opposite":
        second = -first
    first, second = first.clone().requires_grad_(), second.clone().requires_grad_()
    frames = [torch.arange(start, start + size)[None] for start in (0, 500)]
    padding = [torch.arange(size)[None] >= end for end in ends]
    options = {"variance": variance, "temperature": temperature, "all_negatives": all_negatives}
    loss = sequence_contrast(first, second, *frames, *padding, **options)
    loss.backward()
    assert loss.isfinite()
    assert loss.item() == 0 or 0 not in ends  # no frame to find, no cost
    assert first.grad.isfinite().all()
    assert second.grad.isfinite().all()


def test_bfloat16_around_it_does_not_make_it_coarse():
    crops, frames = two_crops(dtype=torch.bfloat16), frame_numbers()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = sequence_contrast(*crops, *frames, *PADDED)
    assert mixed.dtype == torch.float32
    assert torch.equal(mixed, sequence_contrast(*(crop.float() for crop in crops), *frames, *PADDED))
    exact = sequence_contrast(*(crop.double() for crop in crops), *frames, *PADDED)
    assert mixed.item() == pytest.approx(exact.item(), rel=1e-5)
