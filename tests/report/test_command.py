"""End-to-end tests of byov-report."""

import os
import re
import shutil
import signal
import subprocess
import threading
from pathlib import Path

import pytest

from byov.cache.digests import seal_json
from byov.cache.runs import read_config
from byov.report.figures import write_figures
from byov.report.page.render import render_page

ROOT = Path(__file__).parents[2]


@pytest.fixture
def quick(project):
    """Project with two test videos."""
    return project.keep_videos("train_ego_0", "train_exo_0", "test_ego_1", "test_exo_0")


def test_the_page_is_written(quick, byov_report):
    ran = byov_report(quick)
    assert ran.code == 0, ran.err
    assert ran.out.splitlines()[-1] == "runs/first/report.html"
    assert all(text in ran.out for text in ("standard protocol", "Time only", "columns"))
    page = (quick.run / "report.html").read_text()
    assert page.startswith("<!DOCTYPE html>")
    assert str(quick.root) not in page


def test_the_output_folder_is_checked_before_work_starts(quick, byov_report):
    assert "/proc: not writable" in byov_report(quick, "--out", "/proc/new/page.html").error()


def test_compare(quick, byov_report):
    other = shutil.copytree(quick.run, quick.runs_dir / "second")
    ran = byov_report(
        quick, "--run", "first", "--compare", "second", "--json", "--out", "new/mine.html"
    )
    assert ran.code == 0, ran.err
    assert ran.json["report"] == "new/mine.html"
    assert ran.json["missing"] == {}
    assert ran.json["bytes"] == (quick.root / "new" / "mine.html").stat().st_size
    page = (quick.root / "new" / "mine.html").read_text()
    assert all(
        text in page for text in ("Aligned by first", "Aligned by second", "Trained: second")
    )
    assert not (other / "report.html").exists()
    assert not (quick.run / "report.html").exists()


def test_moved_videos(quick, byov_report, tmp_path):
    (quick.root / "videos").rename(tmp_path / "moved")
    ran = byov_report(quick, "--json")
    assert ran.json["missing"].keys() == {"strips", "tokens"}
    assert ran.err.count("test_ego_1.mp4 was not found") == 1
    summary = byov_report(quick, "--json", "--videos", tmp_path / "moved", "--out", "folder").json
    assert (summary["missing"], summary["report"]) == ({}, "folder/report.html")


@pytest.mark.slow
def test_figures_are_replaced_only_with_overwrite(quick, byov_report):
    figures = quick.root / "figures"
    figures.mkdir()
    for name in ("tsne.png", "tokens_exo.pdf", "mine.png"):
        (figures / name).write_text("earlier")
    ran = byov_report(quick, "--figures", figures)
    assert (ran.code, ran.out) == (2, "")
    assert "tsne.png" in ran.err
    (quick.root / "videos").rename(quick.root / "moved")
    ran = byov_report(quick, "--figures", figures, "--overwrite")
    assert ran.code == 0
    assert ran.out.splitlines()[-1] == "runs/first/report.html"
    assert (figures / "tsne.png").read_bytes().startswith(b"\x89PNG")
    assert not (figures / "tokens_exo.pdf").exists(), "it would show an earlier report"
    assert (figures / "mine.png").read_text() == "earlier"


def test_an_unfinished_run_is_flagged(quick, byov_report):
    metrics = quick.run / "metrics.jsonl"
    metrics.write_text("".join(metrics.read_text().splitlines(keepends=True)[:-1]))
    (quick.run / "model-last.safetensors").unlink()
    config = read_config(quick.run)
    del config["training"]["files_sha256"]
    (quick.run / "config.json").write_bytes(seal_json(config))
    assert byov_report(quick).code == 0
    header, _, scores = (quick.run / "report.html").read_text().partition("</header>")
    assert all("unfinished, stopped at epoch 2 of 3" in part for part in (header, scores))


def test_without_embeddings(quick, byov_report):
    (quick.run / "embeddings" / "ego" / "train_ego_0.h5").unlink()
    ran = byov_report(quick, "--json")
    assert ran.json["missing"].keys() == {"predictions", "tables"}
    assert "byov-train --run first --embed-only" in ran.json["missing"]["tables"]
    (quick.run / "report.html").unlink()
    shutil.rmtree(quick.run / "embeddings")
    assert "byov-train --run first --embed-only" in byov_report(quick).error()
    assert not (quick.run / "report.html").exists()


@pytest.mark.parametrize(
    ("arguments", "fact"),
    [
        (("--run", "nope"), "first"),
        (("--run", "../first"), "../first"),
        (("--videos", "nowhere"), "'--videos': dir 'nowhere'"),
        (("--figures", "videos/tea.csv"), "videos/tea.csv"),
        (("--out", "videos/tea.csv"), "videos/tea.csv"),
        (("--split", "val"), "no val videos"),
        (("--runs-dir", "nowhere"), "byov-train"),
        (("--features-dir", "nowhere"), "byov-extract"),
    ],
)
def test_usage_errors_are_one_line(quick, byov_report, arguments, fact):
    assert fact in byov_report(quick, *arguments).error()


@pytest.mark.slow
def test_the_report_of_a_run_opens_without_errors(project, byov_report, open_file):
    assert byov_report(project).code == 0
    tab = open_file(project.run / "report.html")
    assert tab.messages() == []
    assert tab.requests() == [tab.url]
    assert (
        tab.value("document.querySelectorAll('.unavailable:not([hidden]), .missing').length") == 0
    )
    images = "[...document.images]"
    assert tab.value(f"{images}.every(image => image.complete && image.naturalWidth > 0)")
    before = [tab.text(f"#{side}-time") for side in ("query", "run-0")]
    tab.value("document.getElementById('scrub').focus()")
    tab.press("End")
    after = [tab.text(f"#{side}-time") for side in ("query", "run-0")]
    assert all(one != other for one, other in zip(before, after, strict=True))
    tab.mouse("mouseMoved", *tab.center(".cloud .points > *"))
    tab.settle()
    assert tab.value("document.querySelector('#card-tile').videoWidth > 0")


@pytest.mark.slow
def test_reports_are_made_silently_in_threads(shared_project, collected, tmp_path, capfd):
    handlers = {number: signal.getsignal(number) for number in signal.valid_signals()}
    capfd.readouterr()
    pages = []
    for work in (
        lambda: pages.append(render_page(shared_project.collect())),
        lambda: write_figures(collected, tmp_path / "figures"),
    ):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert capfd.readouterr() == ("", "")
    pages.append(render_page(collected))
    # The bytes of H.264 clips vary between runs on some CPUs.
    texts = {re.sub(r"[A-Za-z0-9+/]{400,}=*", "", page) for page in pages}
    assert len(texts) == 1
    assert (tmp_path / "figures" / "tsne.pdf").is_file()
    assert {number: signal.getsignal(number) for number in signal.valid_signals()} == handlers


@pytest.mark.slow
def test_make_demo(tmp_path, open_file):
    if not (ROOT / ".venv" / ".ready").exists():
        pytest.skip("make would set up an environment first")
    folders = {
        f"BYOV_{name.upper()}": str(tmp_path / name) for name in ("datasets", "features", "runs")
    }
    demo = shutil.copytree(ROOT / "data" / "demo", tmp_path / "datasets" / "demo")
    header, *rows = (demo / "videos.csv").read_text().splitlines()
    kept = [row for row in rows if re.match(r"train/.*_1[89]\.|(val|test)/.*_00\.", row)]
    (demo / "videos.csv").write_text("\n".join((header, *kept)) + "\n")
    environment = {
        key: value
        for key, value in os.environ.items()
        if key not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")
    }

    def make_demo(*variables):
        command = ["make", "demo", *variables]
        ran = subprocess.run(
            command,
            cwd=ROOT,
            env=environment | folders,
            capture_output=True,
            text=True,
            check=False,
        )
        assert ran.returncode == 0, ran.stderr
        return ran.stdout.splitlines()

    lines = make_demo(
        "DEMO_BYOV=--latent 32 --depth 1 --decoder-depth 1 --heads 4 --epochs 2 --batch-size 4 "
        "--select both",
        "DEMO_TIMELINE=--method timeline --latent 32 --epochs 2",
    )
    rows = (
        "efficientnet-lite0 features, merged 0.3 ",
        "Time only",
        "Untrained (demo-byov)",
        "demo-byov: BYOV, paper",
    )
    (verdict,) = [line for line in lines if "is ahead of Time only in" in line]
    for row in (*rows, "demo-timeline: Timeline"):
        assert sum(line.startswith(row) for line in lines if line != verdict) == 3, (
            "one for each protocol"
        )
    report = tmp_path / "runs" / "demo-timeline" / "report.html"
    assert str(report) in lines
    annotations = tmp_path / "runs" / "demo-annotations" / "annotations.csv"
    assert len(annotations.read_text().splitlines()) == 1 + 16
    tab = open_file(report)
    assert tab.messages() == []
    assert tab.requests() == [tab.url]
    assert (
        tab.value("document.querySelectorAll('.unavailable:not([hidden]), .missing').length") == 0
    )
    assert str(report) in make_demo(), "finished steps are skipped"
