import pytest
import torch

from byov.train.networks import draw_visible, fill, masked, take, visible_count


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.fixture
def draw(make_clips):
    """draw(batch, frames, ratio, random): what stays visible of so many clips of so many frames."""
    return lambda batch, frames, ratio, random: draw_visible(make_clips(batch, frames), ratio, random)


@pytest.mark.parametrize(
    ("frames", "ratio", "visible"),
    [(32, 0, 32), (32, 1, 0), (32, 0.4, 19), (32, 0.8, 6), (10, 0.8, 2), (10, 0.9, 1), (10, 0.3, 7), (20, 0.4, 12)],
)
def test_so_many_frames_stay_visible(draw, frames, ratio, visible):
    assert visible_count(frames, ratio) == visible
    assert draw(3, frames, ratio, seeded()).shape == (3, visible)


def test_visible_frames_are_in_order_and_none_is_there_twice(draw):
    kept = draw(50, 12, 0.5, seeded())
    assert (kept.diff(dim=1) > 0).all()
    assert kept.min() == 0
    assert kept.max() == 11


def test_each_item_and_each_draw_is_another_but_the_seed_decides(draw):
    generator = seeded(3)
    kept = draw(20, 12, 0.5, generator)
    assert len({tuple(row) for row in kept.tolist()}) > 10
    assert not torch.equal(kept, draw(20, 12, 0.5, generator))
    assert torch.equal(kept, draw(20, 12, 0.5, seeded(3)))


def test_every_frame_is_masked_about_as_often_as_the_ratio_says(draw):
    hidden = masked(draw(4000, 10, 0.4, seeded()), 10).float().mean(0)
    assert ((hidden - 0.4).abs() < 0.04).all()


@pytest.mark.parametrize("ratio", [0, 0.5, 1])
def test_taken_frames_come_back_to_their_places_and_mask_tokens_to_the_others(draw, ratio):
    frames, token = torch.randn(3, 8, 5), torch.full((1, 1, 5), 7.0)
    kept = draw(3, 8, ratio, seeded())
    filled = fill(take(frames, kept), kept, 8, token)
    removed = masked(kept, 8)
    assert removed.sum(1).tolist() == [8 * ratio] * 3
    assert torch.equal(filled, torch.where(removed[..., None], token, frames))


def test_mask_tokens_and_visible_tokens_get_their_gradients(draw):
    token = torch.zeros(1, 1, 5, requires_grad=True)
    visible = torch.randn(2, 3, 5, requires_grad=True)
    kept = draw(2, 8, 0.6, seeded())
    fill(visible, kept, 8, token).sum().backward()
    assert torch.equal(token.grad, torch.full((1, 1, 5), 10.0))
    assert torch.equal(visible.grad, torch.ones(2, 3, 5))


def test_the_masks_of_an_item_are_the_same_wherever_the_others_are(make_clips):
    """Of 5 items, the last 3 at another process."""
    whole = draw_visible(make_clips(5, 12), 0.5, seeded())
    parts = [make_clips(2, 12, items=5), make_clips(3, 12, first_item=2, items=5)]
    assert torch.equal(whole, torch.cat([draw_visible(part, 0.5, seeded()) for part in parts]))
