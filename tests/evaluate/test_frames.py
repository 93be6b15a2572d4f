from dataclasses import replace

import numpy as np
import pytest

from byov.evaluate.frames import Frames, Missing, absent


@pytest.fixture
def frames(join):
    """Videos of 3, 1 and 2 frames; a frame's embedding is its index."""
    return join([[[0], [1], [2]], [[3]], [[4], [5]]], [[0, 0, 1], [1], [0, 1]], [True, False, True])


def test_indices(frames):
    assert frames.starts.tolist() == [0, 3, 4]
    assert frames.video_of_frame.tolist() == [0, 0, 0, 1, 2, 2]
    assert frames.index_in_video.tolist() == [0, 1, 2, 0, 0, 1]


@pytest.mark.parametrize("videos", [[2, 0], np.array([2, 0])])
def test_select_by_index_gives_the_order(frames, videos):
    chosen = frames.select(np.asarray(videos))
    assert chosen.embeddings[:, 0].tolist() == [4, 5, 0, 1, 2]
    assert chosen.labels.tolist() == [0, 1, 0, 0, 1]
    assert chosen.lengths.tolist() == [2, 3]
    assert chosen.names == ("video2", "video0")


def test_views(frames):
    assert frames.of_view(True).embeddings[:, 0].tolist() == [0, 1, 2, 4, 5]
    assert frames.of_view(False).names == ("video1",)
    assert frames.of_view(None) is frames


def test_nothing_can_be_selected(frames):
    assert frames.select(np.zeros(3, bool)).embeddings.shape == (0, 1)


@pytest.mark.parametrize(("stride", "kept"), [(1, [0, 1, 2, 3, 4, 5]), (2, [0, 2, 3, 4]), (5, [0, 3, 4])])
def test_every_stride_starts_anew_in_each_video(frames, stride, kept):
    strided = frames.every(stride)
    assert strided.embeddings[:, 0].tolist() == kept
    assert strided.labels.tolist() == frames.labels[kept].tolist()
    assert strided.lengths.sum() == len(kept)


@pytest.mark.parametrize(
    ("lengths", "labels", "is_ego"),
    [([2, 2], 5, [True, False]), ([5, 0], 5, [True, False]), ([2, 3], 4, [True, False]), ([2, 3], 5, [True])],
)
def test_arrays_that_do_not_add_up_are_refused(lengths, labels, is_ego):
    with pytest.raises(ValueError, match=r"embeddings|lengths|labels"):
        Frames(
            np.zeros((5, 2), np.float32), np.zeros(labels, np.int64), np.array(lengths), np.array(is_ego), ("a", "b")
        )


def test_phases_of_frames_without_labels(join):
    with pytest.raises(ValueError, match="without phase labels"):
        _ = join([[[0]]], None, [True]).phases


def test_why_a_view_is_absent():
    assert absent(np.array([True]), False, "test") == Missing("no exo test videos")
    assert absent(np.array([False]), True, "training") == Missing("no ego training videos")
    assert absent(np.array([], bool), None, "test") == Missing("no test videos")
    assert absent(np.array([True]), True, "test") is None
    assert absent(np.array([True]), None, "test") is None


def test_frames_and_videos_without_labels(frames):
    partly = replace(frames, labels=np.array([-1, 0, 1, -1, 0, -1]))
    assert partly.without_labels == ("video1",)
    assert partly.labeled.embeddings[:, 0].tolist() == [0, 1, 2, 4, 5]
    kept = partly.labeled_frames
    assert kept.embeddings[:, 0].tolist() == [1, 2, 4]
    assert kept.labels.tolist() == [0, 1, 0]
    assert kept.lengths.tolist() == [2, 1]
    assert kept is partly.labeled_frames
    assert frames.labeled_frames is frames
    bare = replace(frames, labels=None)
    assert bare.labeled_frames is bare
    assert bare.without_labels == frames.names
