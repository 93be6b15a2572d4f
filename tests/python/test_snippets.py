"""The Python code of the documentation runs, page by page."""

import io
import json
import shutil
from contextlib import redirect_stdout

import pytest
from tests.python.markdown import ROOT, blocks

import byov

UNAVAILABLE = "published.ckpt"  # a checkpoint of the published code


@pytest.fixture
def namespace(project, make_video):
    """The runs, videos and variables that the pages mention."""
    for run in ("demo-paper-r0.3-s0", "pouring-paper-r0.3-s0"):
        shutil.copytree(project / "runs/demo-paper", project / "runs" / run)
    for seed, video in enumerate(("head", "tripod")):
        make_video(project / f"{video}.mp4", 110, seed)  # 11 seconds, longer than the events on the page
    byov.load_run("demo-paper").embed_video("head.mp4").write(project / "new.npz")
    return {"features": byov.load_features("demo")["pour_ego_015"]}


def run_page(page, namespace):
    snippets = blocks((ROOT / "docs" / page).read_text(encoding="utf-8"), "python")
    for snippet in snippets:
        paragraphs = [part for part in snippet.split("\n\n") if UNAVAILABLE not in part]
        exec(compile("\n\n".join(paragraphs), f"docs/{page}", "exec"), namespace)
    return len(snippets)


def test_python_page(project):
    """Also if the cache has features of a second encoder."""
    shutil.copytree(project / "features/demo/random--tiny", project / "features/demo/imagenet--other")
    namespace = {}
    assert run_page("python.md", namespace) >= 1
    assert namespace["nearest"].shape == (12,)
    assert namespace["video"].embedding.shape == (12, 32)


@pytest.mark.parametrize(("page", "name"), [("cache.md", "tokens"), ("training.md", "model")])
def test_other_pages(namespace, page, name):
    assert run_page(page, namespace) >= 1
    assert name in namespace


def test_all_pages_with_python_are_tested():
    pages = {page.name for page in (ROOT / "docs").glob("*.md") if blocks(page.read_text(encoding="utf-8"), "python")}
    pages.discard("sweeps.md")  # starts worker processes; tests/cluster covers it
    assert pages <= {"python.md", "cache.md", "training.md"}
    assert not blocks((ROOT / "README.md").read_text(encoding="utf-8"), "python")


@pytest.mark.slow
def test_notebook(tmp_path, monkeypatch, demo_videos):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    demo_videos(tmp_path / "datasets/demo")
    byov.extract_features("demo", encoder="random/tiny")
    notebook = json.loads((ROOT / "docs/quickstart.ipynb").read_text(encoding="utf-8"))
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert len({cell["id"] for cell in notebook["cells"]}) == len(notebook["cells"])
    assert not any(cell["outputs"] for cell in cells)  # stored outputs would become outdated
    namespace, output = {}, io.StringIO()
    for cell in cells:
        with redirect_stdout(output):
            exec(compile("".join(cell["source"]), f"quickstart.ipynb {cell['id']}", "exec"), namespace)
    assert (namespace["again"] == namespace["ego"]).all()
    assert "kendalls_tau/all" in output.getvalue()
