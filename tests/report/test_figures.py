"""Tests of the figures for papers: their files and contents."""

import io
import re
from dataclasses import replace
from importlib.resources import files

import matplotlib
import numpy as np
import pytest
from matplotlib.colors import to_hex, to_rgba
from PIL import Image
from scipy.spatial.distance import cdist
from tests.report.made_up import make_content, unlabeled, without_parts

from byov.apply.align import dtw_path
from byov.report import figures, style
from byov.report.content import FIGURES, FrameRef
from byov.report.figures import write_figures
from byov.report.style import fit_text, phase_color

HOSTILE_NAMES = (r"ego/$\frac{1", "ego/_\x1b[31m\n日本🙂", "exo/" + "long" * 100, "exo/100%&$x$")

# Files


def check_files(paths):
    for path in paths:
        if path.suffix == ".png":
            with Image.open(path) as image:
                image.load()
                width, height = np.array(image.size) / 300
                assert image.info["dpi"] == pytest.approx((300, 300), abs=0.1)
                assert "Software" not in image.info
            assert 3.24 < width < 6.885  # from the column width to the page width
            assert height < 8.885
        else:
            data = path.read_bytes()
            assert data.startswith(b"%PDF")
            assert b"/Type3" not in data
            assert b"/FontFile2" in data  # an embedded TrueType font
            assert b"CreationDate" not in data


def stems(paths):
    return [path.stem for path in paths[::2]]


@pytest.fixture(scope="module")
def written(content, tmp_path_factory):
    return write_figures(content, tmp_path_factory.mktemp("figures") / "new" / "folder")


@pytest.mark.slow
def test_every_part_gives_a_png_and_a_pdf(written):
    folder = written[0].parent
    assert written == [folder / f"{name}.{kind}" for name in FIGURES for kind in ("png", "pdf")]
    assert sorted(folder.iterdir()) == sorted(written)
    check_files(written)


@pytest.mark.slow
def test_the_same_content_gives_the_same_bytes(written, content, tmp_path):
    mine = {"text.usetex": True, "font.size": 20, "pdf.fonttype": 3, "savefig.bbox": "tight"}
    with matplotlib.rc_context(mine):  # the user's settings are neither used nor changed
        again = write_figures(content, tmp_path)
        assert {key: matplotlib.rcParams[key] for key in mine} == mine
    assert [path.read_bytes() for path in again] == [path.read_bytes() for path in written]


def test_missing_parts_give_no_file(content, tmp_path):
    assert write_figures(without_parts(content), tmp_path / "none") == []
    assert stems(write_figures(without_parts(content, "curves"), tmp_path)) == [
        "curves",
        "diagnostics",
    ]


@pytest.mark.slow
@pytest.mark.parametrize("labels", [False, True])
def test_hostile_names(content, tmp_path, labels):
    videos = tuple(
        replace(video, name=name) for video, name in zip(content.videos, HOSTILE_NAMES, strict=True)
    )
    losses = tuple(curve._replace(name=f"_$\\bad{curve.name}") for curve in content.curves.losses)
    curves = replace(content.curves, losses=losses)
    projection = replace(
        content.projection,
        maps=tuple(("$\x00_{日", points) for _, points in content.projection.maps),
    )
    hostile = replace(
        content,
        videos=videos,
        curves=curves,
        projection=projection,
        phases=("$\\alpha", "_注ぐ\n", "%"),
    )
    paths = write_figures(hostile if labels else unlabeled(hostile), tmp_path)
    assert stems(paths) == list(FIGURES)
    check_files(paths)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("frames", "names"),
    [
        (
            (9,),
            [
                "tsne",
                "tokens_ego",
                "failures",
                "scores",
                "curves",
                "diagnostics",
                "softmax",
                "progress",
            ],
        ),
        ((1, 1, 1), list(FIGURES)),
    ],
)
def test_few_and_short_videos(tmp_path, frames, names):
    content = make_content(frames)
    paths = write_figures(
        replace(content, curves=replace(content.curves, validation=(), kept_epoch=None)), tmp_path
    )
    assert stems(paths) == names
    check_files(paths)


# Frames


def assert_shows(axes, content, ref):
    video = content.videos[ref.video]
    expected = np.asarray(Image.open(io.BytesIO(video.pictures[ref.frame])))
    np.testing.assert_array_equal(axes.images[0].get_array(), expected)


def test_retrieved_frames_follow_their_query(content):
    # The last one has no picture.
    strip = (FrameRef(0, 3), FrameRef(2, 0), FrameRef(3, 63), FrameRef(2, 4))
    colors = [to_rgba(color) for color in (style.QUERY, style.RIGHT, style.WRONG, style.RIGHT)]
    marks = ["", " ✓", " ✗", " ✓"]
    for shown in (content, unlabeled(content)):
        axes = figures.draw_retrieval(shown, [strip]).axes
        for ref, each in zip(strip[:3], axes, strict=False):
            assert_shows(each, content, ref)
        assert [text.get_text() for text in axes[3].texts] == ["no picture"]
        assert [each.spines["left"].get_edgecolor() for each in axes] == colors
        times = ["ego/000\n0.30 s", "exo/000\n0.00 s", "exo/001\n6.30 s", "exo/000\n0.40 s"]
        assert [each.get_xlabel() for each in axes] == [
            f"{time}{mark}" for time, mark in zip(times, marks, strict=True)
        ]
        colors = [colors[0], *[to_rgba(style.FAINT)] * 3]
        marks = [""] * 4


# Plots


def named_lines(legend, axes):
    """Map each name in the legend to the matching lines of the axes as (x, y)."""
    names = [text.get_text() for text in legend.get_texts()]
    return {
        name: [
            line.get_data()
            for line in axes.lines
            if to_hex(line.get_color()) == to_hex(handle.get_color())
        ]
        for name, handle in zip(names, legend.legend_handles, strict=True)
    }


def test_the_alignment_has_the_frame_numbers_of_the_videos(content):
    """Check distances, paths and phase boundaries (frames 20 and 40 of ego/000, 17 and 34 of
    exo/000).
    """
    (run,) = content.vectors
    figure = figures.draw_alignment(content, run, 0, 2)
    axes = figure.axes[0]
    rows = np.array(content.videos[0].samples)
    columns = np.array(content.videos[2].samples)
    distances = cdist(run.embeddings[0], run.embeddings[2])
    np.testing.assert_array_equal(axes.collections[0].get_array(), distances)
    lines = named_lines(figure.legends[0], axes)
    path = dtw_path(run.embeddings[0], run.embeddings[2])
    np.testing.assert_array_equal(lines["warp path"], [[columns[path[:, 1]], rows[path[:, 0]]]])
    np.testing.assert_array_equal(
        lines["nearest frame"], [[columns[distances.argmin(axis=1)], rows]]
    )
    assert axes.yaxis_inverted()
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("exo/000, frame", "ego/000, frame")
    boundaries = [(x[0], y[0]) for x, y in lines["phase boundary"]]
    assert boundaries == [(0, 19.5), (0, 39.5), (16.5, 0), (33.5, 0)]


def test_curves_and_the_kept_epoch(content):
    curves = content.curves
    losses, validation = figures.draw_curves(curves).axes
    drawn = {
        **named_lines(losses.get_legend(), losses),
        **named_lines(validation.get_legend(), validation),
    }
    (kept,) = drawn.pop("saved model: epoch 21")
    assert kept[0] == [21, 21]
    expected = {
        curve.name: (curve.epochs, curve.values) for curve in (*curves.losses, *curves.validation)
    }
    assert drawn.keys() == expected.keys()
    for name, ((epochs, values),) in drawn.items():
        np.testing.assert_array_equal((epochs, values), expected[name])


def test_diagnostics_distinguish_changed_contexts_and_trivial_predictors(content):
    curves = content.curves.diagnostics
    (axes,) = figures.draw_diagnostics(curves).axes
    for line, curve in zip(axes.lines, curves, strict=True):
        np.testing.assert_array_equal(line.get_data(), (curve.epochs, curve.values))
    assert [line.get_linestyle() for line in axes.lines] == ["-", "--", ":"]


def test_failures_draw_matches(content):
    failures = content.failures
    worst = content.failures.worst[0]
    axes = figures.draw_failures(content, replace(failures, worst=(worst,))).axes
    for pair, above, below in zip(worst.pairs, axes[:4], axes[4:], strict=True):
        assert_shows(above, content, pair[0])
        assert_shows(below, content, pair[1])
        assert above.spines["left"].get_visible() == (pair[0] == failures.reference)
    assert axes[4].get_ylabel() == "nearest in\nexo/000\nτ = 0.11"


def test_progress_labels_are_drawn_below_their_frames(content):
    *frames, plot = figures.draw_progress(content.progress[:1]).axes
    np.testing.assert_array_equal(plot.lines[0].get_ydata(), content.progress[0].labels)
    np.testing.assert_array_equal(plot.lines[1].get_data(), [[0, 29], [0, 1]])
    for axes, frame, picture in zip(frames, (3, 15, 27), content.progress[0].pictures, strict=True):
        assert axes.get_title() == str(frame)
        np.testing.assert_array_equal(axes.images[0].get_array(), picture)


# Style


def test_long_names_keep_their_end():
    assert fit_text("pour_exo_015", 2) == "pour_exo_015"
    short = fit_text("a very long name of a video/pour_exo_015", 0.8)
    assert short.startswith("…")
    assert "pour_exo_015".endswith(short[1:])
    assert len(short) > 6
    assert fit_text("pour", 0.01) == "…"
    assert fit_text("a\nb\x1b[31m", 2) == r"a\nb\x1b[31m"


def test_colors_are_those_of_the_page():
    css = files("byov.report.page").joinpath("base.css").read_text(encoding="utf-8")
    # Keep the first value of each name.
    light = dict(reversed(re.findall(r"--([\w-]+): *(#\w+);", css)))
    assert [light[f"phase-{index}"] for index in range(len(style.PHASES))] == list(style.PHASES)
    assert (light["query"], light["good"], light["retrieved"]) == (
        style.QUERY,
        style.RIGHT,
        style.WRONG,
    )
    assert phase_color(8) == phase_color(0) == style.PHASES[0]
