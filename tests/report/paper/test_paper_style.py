"""Text in figures: as it is, or spelt out, and never wider than its place."""

import matplotlib
import pytest

from byov.report.paper.style import FONT, fitted, fonts, legend_columns, literal, paper_style


@pytest.mark.parametrize(
    ("text", "drawn"),
    [
        ("ego/004", "ego/004"),
        (r"$\frac{1}{2}$_%", r"$\frac{1}{2}$_%"),
        ("Übung τ ✓", "Übung τ ✓"),
        ("a\nb\x1b[31m", r"a\nb\x1b[31m"),
        ("日本", r"\u65e5\u672c"),  # not in the font
        ("\udcff", r"\udcff"),  # of a file name that is not UTF-8
    ],
)
def test_what_cannot_be_drawn_is_spelt_out(text, drawn):
    assert literal(text) == drawn


def test_what_the_first_font_lacks_another_that_is_there_draws():
    """Of the fonts that matplotlib brings along, STIX has more mathematics."""
    from matplotlib.font_manager import findfont, get_font

    lacking = next(
        iter(set(get_font(findfont("STIXGeneral")).get_charmap()) - set(get_font(findfont(FONT)).get_charmap()))
    )
    assert "STIXGeneral" in fonts()
    assert literal(chr(lacking)) == (chr(lacking) if chr(lacking).isprintable() else repr(chr(lacking))[1:-1])


def test_too_long_a_name_keeps_its_end():
    assert fitted("pour_exo_015", 2) == "pour_exo_015"
    short = fitted("a very long name of a video/pour_exo_015", 0.8)
    assert short.startswith("…")
    assert "pour_exo_015".endswith(short[1:])
    assert len(short) > 6
    assert fitted("x" * 100_000, 0.8).startswith("…x")


def test_nothing_fits_nowhere():
    assert fitted("pour", 0.01) == "…"


def test_legends_have_as_many_columns_as_fit():
    assert legend_columns(["ego", "exo", "pour"]) == 3
    assert legend_columns(["ego"] * 50) < 20
    assert legend_columns(["a name that takes about half of the page"] * 5) in (2, 3)
    assert legend_columns(["x" * 5000] * 3) == 1


def test_the_style_ends_with_its_block():
    before = matplotlib.rcParams["pdf.fonttype"], matplotlib.rcParams["text.parse_math"]
    with paper_style():
        assert (matplotlib.rcParams["pdf.fonttype"], matplotlib.rcParams["text.parse_math"]) == (42, False)
    assert (matplotlib.rcParams["pdf.fonttype"], matplotlib.rcParams["text.parse_math"]) == before
