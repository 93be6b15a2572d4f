"""What the figures' lines, points and pictures say, by their data; nothing is rendered."""

from dataclasses import replace

import numpy as np
import pytest
from matplotlib.colors import to_hex, to_rgba

from byov.records import UNLABELED
from byov.report.content import FrameRef, Similarity
from byov.report.paper.grid import FrameGrid
from byov.report.paper.pictures import draw_failures, draw_tokens
from byov.report.paper.plots import draw_curves, draw_projection, draw_similarity
from byov.report.paper.style import QUERY, phase_color


def named_lines(legend, axes):
    """The lines of the axes by what the legend says of their color, each as (x, y)."""
    texts = [text.get_text() for text in legend.get_texts()]
    return {
        name: [line.get_data() for line in axes.lines if to_hex(line.get_color()) == to_hex(handle.get_color())]
        for name, handle in zip(texts, legend.legend_handles, strict=True)
    }


@pytest.fixture
def content(made_up):
    return made_up()


@pytest.mark.parametrize(("panel", "title"), [(0, "Frozen: CLIP"), (1, "Trained")])
def test_points_of_the_projection_are_those_of_its_title(content, panel, title):
    axes = draw_projection(content, content.projection).axes[panel]
    assert axes.get_title() == title
    refs, points = content.projection.frames, content.projection.maps[panel].points
    for view, drawn in zip(("ego", "exo"), axes.collections, strict=True):
        chosen = [index for index, ref in enumerate(refs) if content.videos[ref.video].view == view]
        np.testing.assert_array_equal(drawn.get_offsets(), points[chosen])
        phases = [content.videos[refs[index].video].labels[refs[index].frame] for index in chosen]
        np.testing.assert_allclose(drawn.get_facecolors(), [to_rgba(phase_color(phase), 0.85) for phase in phases])


@pytest.fixture
def thinned():
    """Every third frame down, every fifth across; nothing is symmetrical."""
    rows, columns = tuple(range(0, 16, 3)), tuple(range(2, 20, 5))  # 0 ... 15, 2 ... 17
    distances = np.random.default_rng(0).uniform(size=(6, 4)).astype(np.float32)
    path = np.array([(0, 0), (1, 0), (2, 1), (3, 1), (4, 2), (5, 3)])
    return Similarity(0, rows, 2, columns, distances, path, np.array([3, 0, 2, 1, 3, 0]), 0.5)


def test_frames_of_a_thinned_matrix_are_those_of_the_video(content, thinned):
    figure = draw_similarity(content, thinned)
    axes = figure.axes[0]
    lines = named_lines(figure.legends[0], axes)
    (path,), (nearest,) = lines["warp path"], lines["nearest frame"]
    np.testing.assert_array_equal(path, [(2, 2, 7, 7, 12, 17), (0, 3, 6, 9, 12, 15)])
    np.testing.assert_array_equal(nearest, [(17, 2, 12, 7, 17, 2), (0, 3, 6, 9, 12, 15)])
    (image,) = axes.images
    np.testing.assert_array_equal(image.get_array(), thinned.distances)
    assert image.origin == "upper"  # the first row at the top
    assert image.get_extent() == [-0.5, 19.5, 16.5, -1.5]
    assert (*axes.get_xlim(), *axes.get_ylim()) == (-0.5, 19.5, 16.5, -1.5)
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("exo/002, frame", "ego/000, frame")


@pytest.mark.parametrize("matrix", ["whole", "thinned"])
def test_phase_boundaries_are_where_the_videos_change(content, thinned, matrix):
    """ego/000: from frames 6 and 11 on; exo/002: from frames 7 and 14 on."""
    figure = draw_similarity(content, thinned if matrix == "thinned" else content.similarity)
    lines = named_lines(figure.legends[0], figure.axes[0])["phase boundary"]
    down = [y[0] for x, y in lines if y[0] == y[1]]
    across = [x[0] for x, y in lines if x[0] == x[1]]
    assert (down, across) == ([5.5, 10.5], [6.5, 13.5])


def test_where_labels_break_off_no_phase_begins(content):
    """Of ego/000 the last phase is not labeled, of exo/002 the frames around the first change."""
    ego, exo = (content.videos[index] for index in (content.similarity.rows, content.similarity.columns))
    cut = {
        ego.name: ego.labels[:11] + (UNLABELED,) * 5,
        exo.name: exo.labels[:6] + (UNLABELED,) * 3 + exo.labels[9:],
    }
    videos = tuple(replace(video, labels=cut.get(video.name, video.labels)) for video in content.videos)
    figure = draw_similarity(replace(content, videos=videos), content.similarity)
    lines = named_lines(figure.legends[0], figure.axes[0])["phase boundary"]
    assert [(x[0], y[0]) for x, y in lines] == [(0, 5.5), (13.5, 0)]


def test_curves_and_the_kept_epoch(content):
    curves = content.curves
    losses, validation = draw_curves(curves).axes
    drawn = {**named_lines(losses.get_legend(), losses), **named_lines(validation.get_legend(), validation)}
    expected = {curve.name: (curve.epochs, curve.values) for curve in (*curves.losses, *curves.validation)}
    (kept,) = drawn.pop("model kept: epoch 11")
    assert kept[0] == [11, 11]
    assert drawn.keys() == expected.keys()
    for name, ((epochs, values),) in drawn.items():
        np.testing.assert_array_equal((epochs, values), expected[name])


def test_ratios_stand_beside_their_pictures(content):
    clip = content.tokens[0]
    figure = draw_tokens(FrameGrid(content), clip)
    ratios = {text.get_text(): text.get_position()[1] for text in figure.texts}
    for ratio, pictures in zip(clip.ratios, clip.pictures, strict=True):
        for picture in pictures:
            (axes,) = [each for each in figure.axes if (each.images[0].get_array() == picture).all()]
            assert axes.get_position().y0 < ratios[f"{ratio:g}"] < axes.get_position().y1
    times = sorted((text.get_position()[0], text.get_text()) for text in figure.texts if text.get_text().endswith(" s"))
    assert [time for _, time in times] == ["0.00 s", "0.60 s", "1.20 s"]


def test_the_reference_is_framed_and_its_similarity_drawn(content):
    failures = content.failures
    figure = draw_failures(content, FrameGrid(content), failures)
    *pictures, plot = figure.axes
    row = [axes for axes in pictures if axes.get_position().y1 == pictures[0].get_position().y1]
    assert len(row) == len(failures.worst[0].frames)
    framed = [axes.spines["left"].get_visible() for axes in row]
    assert framed == [frame == failures.reference.frame for frame in failures.worst[0].frames]
    assert to_hex(row[2].spines["left"].get_edgecolor()) == QUERY
    np.testing.assert_array_equal(row[2].images[0].get_array(), FrameGrid(content).picture(failures.reference))
    (softmax, uniform, reference) = (line.get_data() for line in plot.lines)
    np.testing.assert_array_equal(softmax, (range(16), failures.similarity))
    assert list(uniform[1]) == [1 / 16] * 2
    assert (*reference[0], *reference[1]) == (8, failures.similarity[8])


def test_below_the_worst_videos_stands_what_they_are_matched_to(content):
    worst = replace(content.failures.worst[0], partner=2, matched=(0, 4, 8, 12), partner_tau=-0.5)
    figure = draw_failures(content, FrameGrid(content), replace(content.failures, worst=(worst,)))
    *pictures, _ = figure.axes
    above, below = pictures[:4], pictures[4:]
    for frame, upper, lower in zip(worst.matched, above, below, strict=True):
        np.testing.assert_array_equal(lower.images[0].get_array(), FrameGrid(content).picture(FrameRef(2, frame)))
        assert lower.get_position().x0 == upper.get_position().x0
        assert lower.get_position().y1 < upper.get_position().y0
    assert "nearest in\nexo/002\nτ = −0.50" in [text.get_text() for text in figure.texts]  # noqa: RUF001
