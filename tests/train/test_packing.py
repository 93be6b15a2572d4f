import pytest
import torch

from byov.train.networks import Group, group, pack, unpack, within


def sequences(*shapes):
    return [torch.randn(*shape, 3) for shape in shapes]


@pytest.mark.parametrize(
    "shapes", [[(1, 4)], [(2, 4), (2, 3)], [(1, 2), (3, 2), (2, 5)], [(2, 0), (2, 4)], [(3, 0), (2, 0)]]
)
def test_what_is_packed_unpacks_to_itself(shapes):
    packed_ones = sequences(*shapes)
    rows = pack(packed_ones)
    assert rows.shape == (sum(batch * length for batch, length in shapes), 3)
    for before, after in zip(packed_ones, unpack(rows, packed_ones), strict=True):
        assert torch.equal(before, after)


def test_rows_of_another_width_unpack_to_the_same_shapes():
    like = sequences((2, 4), (1, 3))
    assert [part.shape for part in unpack(torch.zeros(11, 7), like)] == [(2, 4, 7), (1, 3, 7)]


def test_neighbors_of_the_same_length_and_kind_are_one_group():
    tensors = sequences((1, 4), (2, 4), (1, 3), (1, 4), (1, 4))
    assert group(tensors) == [Group(3, 4), Group(1, 3), Group(2, 4)]
    causal = [True, True, False, False, True]
    assert group(tensors, causal) == [
        Group(3, 4, causal=True),
        Group(1, 3),
        Group(1, 4),
        Group(1, 4, causal=True),
    ]


def test_within_hides_what_is_further_away_than_the_window():
    index = torch.tensor([0, 1, 5, 6, 0, 4, 8, 9, 2, 3])
    first, second = within([Group(2, 4), Group(1, 2)], index, 2)
    assert (first.batch, first.length, first.rows) == (2, 4, 8)
    assert first.mask.shape == (2, 1, 4, 4)
    near = torch.tensor(
        [
            [[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 1], [0, 0, 1, 1]],
            [[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 1], [0, 0, 1, 1]],
        ],
        dtype=torch.bool,
    )
    assert torch.equal(first.mask[:, 0], near)
    assert second.mask.all()


def test_the_window_counts_the_last_frame_that_it_reaches():
    (part,) = within([Group(1, 3)], torch.tensor([0, 4, 9]), 4)
    assert part.mask[0, 0, 0].tolist() == [True, True, False]
