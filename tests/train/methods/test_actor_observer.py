from math import exp, log, log1p

import pytest
import torch
from tests.train.methods.golden_cases import assert_met, cases, tensors

from byov.train.methods.actor_observer import Heads, RunningMeans, equal_gradients, triplet_losses, weighted_loss

GOLDEN = cases("actor_observer")
FRAMES = ("exo", "ego_positive", "ego_negative")


def seeded(seed):
    return torch.Generator().manual_seed(seed)


def triplets(n, seed=0, dtype=torch.float64):
    """Exo frames, positives and negatives: (n, 8) each."""
    return [torch.randn(n, 8, generator=seeded(seed + kind), dtype=torch.float64).to(dtype) for kind in range(3)]


def some_heads(dtype=torch.float64):
    """Heads for these triplets, all weights of them random."""
    heads = Heads(8).to(dtype)
    random = seeded(5)
    with torch.no_grad():
        for parameter in heads.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=random) * 0.5)
    return heads


def drawn_videos(n, videos, seed=0):
    return torch.randint(videos, (n,), generator=seeded(seed))


# Triplets


@pytest.mark.parametrize("case", ["ratio", "margin"])
def test_triplets_meet_the_published_numbers(case):
    golden, constants = tensors(GOLDEN[case]), GOLDEN[case][1]
    frames = [golden[name].requires_grad_() for name in FRAMES]
    losses = triplet_losses(*frames, margin=constants["margin"] if case == "margin" else None)
    torch.testing.assert_close(losses, golden["each"], rtol=0, atol=1e-9)
    losses.sum().backward()
    gradients = {f"gradient_{name}": frame.grad for name, frame in zip(FRAMES, frames, strict=True)}
    assert_met(golden, losses.sum(), **gradients)


@pytest.mark.parametrize("apart", [-200.0, -30.0, -1.0, 0.0, 1.0, 30.0, 200.0])
def test_the_loss_of_a_triplet_is_how_much_nearer_the_negative_is(apart):
    exo = torch.zeros(1, 1, dtype=torch.float64)
    near, far = max(apart, 0) + 3, max(-apart, 0) + 3
    losses = [triplet_losses(exo, exo + near, exo - far, margin=margin).item() for margin in (None, 0.0, 0.5)]
    softplus = log1p(exp(-abs(apart))) + max(apart, 0)
    assert losses == pytest.approx([softplus, max(apart, 0), max(apart + 0.5, 0)], rel=1e-5, abs=3e-6)


def test_a_positive_on_its_exo_frame_costs_least():
    exo, positive, negative = triplets(20)
    away = exo + 10 * (negative - exo)
    best = triplet_losses(exo, exo, away)
    for other in (triplet_losses(exo, positive, away), triplet_losses(exo, exo, negative)):
        assert (best < other).all()
    torch.testing.assert_close(triplet_losses(exo, exo, exo), torch.full((20,), log(2), dtype=torch.float64))


# The weighted loss


@pytest.mark.parametrize("case", ["weighted", "weighted_per_video"])
def test_two_weighted_steps_meet_the_published_numbers(case):
    golden, constants = tensors(GOLDEN[case]), GOLDEN[case][1]
    per_video = case == "weighted_per_video"
    means = RunningMeans(4, per_video=per_video, decay=constants["decay"], loss_decay=constants["final_decay"]).double()
    heads = Heads(16).double()
    named = {"ego_weight": heads.ego.weight, "ego_bias": heads.ego.bias, "scales": heads.scales}
    named |= {"exo_weight": heads.exo.weight, "exo_bias": heads.exo.bias}
    for name, parameter in named.items():
        parameter.data.copy_(golden[name])
    for step, videos in enumerate(constants["videos"]):
        expected = {name.split("/")[1]: value for name, value in golden.items() if name.startswith(f"step{step}/")}
        frames = {name: expected[name].requires_grad_() for name in FRAMES}
        heads.zero_grad()
        numbers = torch.tensor(["abcd".index(video) for video in videos])
        loss, weights = weighted_loss(*frames.values(), heads(*frames.values()), numbers, means)
        loss.backward()
        torch.testing.assert_close(weights, expected["weight"], rtol=0, atol=1e-9)
        learned = frames | {name: named[name] for name in ("ego_weight", "exo_weight", "scales")}
        assert_met(expected, loss, **{f"gradient_{name}": tensor.grad for name, tensor in learned.items()})


def naive_means(steps, *, per_video, decay, loss_decay):
    """Triplet by triplet, from the formulas: (c, k) of each step's triplets, after all of them."""
    c, k, found = {}, {}, []
    for scores, losses, weights, numbers in steps:
        for i, video in enumerate(numbers.tolist()):
            for head in range(3):
                h, key = scores[head, i].item(), (head, video)
                c[key] = log(decay * exp(c[key]) + (1 - decay) * exp(h)) if key in c else h
        for loss, weight, video in zip(losses.tolist(), weights.tolist(), numbers.tolist(), strict=True):
            group = video if per_video else 0
            mean, total = k.get(group, (loss, weight))
            if group in k:
                after = (1 - loss_decay) * weight + loss_decay * total
                mean, total = ((1 - loss_decay) * weight * loss + loss_decay * total * mean) / after, after
            k[group] = mean, total
        levels = [[c[head, video] for video in numbers.tolist()] for head in range(3)]
        usual = [k[video if per_video else 0][0] for video in numbers.tolist()]
        found.append((levels, usual))
    return found


def made_up_steps(n, videos, count=4):
    random = seeded(n + videos)
    for step in range(count):
        scores = torch.randn(3, n, generator=random, dtype=torch.float64)
        losses, weights = torch.rand(2, n, generator=random, dtype=torch.float64) + 0.1
        yield scores, losses, weights, drawn_videos(n, videos, step)


@pytest.mark.parametrize("per_video", [False, True])
@pytest.mark.parametrize(("decay", "loss_decay"), [(0.95, 0.9), (0.5, 0.2)])
@pytest.mark.parametrize(("n", "videos"), [(1, 1), (6, 1), (6, 3), (7, 50), (128, 20), (128, 2)])
def test_all_updates_at_once_are_those_one_after_another(n, videos, per_video, decay, loss_decay):
    settings = {"per_video": per_video, "decay": decay, "loss_decay": loss_decay}
    means = RunningMeans(videos, **settings).double()
    steps = list(made_up_steps(n, videos))
    for step, (levels, usual) in zip(steps, naive_means(steps, **settings), strict=True):
        scores, losses, weights, numbers = step
        expected = torch.tensor(levels, dtype=torch.float64)
        torch.testing.assert_close(means.of_scores(scores, numbers), expected, rtol=0, atol=1e-12)
        assert means.of_losses(losses, weights, numbers).tolist() == pytest.approx(usual, rel=1e-12)


def test_a_batch_in_two_halves_leaves_what_the_whole_leaves():
    whole, halves = (RunningMeans(5, per_video=True).double() for _ in range(2))
    for scores, losses, weights, numbers in made_up_steps(16, 5):
        whole.of_scores(scores, numbers)
        whole.of_losses(losses, weights, numbers)
        for half in (slice(0, 8), slice(8, 16)):
            halves.of_scores(scores[:, half], numbers[half])
            halves.of_losses(losses[half], weights[half], numbers[half])
    for name, tensor in whole.tensors().items():
        torch.testing.assert_close(halves.tensors()[name], tensor, rtol=1e-12, atol=1e-12)


def test_the_order_of_the_batch_decides():
    scores, losses, weights, _ = next(made_up_steps(4, 1))
    videos = torch.zeros(4, dtype=torch.long)
    forwards, backwards = RunningMeans(1).double(), RunningMeans(1).double()
    assert not torch.allclose(forwards.of_scores(scores, videos), backwards.of_scores(scores.flip(1), videos))
    there, back = (
        forwards.of_losses(losses, weights, videos),
        backwards.of_losses(losses.flip(0), weights.flip(0), videos),
    )
    assert not torch.allclose(there, back)


def test_the_order_of_triplets_of_different_videos_changes_nothing():
    heads, order, videos = some_heads(), torch.tensor([2, 0, 3, 1]), torch.arange(4)
    means, others = (RunningMeans(4, per_video=True).double() for _ in range(2))
    for step in range(3):
        frames = triplets(4, step)
        loss, weights = weighted_loss(*frames, heads(*frames), videos, means)
        frames = [frame[order] for frame in frames]
        again, permuted = weighted_loss(*frames, heads(*frames), videos[order], others)
        torch.testing.assert_close(permuted, weights[order])
        torch.testing.assert_close(again, loss)


def test_what_a_video_is_called_changes_nothing():
    names = torch.tensor([3, 0, 2, 1])
    means, others = RunningMeans(4, per_video=True), RunningMeans(4, per_video=True)
    heads = some_heads(torch.float32)
    for step in range(3):
        frames, videos = triplets(9, step, torch.float32), drawn_videos(9, 4, step)
        scores = heads(*frames)
        found = [weighted_loss(*frames, scores, of, to) for of, to in ((videos, means), (names[videos], others))]
        assert torch.equal(found[0][0], found[1][0])
        assert torch.equal(found[0][1], found[1][1])


@pytest.mark.parametrize("per_video", [False, True])
def test_a_restored_state_goes_on_to_the_bit(per_video):
    means, heads = RunningMeans(5, per_video=per_video), some_heads(torch.float32)

    def step(number, means):
        frames = triplets(12, number, torch.float32)
        return weighted_loss(*frames, heads(*frames), drawn_videos(12, 5, number) % (number + 2), means)[0].item()

    for number in range(3):
        step(number, means)
    saved = {name: tensor.clone() for name, tensor in means.tensors().items()}
    went_on = [step(number, means) for number in range(3, 6)]
    restored = RunningMeans(5, per_video=per_video)
    assert [step(number, restored) for number in range(3, 6)] != went_on
    for name, tensor in restored.tensors().items():
        tensor.copy_(saved[name])
    assert [step(number, restored) for number in range(3, 6)] == went_on
    assert all(torch.equal(tensor, restored.tensors()[name]) for name, tensor in means.tensors().items())


def test_the_state_is_no_part_of_the_state_dict():
    means = RunningMeans(7, per_video=True)
    assert not means.state_dict()
    assert {name: tuple(tensor.shape) for name, tensor in means.tensors().items()} == {
        "scores": (3, 7),
        "losses": (7,),
        "weights": (7,),
    }


def test_outside_of_training_the_means_are_the_same_but_not_kept():
    frames, videos, heads = triplets(9), drawn_videos(9, 3), some_heads()
    means = RunningMeans(4, per_video=True).double().eval()
    before = {name: tensor.clone() for name, tensor in means.tensors().items()}
    first = weighted_loss(*frames, heads(*frames), videos, means)[0]
    assert all(torch.equal(tensor, before[name]) for name, tensor in means.tensors().items())
    assert torch.equal(weighted_loss(*frames, heads(*frames), videos, means.train())[0], first)
    assert not any(torch.equal(tensor, before[name]) for name, tensor in means.tensors().items())


def test_videos_that_were_not_seen_stay_so():
    means = RunningMeans(5, per_video=True)
    frames = triplets(4, dtype=torch.float32)
    weighted_loss(*frames, some_heads(torch.float32)(*frames), torch.tensor([1, 3, 3, 1]), means)
    assert (means.scores > -torch.inf).tolist() == [[False, True, False, True, False]] * 3
    assert (means.weights > 0).tolist() == [False, True, False, True, False]


def test_a_video_seen_once_has_weight_one():
    frames = triplets(5)
    loss, weights = weighted_loss(
        *frames, some_heads()(*frames), torch.arange(5), RunningMeans(5, per_video=True).double()
    )
    assert torch.equal(weights, torch.ones_like(weights))
    assert loss.item() == pytest.approx(0, abs=1e-12)  # each is as usual for its video


def test_the_means_carry_no_gradient():
    scores = torch.randn(3, 4, requires_grad=True)
    losses, weights = torch.rand(2, 4, requires_grad=True)
    means, videos = RunningMeans(2), torch.tensor([0, 1, 0, 0])
    assert not means.of_scores(scores, videos).requires_grad
    assert not means.of_losses(losses, weights, videos).requires_grad
    assert not any(tensor.requires_grad for tensor in means.tensors().values())


def test_gradients_are_made_as_long_as_the_first():
    inputs = [torch.randn(6, generator=seeded(kind), dtype=torch.float64).requires_grad_() for kind in range(5)]
    wanted = [torch.randn(6, generator=seeded(9 + kind), dtype=torch.float64) * 10.0**kind for kind in range(4)]
    outputs = equal_gradients(*inputs)
    assert all(torch.equal(output, tensor) for output, tensor in zip(outputs, inputs, strict=True))
    torch.autograd.backward(outputs[:4], wanted)  # nothing arrives at the last
    assert torch.equal(inputs[0].grad, wanted[0])
    for tensor, gradient in zip(inputs[1:4], wanted[1:], strict=True):
        torch.testing.assert_close(tensor.grad, gradient * (wanted[0].norm() / gradient.norm()), rtol=1e-5, atol=0)
    assert not inputs[4].grad.any()


def test_heads_start_within_a_half_and_ego_frames_share_theirs():
    heads = Heads(8)
    frames = [100 * frame for frame in triplets(30, dtype=torch.float32)]
    scores = heads(*frames)
    assert scores.shape == (3, 30)
    torch.testing.assert_close(scores.abs().max(), torch.tensor(0.5))
    exo, positive, negative = frames
    assert torch.equal(heads(exo, negative, positive), scores[[2, 1, 0]])
    assert not torch.equal(heads(positive, exo, negative)[:2], scores[[1, 0]])
    with torch.no_grad():
        heads.scales.copy_(torch.tensor([1.0, 2.0, 3.0]).log())
    torch.testing.assert_close(heads(*frames), scores * 2 * torch.tensor([[1.0], [2.0], [3.0]]))


@pytest.mark.parametrize("per_video", [False, True])
@pytest.mark.parametrize("margin", [None, 0.0, 0.5])
@pytest.mark.parametrize("n", [1, 6])
@pytest.mark.parametrize("kind", ["all the same", "zero", "far", "random"])
def test_numbers_are_finite_in_single_precision(kind, n, margin, per_video):
    means, heads = RunningMeans(2, per_video=per_video), some_heads(torch.float32)
    for step in range(3):
        frames = triplets(n, step, torch.float32)
        if kind == "all the same":
            frames = [frames[0][:1].expand(n, 8).clone()] * 3
        if kind in ("zero", "far"):
            frames = [frame * {"zero": 0, "far": 1e6}[kind] for frame in frames]
        frames = [frame.clone().requires_grad_() for frame in frames]
        loss, weights = weighted_loss(*frames, heads(*frames), drawn_videos(n, 2, step), means, margin=margin)
        (loss + triplet_losses(*frames, margin=margin).mean()).backward()
        assert loss.isfinite()
        assert weights.isfinite().all()
        assert all(leaf.grad.isfinite().all() for leaf in (*frames, *heads.parameters()))


def test_bfloat16_around_it_does_not_make_it_coarse():
    frames, videos, heads = triplets(9, dtype=torch.bfloat16), drawn_videos(9, 3), some_heads(torch.float32)
    wide = [frame.float() for frame in frames]
    expected, _ = weighted_loss(*wide, heads(*wide), videos, RunningMeans(3))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed, _ = weighted_loss(*frames, heads(*frames), videos, RunningMeans(3))
        plain = triplet_losses(*frames)
    assert torch.equal(mixed, expected)
    assert torch.equal(plain, triplet_losses(*wide))
    exact = some_heads()(*(frame.double() for frame in frames))
    torch.testing.assert_close(heads(*wide).double(), exact, rtol=0, atol=1e-6)
    mixed.backward()
    assert all(parameter.grad.isfinite().all() for parameter in heads.parameters())
