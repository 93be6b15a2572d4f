import numpy as np
import pytest
import torch
import torch.nn.functional as F

from byov.train.networks import Positions, sincos


def numbers(*frames):
    return torch.tensor([frames])


def count(length):
    return torch.arange(length)[None]


def positions_of(positions, index):
    """Of frames of a clip that ends with the last of them."""
    return positions(index, index[:, -1] + 1)


def test_the_table_is_that_of_the_published_code(golden_state, golden_encoder):
    width, *_, frames = golden_encoder["config"].tolist()
    torch.testing.assert_close(
        Positions(frames, width, "interpolated").table[None], golden_state["pos_embed"].reshape(1, frames, width)
    )


def test_the_first_half_of_the_channels_are_sines_the_second_cosines():
    vectors = sincos(torch.tensor([0, 1, 7]), 6).double().numpy()
    for row, frame in enumerate((0, 1, 7)):
        angles = frame / 10000 ** (np.arange(3) / 3)
        np.testing.assert_allclose(vectors[row], [*np.sin(angles), *np.cos(angles)], atol=1e-7)


def test_far_frames_keep_their_precision():
    frame = 12_345_678
    assert sincos(torch.tensor([frame]), 2)[0, 0].item() == pytest.approx(np.sin(float(frame)), abs=1e-6)


@pytest.mark.parametrize("length", [1, 5, 8, 9, 30])
def test_interpolated_stretches_the_table_to_the_length_of_the_clip(length):
    positions = Positions(8, 6, "interpolated")
    expected = F.interpolate(positions.table.T[None], size=length, mode="linear", align_corners=False).mT
    torch.testing.assert_close(positions_of(positions, count(length)), expected)


def test_interpolated_does_not_look_at_the_numbers_of_the_frames():
    positions = Positions(4, 6, "interpolated")
    assert torch.equal(positions_of(positions, numbers(3, 9, 20, 21)), positions.table[None])
    assert torch.equal(positions_of(positions, numbers(3, 9, 20)), positions_of(positions, numbers(0, 1, 2)))


def test_index_takes_the_numbers_of_the_frames_however_long_the_clip_is():
    positions = Positions(4, 6, "index")
    index = torch.tensor([[0, 3, 50], [7, 7, 8]])
    found = positions_of(positions, index)
    assert found.shape == (2, 3, 6)
    for clip in range(2):
        torch.testing.assert_close(found[clip], sincos(index[clip], 6))
    torch.testing.assert_close(positions_of(positions, count(4))[0], positions.table)
    assert torch.equal(found[1, 0], found[1, 1])


@pytest.mark.parametrize("sampled", [(0, 3, 4, 11), (5,), (0, 11)])
def test_share_is_the_same_whether_all_frames_of_the_clip_are_seen_or_some(sampled):
    positions = Positions(4, 6, "share")
    whole = positions(count(12), torch.tensor([12]))
    torch.testing.assert_close(positions(numbers(*sampled), torch.tensor([12])), whole[:, list(sampled)])


def test_share_spans_the_table_from_the_first_to_the_last_frame_of_a_clip_of_any_length():
    positions = Positions(4, 6, "share")
    found = positions(torch.tensor([[0, 3, 6], [0, 1, 2]]), torch.tensor([7, 3]))
    assert found.shape == (2, 3, 6)
    torch.testing.assert_close(found[0], found[1])
    torch.testing.assert_close(found[0], sincos(torch.tensor([0, 1.5, 3]), 6))
    torch.testing.assert_close(positions(count(4), torch.tensor([4]))[0], positions.table)
    torch.testing.assert_close(positions(count(1), torch.tensor([1]))[0], positions.table[:1])


def test_none_adds_nothing():
    assert torch.equal(positions_of(Positions(4, 6, "none"), count(9)), torch.zeros(1, 9, 6))


def test_the_table_is_not_among_the_weights():
    assert Positions(4, 6, "interpolated").state_dict() == {}
