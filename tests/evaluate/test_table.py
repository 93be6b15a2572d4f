import re
from dataclasses import replace

import pytest

from byov.evaluate.frames import Score
from byov.evaluate.table import PUBLISHED, Row, Table, columns_ahead, mean_row, verdict
from byov.evaluate.tasks import EvaluationOptions, main_columns

MAIN = main_columns(EvaluationOptions())
SCORES = [column.score for column in MAIN]


def row(name="first", kind="run", value=0.5, scores=None):
    return Row(name, kind, dict.fromkeys(SCORES, Score(value)) | (scores or {}))


def table(*rows, title="title", **options):
    return Table(title, MAIN, rows, **options)


def cells(table, index=0):
    return table.measured[index][1]


def test_percent_has_two_digits_and_correlations_four():
    assert [cell.text for cell in cells(table(row(value=0.12345)))] == ["12.35"] * 6 + [
        "0.1235"
    ] * 2


def test_equal_footnotes_share_a_letter():
    missing = Score(None, missing="no exo test videos")
    gone = {"classification/ego2exo": missing, "classification/exo2ego": missing}
    shown = table(
        row(scores=gone),
        row("second", scores=gone | {"kendalls_tau/all": Score(0.1, remark="few pairs")}),
    )
    assert [cell.text for cell in cells(shown, 1)][:3] == ["50.00", "n/a", "n/a"]
    assert shown.footnotes == {"no exo test videos": "a", "few pairs": "b"}
    assert cells(shown, 0)[1].mark == cells(shown, 1)[2].mark == "a"
    many = [row(scores={"kendalls_tau/all": Score(0.1, remark=str(index))}) for index in range(28)]
    assert [table(*many).footnotes[text] for text in ("0", "25", "26", "27")] == [
        "a",
        "z",
        "aa",
        "ab",
    ]


def test_deviation_interval_and_best_value():
    score = Score(0.5, deviation=0.01, interval=(0.4, 0.625))
    shown = table(
        row(scores={"classification/regular": score}),
        row("worse", value=0.4),
        row("gone", value=None),
    )
    assert cells(shown)[0].text == "50.00 ± 1.00"
    assert cells(shown)[0].extra == ("[40.00, 62.50]",)
    assert [cells(shown, index)[0].is_best for index in range(3)] == [True, False, False]
    assert not cells(table(row()))[0].is_best


def test_published_rows_are_set_apart():
    published = Row("AE2", "published", {"classification/regular": Score(0.6623, remark="a slip")})
    ours = row("AE2", scores={"classification/regular": Score(0.6)})
    assert table(ours, published).published[0][1][0].extra == ("(ours -6.23)",)
    elsewhere = Row("other", "published", {"actions/regular": Score(0.1)})
    shown = table(row(), published, elsewhere)
    assert [one.name for one, _ in shown.published] == ["AE2"]
    assert [cell.text for cell in shown.published[0][1]] == ["66.23"] + ["-"] * 7
    for text, name in ((shown.to_markdown(), "AE2 (published)"), (shown.to_latex(), "AE2 &")):
        assert text.index(PUBLISHED) < text.index(name)


def test_notes_of_columns_come_first_and_once():
    columns = tuple(replace(column, note="of columns") for column in MAIN)
    noted = Table("t", columns, (row(),), ("of the table", "of columns"))
    assert noted.notes == ("of columns", "of the table")


def test_means_over_runs():
    mean = mean_row([row(value=0.4), row(value=0.6)], "Mean of 2 runs").scores[
        "classification/regular"
    ]
    assert (mean.value, mean.deviation) == (pytest.approx(0.5), pytest.approx(0.1 * 2**0.5))
    gone = Score(None, missing="no exo test videos")
    few = Score(0.2, remark="few pairs")
    assert (
        mean_row([row(), row(scores={"kendalls_tau/all": gone})], "Mean").scores["kendalls_tau/all"]
        == gone
    )
    assert (
        mean_row([row(), row(scores={"kendalls_tau/all": few})], "Mean")
        .scores["kendalls_tau/all"]
        .remark
    )


def test_scores_nest_as_in_the_golden_files():
    scores = {
        "retrieval/map@5/regular": Score(0.1),
        "progression/val": Score(None, missing="no phase labels"),
        "kendalls_tau/all": Score(0.2, pairs=3),
        "kendalls_tau/ego-exo": Score(0.3),
    }
    nested = Row("a", "run", scores).to_dict()
    assert nested["scores"] == {
        "retrieval": {"map@5": {"regular": 0.1}},
        "progression": {"val": None, "time_column": False},
        "kendalls_tau": 0.2,
        "kendalls_tau_by_views": {"ego-exo": 0.3},
    }
    assert nested["details"] == {
        "progression/val": {"missing": "no phase labels"},
        "kendalls_tau/all": {"pairs": 3},
    }


def test_markdown_has_equal_cells_in_every_line():
    text = table(
        row("a|b*c"), row("Time only", "time", 0.99), row("AE2", "published")
    ).to_markdown()
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in lines} == {10}
    assert r"a\|b\*c" in text


def test_latex_has_equal_cells_in_every_line_and_escapes_names():
    text = table(row("a_b & {c} \\d ~^"), row("AE2", "published"), title="50% & more").to_latex()
    rows = [
        line for line in text.splitlines() if line.endswith(r"\\") and "multicolumn" not in line
    ]
    assert {len(re.findall(r"(?<!\\)&", line)) for line in rows} == {8}
    assert r"a\_b \& \{c\} \textbackslash{}d \textasciitilde{}\textasciicircum{}" in text
    assert r"\caption{50\% \& more}" in text
    assert text.count("{") == text.count("}")


def test_latex_and_markdown_set_the_best_values_in_bold():
    score = Score(0.5, deviation=0.01)
    shown = table(row(value=0.4), row("best", scores={"classification/regular": score}))
    assert r"best & \textbf{50.00 $\pm$ 1.00} & \textbf{50.00} &" in shown.to_latex()
    assert "| best | **50.00 ± 1.00** | **50.00** |" in shown.to_markdown()


def test_latex_tables_have_a_label_and_fit_the_page():
    name = "demo-timeline: Timeline (efficientnet-lite0, frozen)"
    text = table(row(name), title="demo, test split: Phase tasks (2 videos, 9 frames)").to_latex()
    assert r"\label{tab:demo-test-split-phase-tasks}" in text
    assert r"\resizebox" in text
    lines = [line.partition(" &")[0] for line in text.splitlines() if "demo-timeline" in line]
    assert lines == ["demo-timeline: Timeline"]
    assert r"\quad (efficientnet-lite0, frozen) &" in text


def test_control_characters_are_not_printed():
    shown = table(row("evil\x1b]0;x\x07\n"), title="t\x1b[2J")
    for text in (shown.to_markdown(), shown.to_latex()):
        assert "\x1b" not in text
        assert "\x07" not in text


def test_columns_ahead_counts_f1_and_map_that_both_rows_have():
    clock = row("Time only", "time", 0.6, {"retrieval/map@5/regular": Score(0.1)})
    scores = {
        "classification/regular": Score(0.7),
        "classification/ego2exo": Score(0.6),
        "retrieval/map@10/regular": Score(None, missing="no labels"),
        "retrieval/map@5/regular": Score(0.9),
        "kendalls_tau/all": Score(0.9),
    }
    assert columns_ahead(row(scores=scores), clock) == (1, 5)
    assert columns_ahead(clock, row(scores=scores)) == (3, 5)


def test_the_verdict_counts_trained_rows_over_protocols():
    clock = row("Time only", "time", 0.6)
    frozen = row("features", "frozen", 0.9)
    first, second = (
        replace(row(name, value=value), origin={"run": name})
        for name, value in (("first", 0.7), ("second", 0.6))
    )
    untrained = replace(
        mean_row([first, second], "Untrained"),
        origin={"runs": [{"run": "first", "untrained": True}]},
    )
    standard = [frozen, clock, untrained, first, second]
    rows = {"standard": standard, "trimmed": [*standard[:3], replace(second, name="first"), second]}
    rows["online"] = standard  # columns of the online protocol are not counted
    start = "first is ahead of Time only in 6 of 12 columns of F1 and mAP"
    assert verdict(rows) == f"{start}, second in 0."
    assert verdict(rows, "first") == f"{start}."
    mean = mean_row([first, second], "mean")
    assert verdict({"standard": [clock, first, second, mean]}).startswith(
        "mean is ahead of Time only in 6 of 6"
    )
    assert verdict({"standard": [first]}) == verdict({"standard": [clock, frozen]}) == ""
    few = Row("few", "run", {"kendalls_tau/all": Score(0.9)})
    assert verdict({"standard": [clock, few]}) == ""
