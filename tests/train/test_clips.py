import pytest
import torch


def test_a_frame_knows_its_number_and_its_share_of_clip_and_video(make_clips):
    clips = make_clips(
        2,
        3,
        index=torch.tensor([[0, 2, 4], [1, 1, 9]]),
        first=torch.tensor([10, 0]),
        length=torch.tensor([5, 10]),
        video_length=torch.tensor([21, 10]),
    )
    assert clips.frame.tolist() == [[10, 12, 14], [1, 1, 9]]
    torch.testing.assert_close(clips.share_of_clip, torch.tensor([[0, 0.5, 1], [1 / 9, 1 / 9, 1]]))
    torch.testing.assert_close(clips.share_of_video, torch.tensor([[0.5, 0.6, 0.7], [1 / 9, 1 / 9, 1]]))


def test_the_only_frame_of_a_video_is_at_its_beginning(make_clips):
    ones = torch.tensor([1])
    clips = make_clips(1, 2, index=torch.tensor([[0, 0]]), length=ones, video_length=ones)
    assert clips.share_of_clip.tolist() == clips.share_of_video.tolist() == [[0, 0]]


def test_no_padding_is_padding_nowhere(make_clips):
    assert not make_clips(2, 3).repeated.any()
    padding = torch.tensor([[False, False, True]] * 2)
    assert torch.equal(make_clips(2, 3, padding=padding).repeated, padding)


def test_an_items_random_numbers_are_the_same_wherever_the_others_of_its_step_are(make_clips):
    def drawn(clips):
        random = torch.Generator().manual_seed(3)
        return torch.stack([clips.rand(4, random=random) for _ in range(2)])

    whole = drawn(make_clips(5, 3))
    assert whole.shape == (2, 5, 4)
    assert len(whole.unique()) == whole.numel()
    parts = [make_clips(2, 3, items=5), make_clips(3, 3, first_item=2, items=5)]
    assert torch.equal(whole, torch.cat([drawn(part) for part in parts], dim=1))


@pytest.mark.parametrize("padding", [None, torch.tensor([[False, True, True]] * 2)])
def test_moved_clips_are_the_same_elsewhere(make_clips, padding):
    moved = make_clips(2, 3, padding=padding, first_item=1, items=4).to(torch.device("meta"))
    tensors = {name: value for name, value in vars(moved).items() if isinstance(value, torch.Tensor)}
    assert all(value.device.type == "meta" for value in tensors.values())
    assert set(vars(moved)) - set(tensors) == {
        "first_item",
        "items",
        "context",
        *(["padding"] if padding is None else []),
    }
    assert (moved.first_item, moved.items, moved.sampled) == (1, 4, 3)
