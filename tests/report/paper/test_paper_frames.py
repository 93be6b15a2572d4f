"""The pictures in the figures are the right tiles, in their places, with their edges."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from PIL import Image, ImageColor

from byov.report.content import FrameRef, Strip
from byov.report.paper.figures import write_figures
from byov.report.paper.grid import FrameGrid
from byov.report.paper.style import PLAIN, QUERY, RIGHT, WRONG


def pixels(path):
    with Image.open(path) as image:
        return np.asarray(image.convert("RGB")).astype(np.int16)


def box_of(picture, color):
    """(top, bottom, left, right) of all pixels of nearly that color."""
    alike = (np.abs(picture - np.array(color, np.int16)) <= 4).all(axis=-1)
    rows, columns = np.flatnonzero(alike.any(axis=1)), np.flatnonzero(alike.any(axis=0))
    assert len(rows), f"no pixel of color {color}"
    top, bottom, left, right = rows[0], rows[-1], columns[0], columns[-1]
    assert alike[top : bottom + 1, left : right + 1].mean() > 0.98  # one rectangle, filled
    return top, bottom, left, right


def edges(picture, box, distance=4):
    """The colors just outside a rectangle: above, below, left, right."""
    top, bottom, left, right = box
    row, column = (top + bottom) // 2, (left + right) // 2
    beside = [(top - distance, column), (bottom + distance, column), (row, left - distance), (row, right + distance)]
    return [tuple(picture[place]) for place in beside]


@pytest.fixture(scope="module")
def retrieval(made_up, nothing, tmp_path_factory):
    content = made_up()
    png, *_ = write_figures(replace(nothing, strips=content.strips), tmp_path_factory.mktemp("retrieval"))
    return content, pixels(png)


def test_retrieved_frames_stand_right_of_their_query(retrieval, color_of):
    content, picture = retrieval
    strips = [strip for strip in content.strips if content.videos[strip.query.video].view == "ego"]
    assert len(strips) == 2
    bottom_of_last_row = 0
    for strip in strips:
        boxes = [box_of(picture, color_of(ref.video, ref.frame)) for ref in (strip.query, *strip.retrieved)]
        lefts, tops = [box[2] for box in boxes], [box[0] for box in boxes]
        assert lefts == sorted(lefts)
        assert len(set(lefts)) == len(lefts)
        assert min(tops) > bottom_of_last_row
        assert np.ptp([box[1] for box in boxes]) <= 2  # they stand on one line
        bottom_of_last_row = max(box[1] for box in boxes)


def test_queries_are_framed_blue_right_matches_green_and_wrong_ones_red(nothing, tmp_path, color_of):
    strip = Strip(FrameRef(0, 0), (FrameRef(2, 0), FrameRef(3, 12)))  # of the first phase, and of the last
    picture = pixels(write_figures(replace(nothing, strips=(strip,)), tmp_path)[0])
    for ref, expected in zip((strip.query, *strip.retrieved), (QUERY, RIGHT, WRONG), strict=True):
        around = edges(picture, box_of(picture, color_of(ref.video, ref.frame)))
        assert around == [ImageColor.getrgb(expected)] * 4


def test_without_phases_matches_are_neither_right_nor_wrong(made_up, nothing, tmp_path, color_of):
    bare = made_up(labels=False)
    picture = pixels(write_figures(replace(nothing, videos=bare.videos, strips=bare.strips), tmp_path)[0])
    ref = bare.strips[0].retrieved[0]
    assert edges(picture, box_of(picture, color_of(ref.video, ref.frame))) == [ImageColor.getrgb(PLAIN)] * 4


def test_pictures_keep_their_shape(retrieval, color_of):
    """Ego tiles are 48 x 36, exo tiles 36 x 48; the edge covers a little of each."""
    content, picture = retrieval
    for ref, ratio in ((content.strips[0].query, 48 / 36), (content.strips[0].retrieved[0], 36 / 48)):
        top, bottom, left, right = box_of(picture, color_of(ref.video, ref.frame))
        assert (right - left) / (bottom - top) == pytest.approx(ratio, rel=0.05)


def test_a_frame_that_is_on_no_sheet_is_said_to_have_no_picture(made_up, nothing, tmp_path, color_of):
    content = made_up()
    strip = Strip(FrameRef(0, 2), (FrameRef(2, 3), FrameRef(3, 4)))  # odd frames are on no sheet
    picture = pixels(write_figures(replace(nothing, strips=(strip,)), tmp_path)[0])
    assert FrameGrid(content).picture(strip.retrieved[0]) is None
    seen = [box_of(picture, color_of(*place)) for place in ((0, 2), (3, 4))]
    gray = (picture == ImageColor.getrgb("#eeeeee")).all(axis=-1)
    empty = np.flatnonzero(gray.sum(axis=0) > 100)  # columns of the gray square
    assert seen[0][3] < empty[0] < empty[-1] < seen[1][2]


def test_every_tile_of_a_sheet_is_found(made_up, color_of):
    content = made_up()
    frames = FrameGrid(content)
    for index, video in enumerate(content.videos):
        for frame in video.sheet.frames:
            picture = frames.picture(FrameRef(index, frame))
            assert picture.shape == (video.sheet.tile_height, video.sheet.tile_width, 3)
            assert np.abs(picture - np.array(color_of(index, frame))).max() <= 4


def test_failures_show_the_worst_videos_one_below_the_other(made_up, nothing, tmp_path, color_of):
    failures = made_up().failures
    picture = pixels(write_figures(replace(nothing, failures=failures), tmp_path)[0])
    boxes = [[box_of(picture, color_of(worst.video, frame)) for frame in worst.frames] for worst in failures.worst]
    for above, below in pairwise(boxes):
        assert max(bottom for _, bottom, _, _ in above) < min(top for top, _, _, _ in below)
    for row in boxes:
        assert [left for _, _, left, _ in row] == sorted(left for _, _, left, _ in row)
    reference = failures.reference
    around = edges(picture, box_of(picture, color_of(reference.video, reference.frame)))
    assert around == [ImageColor.getrgb(QUERY)] * 4


def test_tokens_have_a_row_for_each_ratio_and_a_column_for_each_frame(made_up, nothing, tmp_path):
    clip = made_up().tokens[0]
    ratios, frames = clip.pictures.shape[:2]
    assert (ratios, frames) == (3, 3)
    flat = np.empty_like(clip.pictures)
    colors = {(row, column): (60 * row + 40, 25 * column + 60, 90) for row in range(ratios) for column in range(frames)}
    for place, color in colors.items():
        flat[place] = color
    picture = pixels(write_figures(replace(nothing, tokens=(replace(clip, pictures=flat),)), tmp_path)[0])
    boxes = {place: box_of(picture, color) for place, color in colors.items()}
    for row, column in boxes:
        assert boxes[row, column][0] == pytest.approx(boxes[row, 0][0], abs=1)
        assert boxes[row, column][2] == pytest.approx(boxes[0, column][2], abs=1)
    tops, lefts = [boxes[row, 0][0] for row in range(ratios)], [boxes[0, column][2] for column in range(frames)]
    assert tops == sorted(set(tops))
    assert lefts == sorted(set(lefts))
