"""The Python of the documentation runs, one page after the other, in a project where what it names is there."""

import io
import json
import shutil
from contextlib import redirect_stdout

import pytest
from tests.python.markdown import ROOT, blocks

import byov

NOT_AT_HAND = "published.ckpt"  # of the published code; tests/train/test_official.py reads such a file


@pytest.fixture
def named(project, make_video):
    """What the pages call their runs and videos."""
    for run in ("demo-paper-r0.3-s0", "pouring-paper-r0.3-s0"):
        shutil.copytree(project / "runs/demo-paper", project / "runs" / run)
    for seed, video in enumerate(("head", "tripod")):
        make_video(project / f"{video}.mp4", 110, seed)  # 11 seconds: the events of the page are within
    byov.load_run("demo-paper").embed_video("head.mp4").write(project / "new.npz")
    return {"features": byov.load_features("demo")["pour_ego_015"]}


def run_page(page, namespace):
    found = blocks((ROOT / "docs" / page).read_text(encoding="utf-8"), "python")
    for snippet in found:
        paragraphs = [part for part in snippet.split("\n\n") if NOT_AT_HAND not in part]
        exec(compile("\n\n".join(paragraphs), f"docs/{page}", "exec"), namespace)
    return len(found)


def test_the_page_on_python_runs_from_its_first_line_to_its_last(project):
    """Also where make demo has left features of another encoder."""
    shutil.copytree(project / "features/demo/random--tiny", project / "features/demo/imagenet--other")
    namespace = {}
    assert run_page("python.md", namespace) >= 5
    assert namespace["nearest"].shape == (12,)
    assert namespace["video"].embedding.shape == (12, 32)


@pytest.mark.parametrize(
    ("page", "name"), [("cache.md", "tokens"), ("training.md", "model"), ("your-own-videos.md", "aligned")]
)
def test_other_pages_run_with_what_they_name(named, page, name):
    assert run_page(page, named) >= 1
    assert name in named


def test_no_page_has_python_that_is_not_run():
    pages = {page.name for page in (ROOT / "docs").glob("*.md") if blocks(page.read_text(encoding="utf-8"), "python")}
    assert pages == {"python.md", "cache.md", "training.md", "your-own-videos.md"}
    assert not blocks((ROOT / "README.md").read_text(encoding="utf-8"), "python")


@pytest.mark.slow
def test_the_notebook_runs_from_its_first_cell_to_its_last(tmp_path, monkeypatch, demo_videos):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    demo_videos(tmp_path / "datasets/demo")
    byov.extract_features("demo", encoder="random/tiny")  # as docs/python.md has it
    notebook = json.loads((ROOT / "docs/quickstart.ipynb").read_text(encoding="utf-8"))
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert len({cell["id"] for cell in notebook["cells"]}) == len(notebook["cells"])
    assert not any(cell["outputs"] for cell in cells)  # outputs grow old, and the test does not see them
    namespace, printed = {}, io.StringIO()
    for cell in cells:
        with redirect_stdout(printed):
            exec(compile("".join(cell["source"]), f"quickstart.ipynb {cell['id']}", "exec"), namespace)
    assert namespace["again"].shape == namespace["ego"].shape
    assert (namespace["again"] == namespace["ego"]).all()
    assert "kendalls_tau/all" in printed.getvalue()
