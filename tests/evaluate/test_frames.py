from dataclasses import replace

import numpy as np
import pytest

from byov.evaluate.frames import Frames


@pytest.fixture
def frames(join):
    """Videos with 3, 1 and 2 frames, where the embedding of a frame is its index."""
    return join(
        [[[0], [1], [2]], [[3]], [[4], [5]]],
        [[0, 0, 1], [1], [0, 1]],
        [True, False, True],
        recordings=np.array([0, 1, 2]),
        actions=np.eye(3, dtype=bool),
    )


def test_select_by_index_keeps_the_given_order(frames):
    chosen = frames.select(np.array([2, 0]))
    assert chosen.embeddings[:, 0].tolist() == [4, 5, 0, 1, 2]
    assert chosen.labels.tolist() == [0, 1, 0, 0, 1]
    assert chosen.lengths.tolist() == [2, 3]
    assert chosen.actions.argmax(axis=1).tolist() == [2, 0]
    assert frames.select(np.zeros(3, bool)).embeddings.shape == (0, 1)


@pytest.mark.parametrize(
    ("stride", "kept"), [(1, [0, 1, 2, 3, 4, 5]), (2, [0, 2, 3, 4]), (5, [0, 3, 4])]
)
def test_stride_starts_at_the_first_frame_of_each_video(frames, stride, kept):
    strided = frames.every(stride)
    assert strided.embeddings[:, 0].tolist() == kept
    assert strided.labels.tolist() == frames.labels[kept].tolist()


@pytest.mark.parametrize(
    ("lengths", "labels", "is_ego"),
    [
        ([2, 2], 5, [True, False]),
        ([5, 0], 5, [True, False]),
        ([2, 3], 4, [True, False]),
        ([2, 3], 5, [True]),
    ],
)
def test_inconsistent_arrays_are_rejected(lengths, labels, is_ego):
    with pytest.raises(ValueError, match=r"embeddings|lengths|labels"):
        Frames(
            np.zeros((5, 2), np.float32),
            np.zeros(labels, np.int64),
            np.array(lengths),
            np.array(is_ego),
        )


def test_unlabeled_frames_and_videos(frames):
    partly = replace(frames, labels=np.array([-1, 0, 1, -1, 0, -1]))
    assert partly.has_labels.tolist() == [True, False, True]
    assert partly.labeled.embeddings[:, 0].tolist() == [0, 1, 2, 4, 5]
    assert partly.labeled.recordings.tolist() == [0, 1]
    kept = partly.labeled_frames
    assert kept.embeddings[:, 0].tolist() == [1, 2, 4]
    assert kept.lengths.tolist() == [2, 1]
    assert kept is partly.labeled_frames
    assert frames.labeled_frames is frames
    bare = replace(frames, labels=None)
    assert bare.labeled_frames is bare
    with pytest.raises(ValueError, match="no phase labels"):
        _ = bare.phases


def test_recordings_are_merged(frames):
    merged = replace(
        frames, is_ego=np.array([True, True, False]), recordings=np.array([0, 0, 1])
    ).merge_recordings()
    assert merged.lengths.tolist() == [4, 2]
    assert merged.is_ego.tolist() == [True, False]
