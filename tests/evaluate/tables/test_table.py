import io
import re
from dataclasses import replace

import pytest
from rich.console import Console

from byov.cli.score_table import print_table
from byov.evaluate.scores import Row, Score, mean_row, nested_scores
from byov.evaluate.table import ABSENT, TIME_COLUMN, build_table, latex, layouts, letter, markdown
from byov.evaluate.task import EvaluationOptions
from byov.evaluate.tasks import TASKS

MAIN = layouts(TASKS, EvaluationOptions())[0]
SCORES = [column.score for column in MAIN.columns]


def row(name="first", kind="run", value=0.5, **changes):
    scores = dict.fromkeys(SCORES, Score(value)) | {key.replace("_at_", "/"): of for key, of in changes.items()}
    return Row(name, kind, scores)


def texts(table):
    return [[cell.text for cell in cells] for _, cells in table.measured]


def drawn(table, width=100):
    stream = io.StringIO()
    print_table(table, Console(file=stream, width=width))
    return stream.getvalue()


def test_the_main_table_has_the_papers_columns():
    assert SCORES == [
        "classification/regular",
        "classification/ego2exo",
        "classification/exo2ego",
        "retrieval/map@10/regular",
        "retrieval/map@10/ego2exo",
        "retrieval/map@10/exo2ego",
        "progression/val",
        "kendalls_tau/all",
    ]


def test_the_other_tables_follow_the_papers_appendix():
    _, retrieval, few_shot, actions, tau = layouts(TASKS, EvaluationOptions())
    assert [column.heading for column in few_shot.columns[:3]] == ["10%", "50%", "100%"]
    assert [column.score for column in retrieval.columns][2:4] == [
        "retrieval/map@15/regular",
        "retrieval/map@5/ego2exo",
    ]
    assert len(actions.columns) == 3
    assert [column.heading for column in tau.columns] == ["all pairs", "ego-ego", "ego-exo", "exo-ego", "exo-exo"]


def test_one_task_has_one_table():
    (layout,) = layouts(["retrieval"], EvaluationOptions(ks=(1, 3)))
    assert len(layout.columns) == 6
    (layout,) = layouts(["few-shot"], EvaluationOptions())
    assert len(layout.columns) == 9


def test_other_ks_take_the_place_of_10():
    wide = layouts(TASKS, EvaluationOptions(ks=(3, 7)))[0]
    assert "retrieval/map@3/regular" in [column.score for column in wide.columns]


def test_percent_with_two_digits_and_correlations_with_four():
    (cells,) = texts(build_table(MAIN, "", [row(value=0.12345)]))
    assert cells == ["12.35"] * 6 + ["0.1235"] * 2


def test_time_alone_stands_beside_what_it_saturates():
    rows = [row("Time only", "time", 0.95), row()]
    table = build_table(MAIN, "", rows)
    by_name = dict(table.measured)
    assert [cell.below for cell in by_name["first"]] == [()] * 6 + [("(0.9500)",)] * 2
    assert all(cell.below == () for cell in by_name["Time only"])
    assert table.column_marks[5:] == ("", "a", "b")
    assert "saturates phase progression" in table.footnotes[0][1]


def test_time_alone_stands_beside_what_no_embedding_betters():
    rows = [row("Time only", "time", 0.6), row(value=0.5), row("best", kendalls_tau_at_all=Score(0.7), value=0.5)]
    table = build_table(MAIN, "", rows)
    assert dict(table.measured)["first"][6].below == ("(0.6000)",)
    assert dict(table.measured)["first"][7].below == ()
    assert "gives as much phase progression as any embedding" in table.footnotes[0][1]


def test_without_time_only_nothing_stands_beside():
    assert all(cell.below == () for cell in build_table(MAIN, "", [row(value=0.99)]).measured[0][1])


def test_the_time_column_is_marked():
    table = build_table(MAIN, "", [row()], time_column=True)
    assert table.footnotes == (("a", TIME_COLUMN),)
    assert table.column_marks == ("",) * 6 + ("a", "")


def test_a_reason_is_told_once():
    gone = Score(None, missing="no exo test videos")
    changes = {"classification_at_ego2exo": gone, "classification_at_exo2ego": gone}
    table = build_table(MAIN, "", [row(**changes), row("second", **changes)])
    assert [cell.text for cell in table.measured[1][1]][:3] == ["50.00", "n/a", "n/a"]
    assert table.footnotes == (("a", "no exo test videos"),)
    assert table.measured[0][1][1].marks == table.measured[1][1][2].marks == "a"


def test_spread_and_interval():
    figure = Score(0.5, deviation=0.01, interval=(0.4, 0.625))
    cell = build_table(MAIN, "", [row(classification_at_regular=figure)]).measured[0][1][0]
    assert (cell.text, cell.below) == ("50.00 ± 1.00", ("[40.00, 62.50]",))


def test_published_rows_stand_apart_and_say_so():
    published = Row("AE2", "published", {"classification/regular": Score(0.6623, remark="a slip")})
    elsewhere = Row("other", "published", {"actions/regular": Score(0.1)})
    table = build_table(MAIN, "", [row()], [published, elsewhere])
    assert [name for name, _ in table.published] == ["AE2"]
    assert [cell.text for cell in table.published[0][1]] == ["66.23"] + [ABSENT] * 7
    assert "a slip" in table.footnotes[0][1]
    for text in (markdown(table), latex(table)):
        assert text.index("published in the paper, not measured here") < text.index("AE2 (published)")
    assert "published in the paper, not measured here" in " ".join(drawn(table).split())


def test_means_over_runs():
    mean = mean_row([row(value=0.4), row(value=0.6)], "Mean of 2 runs")
    figure = mean.scores["classification/regular"]
    assert figure.value == pytest.approx(0.5)
    assert figure.deviation == pytest.approx(0.1 * 2**0.5)
    gone = Score(None, missing="no exo test videos")
    lacking = mean_row([row(), row(kendalls_tau_at_all=gone)], "Mean")
    assert lacking.scores["kendalls_tau/all"] == gone


def test_a_mean_of_some_pairs_is_footnoted_and_counted_in_json():
    partial = Score(1.0, pairs=12, pairs_with_tau=2, remark="mean of 2 of 12 pairs; the others have none")
    of_run = row(kendalls_tau_at_all=partial)
    table = build_table(MAIN, "", [of_run, row("second")])
    assert table.footnotes == (("a", "mean of 2 of 12 pairs; the others have none"),)
    assert [cells[-1].marks for _, cells in table.measured] == ["a", ""]
    assert of_run.details()["kendalls_tau/all"] == {"pairs": 12, "pairs_with_tau": 2, "remark": partial.remark}
    assert mean_row([of_run, row("second")], "Mean").scores["kendalls_tau/all"].remark == partial.remark
    more = replace(partial, pairs_with_tau=5, remark="mean of 5 of 12 pairs; the others have none")
    mean = mean_row([row(kendalls_tau_at_all=more), row("second"), of_run], "Mean")
    assert mean.scores["kendalls_tau/all"].remark == "mean of 2 to 5 of 12 pairs; the others have none"


def test_scores_nest_as_in_the_golden_files():
    scores = {
        "retrieval/map@5/regular": Score(0.1),
        "kendalls_tau/all": Score(0.2),
        "kendalls_tau/ego-exo": Score(0.3),
    }
    assert nested_scores(scores) == {
        "retrieval": {"map@5": {"regular": 0.1}},
        "kendalls_tau": 0.2,
        "kendalls_tau_by_views": {"ego-exo": 0.3},
    }


@pytest.mark.parametrize("width", [20, 60, 100, 200])
def test_no_terminal_is_too_narrow_for_the_figures(width):
    wide = {f"{figure}": Score(-0.123456, deviation=0.5, interval=(-0.9, 0.9)) for figure in SCORES}
    text = drawn(build_table(MAIN, "title", [Row("a run with a long name indeed", "run", wide)]), width)
    assert text.count("-12.35 ± 50.00") == 6
    assert text.count("[-0.9000, 0.9000]") == 2
    assert "…" not in text


def test_columns_that_do_not_fit_follow_below_with_the_names():
    table = build_table(MAIN, "title", [row("first run"), row("Time only", "time", 0.99)])
    whole, folded = drawn(table, width=120).splitlines(), drawn(table, width=60).splitlines()
    assert max(map(len, folded)) <= 60
    assert sum(line.startswith("first run") for line in whole) == 1
    assert sum(line.startswith("first run") for line in folded) > 1
    for text in ("Exo2Ego", "all pairs", "progression"):
        assert "\n".join(whole).count(text) == "\n".join(folded).count(text)


def test_markdown_has_as_many_cells_in_each_line():
    table = build_table(MAIN, "t", [row("a|b*c"), row("Time only", "time", 0.99)], [row("AE2", "published")])
    lines = [line for line in markdown(table).splitlines() if line.startswith("|")]
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in lines} == {10}
    assert r"a\|b\*c" in markdown(table)


def test_latex_has_as_many_cells_in_each_line_and_escapes_names():
    table = build_table(MAIN, "50% & more", [row("a_b & {c} \\d ~^")], [row("AE2", "published")])
    text = latex(table)
    rows = [line for line in text.splitlines() if line.endswith(r"\\") and "multicolumn" not in line]
    assert {len(re.findall(r"(?<!\\)&", line)) for line in rows} == {8}
    assert r"a\_b \& \{c\} \textbackslash{}d \textasciitilde{}\textasciicircum{}" in text
    assert r"\caption{50\% \& more}" in text
    assert text.count("{") == text.count("}")


def test_no_name_steers_the_terminal():
    table = build_table(MAIN, "t\x1b[2J", [row("evil\x1b]0;x\x07\n[bold]")])
    for text in (drawn(table), markdown(table), latex(table)):
        assert "\x1b" not in text
        assert "\x07" not in text
    assert "[bold]" in drawn(table, width=200)


def test_letters_do_not_run_out():
    assert [letter(index) for index in (0, 25, 26, 27)] == ["a", "z", "aa", "ab"]
