"""The figures as files: which there are, that they open, and that they hold what the content says."""

import re
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from byov.errors import ApplyError
from byov.report.content import Unavailable
from byov.report.paper.figures import write_figures

NAMES = (
    "curves",
    "tsne",
    "retrieval_ego2exo",
    "retrieval_exo2ego",
    "tokens_ego",
    "tokens_exo",
    "similarity",
    "failures",
)
HOSTILE = (r"ego/$\frac{1", "ego/_\x1b[31m\n日本🙂", "exo/" + "long" * 100, "exo/100%&$x$")


def check_opens(paths):
    for path in paths:
        if path.suffix == ".png":
            with Image.open(path) as image:
                image.load()
                width, height = np.array(image.size) / 300
                assert image.info["dpi"] == pytest.approx((300, 300), abs=0.1)
                assert "Software" not in image.info
            assert 3.24 < width < 6.885  # from one column to the page
            assert height < 8.885
        else:
            content = path.read_bytes()
            assert content.startswith(b"%PDF")
            assert b"/Type3" not in content
            assert b"/FontFile2" in content  # TrueType, embedded
            assert b"CreationDate" not in content


@pytest.fixture(scope="module")
def written(made_up, tmp_path_factory):
    """Every figure of a content that has every part: (content, folder, paths)."""
    content, folder = made_up(), tmp_path_factory.mktemp("figures") / "new" / "folder"
    return content, folder, write_figures(content, folder)


@pytest.mark.slow
def test_every_part_gives_a_png_and_a_pdf(written):
    _, folder, paths = written
    assert paths == [folder / f"{name}.{kind}" for name in NAMES for kind in ("png", "pdf")]
    assert sorted(folder.iterdir()) == sorted(paths)
    check_opens(paths)


@pytest.mark.slow
def test_the_same_content_gives_the_same_bytes(written, tmp_path):
    content, _, paths = written
    for before, again in zip(paths, write_figures(content, tmp_path), strict=True):
        assert before.read_bytes() == again.read_bytes(), again.name


def test_parts_that_are_not_there_give_no_file(nothing, made_up, tmp_path):
    assert write_figures(nothing, tmp_path / "none") == []
    assert list((tmp_path / "none").iterdir()) == []
    only_curves = replace(nothing, curves=made_up().curves)
    assert [path.name for path in write_figures(only_curves, tmp_path)] == ["curves.png", "curves.pdf"]


def test_strips_without_any_picture_give_no_file(nothing, made_up, tmp_path):
    content = made_up()
    unseen = tuple(replace(video, sheet=Unavailable("moved away")) for video in content.videos)
    assert write_figures(replace(nothing, videos=unseen, strips=content.strips), tmp_path) == []
    some = (*unseen[:2], *content.videos[2:])
    paths = write_figures(replace(nothing, videos=some, strips=content.strips), tmp_path)
    assert [path.stem for path in paths[::2]] == ["retrieval_ego2exo", "retrieval_exo2ego"]


@pytest.mark.slow
def test_hostile_names_without_phases(made_up, tmp_path):
    content = made_up(names=HOSTILE, labels=False)
    curves = replace(content.curves, losses=tuple(replace(c, name=f"_$\\bad{c.name}") for c in content.curves.losses))
    maps = tuple(replace(drawn, title="$\x00_{日") for drawn in content.projection.maps)
    projection = replace(content.projection, maps=maps)
    paths = write_figures(replace(content, curves=curves, projection=projection), tmp_path)
    assert [path.stem for path in paths[::2]] == list(NAMES)
    check_opens(paths)


def test_hostile_names_of_phases_and_phases_without_a_name(made_up, nothing, tmp_path):
    content = made_up()
    named = replace(nothing, phases=("$\\alpha", "_注ぐ\n"), projection=content.projection, strips=content.strips)
    paths = write_figures(named, tmp_path)  # labels go up to 2
    assert len(paths) == 6
    check_opens(paths)


@pytest.mark.slow
def test_one_video(made_up, tmp_path):
    paths = write_figures(made_up(frames=(9,)), tmp_path)
    assert [path.stem for path in paths[::2]] == ["curves", "tsne", "tokens_ego", "failures"]
    check_opens(paths)


@pytest.mark.slow
def test_videos_of_one_frame(made_up, tmp_path):
    content = made_up(frames=(1, 1, 1))
    one_epoch = tuple(replace(curve, epochs=(1,), values=(float("nan"),)) for curve in content.curves.losses)
    curves = replace(content.curves, losses=one_epoch, validation=(), kept_epoch=None)
    similarity = replace(content.similarity, tau=None)
    paths = write_figures(replace(content, curves=curves, similarity=similarity), tmp_path)
    assert [path.stem for path in paths[::2]] == [name for name in NAMES if name != "curves"]  # of no number
    check_opens(paths)


@pytest.mark.slow
def test_many_phases_and_losses_still_fit(made_up, nothing, tmp_path):
    content = made_up(frames=(60, 1, 60))
    videos = tuple(replace(video, labels=tuple(range(video.frames))) for video in content.videos)
    phases = tuple(f"a phase with quite a long name, number {index}" for index in range(60))
    losses = content.curves.losses * 10
    parts = {"curves": replace(content.curves, losses=losses), "projection": content.projection}
    paths = write_figures(replace(nothing, videos=videos, phases=phases, **parts), tmp_path)
    assert len(paths) == 4  # matplotlib would warn of a layout that does not fit, and warnings are errors


@pytest.mark.parametrize("below", ["", "deeper/still"])
def test_a_file_where_the_folder_should_be(nothing, tmp_path, below):
    (tmp_path / "figures").write_text("mine")
    with pytest.raises(ApplyError, match="is not a folder") as raised:
        write_figures(nothing, tmp_path / "figures" / below)
    assert "\n" not in str(raised.value)
    assert (tmp_path / "figures").read_text() == "mine"


def test_a_figure_that_fails_leaves_nothing_half_written(made_up, nothing, tmp_path):
    (tmp_path / "curves.pdf").mkdir()  # cannot be replaced by a file
    with pytest.raises(OSError, match="directory"):
        write_figures(replace(nothing, curves=made_up().curves), tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["curves.pdf", "curves.png"]


def test_settings_of_the_user_neither_matter_nor_change(written, nothing, tmp_path):
    import matplotlib

    content, _, paths = written
    mine = {"text.usetex": True, "font.size": 20, "pdf.fonttype": 3, "savefig.bbox": "tight"}
    with matplotlib.rc_context(mine):
        (png, pdf) = write_figures(replace(nothing, curves=content.curves), tmp_path)
        assert {key: matplotlib.rcParams[key] for key in mine} == mine
    assert [png.read_bytes(), pdf.read_bytes()] == [path.read_bytes() for path in paths[:2]]


def test_phase_colors_are_those_of_the_page():
    from importlib.resources import files

    from byov.report.paper.style import PHASES, QUERY, RIGHT, WRONG, phase_color

    style = files("byov.report.page").joinpath("page.css").read_text(encoding="utf-8")
    light = dict(reversed(re.findall(r"--([\w-]+): *(#\w+);", style)))  # the first of each name
    assert [light[f"phase-{index}"] for index in range(len(PHASES))] == list(PHASES)
    assert (light["query"], light["good"], light["retrieved"]) == (QUERY, RIGHT, WRONG)
    assert phase_color(8) == phase_color(0) == PHASES[0]
