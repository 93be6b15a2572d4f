"""byov-report as it is run."""

import shutil

import pytest


@pytest.fixture
def quick(project, keep_videos):
    """A project whose report takes little time: two test videos."""
    keep_videos(project, "train_ego_0", "train_exo_0", "test_ego_1", "test_exo_0")
    return project


def test_the_page_is_written_and_named_last(quick, byov_report):
    ran = byov_report(quick)
    assert ran.code == 0, ran.err
    assert ran.out.splitlines() == ["runs/first/report.html"]
    assert "run: first, the only one" in ran.err
    page = (quick.run / "report.html").read_text()
    assert page.startswith("<!DOCTYPE html>")
    assert str(quick.root) not in page


@pytest.mark.slow
def test_the_same_run_gives_the_same_bytes(quick, byov_report):
    assert byov_report(quick, "--run", "first").code == 0
    before = (quick.run / "report.html").read_bytes()
    (quick.run / "report.html").unlink()
    assert byov_report(quick, "--run", "first").code == 0
    assert (quick.run / "report.html").read_bytes() == before


def test_another_run_stands_beside_it(quick, byov_report):
    other = shutil.copytree(quick.run, quick.runs_dir / "second")
    ran = byov_report(quick, "--run", "first", "--compare", "second", "--json")
    assert ran.code == 0, ran.err
    assert ran.json["report"] == "runs/first/report.html"
    assert ran.json["missing"] == {}
    assert ran.json["bytes"] == (quick.run / "report.html").stat().st_size
    page = (quick.run / "report.html").read_text()
    assert "Nearest by first" in page
    assert "Nearest by second" in page
    assert "Trained: second" in page
    assert not (other / "report.html").exists()


def test_videos_that_were_moved_are_missed_and_found(quick, byov_report, tmp_path):
    (quick.root / "videos").rename(tmp_path / "moved")
    ran = byov_report(quick, "--json")
    assert ran.json["missing"].keys() == {"strips", "tokens"}
    assert ran.err.count("test_ego_1.mp4 is no longer where it was") == 1
    assert byov_report(quick, "--json", "--videos", tmp_path / "moved").json["missing"] == {}


@pytest.mark.slow
def test_figures_for_a_paper_are_named_before_the_page(quick, byov_report):
    ran = byov_report(quick, "--figures", "figures")
    *figures, page = ran.out.splitlines()
    assert page == "runs/first/report.html"
    assert {figure.rsplit(".", 1)[1] for figure in figures} == {"png", "pdf"}
    assert all((quick.root / figure).stat().st_size for figure in figures)


@pytest.mark.slow
def test_figures_that_are_there_are_replaced_only_if_told_so(quick, byov_report):
    figures = quick.root / "figures"
    figures.mkdir()
    for name in ("tsne.png", "tokens_exo.pdf", "mine.png"):
        (figures / name).write_text("earlier")
    ran = byov_report(quick, "--figures", figures)
    assert (ran.code, ran.out) == (2, "")
    assert "tsne.png exists. Pass --overwrite" in ran.err
    (quick.root / "videos").rename(quick.root / "moved")
    assert byov_report(quick, "--figures", figures, "--overwrite").code == 0
    assert (figures / "tsne.png").read_bytes().startswith(b"\x89PNG")
    assert not (figures / "tokens_exo.pdf").exists(), "of a part that cannot be drawn any more"
    assert (figures / "mine.png").read_text() == "earlier"


def test_a_folder_in_the_place_of_the_page_is_named(quick, byov_report):
    (quick.run / "report.html").mkdir()
    ran = byov_report(quick)
    assert (ran.code, ran.out) == (2, "")
    assert "runs/first/report.html is a folder" in ran.err


def test_a_damaged_record_of_the_training_costs_the_curves_only(quick, byov_report):
    (quick.run / "metrics.jsonl").write_text("{")
    ran = byov_report(quick, "--json")
    assert ran.json["missing"] == {"curves": "metrics.jsonl is damaged (not JSON lines)"}


def test_the_page_of_an_unfinished_run_says_so(quick, byov_report):
    metrics = quick.run / "metrics.jsonl"
    metrics.write_text("".join(metrics.read_text().splitlines(keepends=True)[:-1]))
    (quick.run / "model-last.safetensors").unlink()
    ran = byov_report(quick)
    assert ran.code == 0, ran.err
    page, said = (quick.run / "report.html").read_text(), "unfinished, stopped at epoch 2 of 3: its model is the best"
    header, _, rest = page.partition("</header>")
    scores, _, footer = rest.partition("<footer")
    assert [said in part for part in (header, scores, footer)] == [True, True, True]


def test_without_embeddings_the_evaluator_s_line_says_what_to_do(quick, byov_report):
    shutil.rmtree(quick.run / "embeddings")
    ran = byov_report(quick)
    assert (ran.code, ran.out) == (2, "")
    (line,) = [line for line in ran.err.splitlines() if line.startswith("error")]
    assert "byov-train --run first --embed-only" in line
    assert not (quick.run / "report.html").exists()


def test_embeddings_of_the_training_videos_are_missed_too(quick, byov_report):
    (quick.run / "embeddings" / "ego" / "train_ego_0.h5").unlink()
    ran = byov_report(quick, "--json")
    assert ran.code == 0
    assert ran.json["missing"].keys() == {"tables"}
    assert "byov-train --run first --embed-only" in ran.json["missing"]["tables"]


def test_without_sub_clips_only_the_trimmed_protocol_is_left_out(quick, byov_report):
    shutil.rmtree(quick.run / "embeddings-trimmed")
    ran = byov_report(quick, "--json")
    assert (ran.code, ran.json["missing"]) == (0, {})
    assert "without the trimmed protocol" in ran.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--run", "nope"), "no such run; choose one of first"),
        (("--run", "../first"), "cannot be a file name"),
        (("--videos", "nowhere"), "--videos nowhere: no such folder"),
        (("--figures", "videos/tea.csv"), "videos/tea.csv is a file, not a folder"),
        (("--figures", "videos/tea.csv/x"), "videos/tea.csv is a file, not a folder"),
        (("--split", "val"), "tea has no val videos; it has test, train"),
        (("--runs-dir", "nowhere"), "nowhere: no run here; make one with byov-train"),
        (("--features-dir", "nowhere"), "nowhere/tea/manifest.json: no such file; run byov-extract"),
    ],
)
def test_mistakes_are_one_line(quick, byov_report, arguments, said):
    ran = byov_report(quick, *arguments)
    assert (ran.code, ran.out) == (2, "")
    (line,) = [line for line in ran.err.splitlines() if line.startswith("error")]
    assert said in line
