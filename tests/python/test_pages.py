"""Tests that the commands, links and paths in README and docs exist and that their Python code
runs.
"""

import doctest
import io
import json
import re
import shlex
import shutil
import tomllib
from contextlib import redirect_stdout
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest
import typer.main
from tests.python.conftest import write_demo_videos, write_gradient

import byov
from byov.cli.app import ClickException

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "CHANGELOG.md",
    *sorted((ROOT / "docs").glob("*.md")),
]
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_SPAN = re.compile(r"`([^`]+)`")
_LINK = re.compile(r"\]\(([^()\s]+)\)")
_HEREDOC = re.compile(r"<<'(\w+)'(.*?)\n.*?^\1$", re.MULTILINE | re.DOTALL)
# Matches up to the end of a command.
_ARGUMENTS = re.compile(r"""(?:"[^"\n]*"|'[^'\n]*'|[^"';|&)\n#]|(?<!\s)#)*""")
MAKE_TARGETS = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
UNAVAILABLE = "published.ckpt"  # checkpoint of the published code, which is not available here


def blocks(text, language):
    """Return the code blocks in the given language."""
    return [body for name, body in _BLOCK.findall(text) if name == language]


def shell_commands(text, name):
    """Return the words of every shell-block command whose name matches the pattern `name`."""
    shell = "\n".join(_HEREDOC.sub(r"\2", body) for body in blocks(text, "sh")).replace("\\\n", " ")
    return list(_commands(shell, rf"(?:^|[\s(;])(?:\S+/)?({name})(?=[\s)]|$)"))


def mentioned_commands(text, name):
    """Return the words of every matching command in inline code, such as `byov-train --method
    tcc`.
    """
    spans = "\n".join(" ".join(span.split()) for span in _SPAN.findall(_BLOCK.sub("", text)))
    return list(_commands(spans, rf"^({name})(?=\s|$)"))


def _commands(source, pattern):
    for found in re.finditer(pattern, source, re.MULTILINE):
        arguments = _ARGUMENTS.match(source, found.end())
        assert arguments is not None
        words = shlex.split(arguments[0])
        yield [found[1], *(words[: words.index(">")] if ">" in words else words)]


def links(text):
    """Return the links to files and headings in the project."""
    bare = _SPAN.sub("", _BLOCK.sub("", text))
    return [target for target in _LINK.findall(bare) if not re.match(r"\w+:", target)]


@cache
def find_command(name):
    module = import_module(f"byov.cli.{PROJECT['scripts'][name].partition(':')[2]}")
    return typer.main.get_command(getattr(module, "app", module.main))


def option_names(command):
    parameters = command.get_params(typer.Context(command))
    return {
        option
        for parameter in parameters
        for option in (*parameter.opts, *parameter.secondary_opts)
    }


def check_usage(name, *words, parse):
    """Raise unless the command has the given options and, if `parse` is True, accepts their
    values.
    """
    assert name in PROJECT["scripts"], f"{name} is not a command"
    command = find_command(name)
    arguments = list(words)
    if hasattr(command, "commands") and arguments and not arguments[0].startswith("-"):
        assert arguments[0] in command.commands, f"{name} has no subcommand {arguments[0]}"
        command = command.commands[arguments.pop(0)]
    for word in arguments:
        option = word.partition("=")[0]
        assert not re.match(r"--?[a-z]", option) or option in option_names(command), (
            f"{name} has no option {option}"
        )
    if "--config" in arguments:  # the file does not exist
        index = arguments.index("--config")
        del arguments[index : index + 2]
    has_placeholder = any("$" in word or "..." in word for word in arguments)
    if parse and not has_placeholder and not {"--help", "--version"} & set(arguments):
        try:
            command.make_context(name, arguments)
        except typer.BadParameter as error:
            if "does not exist" not in error.message:  # the videos in examples do not exist
                raise


@each_page
def test_commands_have_the_options_shown(page):
    text = page.read_text(encoding="utf-8")
    for words in shell_commands(text, "byov-[a-z]+"):
        check_usage(*words, parse=True)
    for words in mentioned_commands(text, "byov-[a-z]+"):
        if words != [PROJECT["name"]]:
            check_usage(*words, parse=False)


@each_page
def test_make_targets_exist(page):
    text = page.read_text(encoding="utf-8")
    for _, *words in shell_commands(text, "make") + mentioned_commands(text, "make"):
        targets = [word for word in words if "=" not in word and not word.startswith("-")]
        assert set(targets) <= MAKE_TARGETS, f"make {' '.join(words)}"


@each_page
def test_runs_are_made_by_the_page_or_by_make_demo(page):
    text = page.read_text(encoding="utf-8")
    code = "\n".join([*blocks(text, "sh"), *blocks(text, "python")]).replace("\\\n", " ")
    trained = [
        line for line in code.splitlines() if "byov-train" in line and "--resume" not in line
    ]
    made = {"demo-byov", "demo-timeline", *re.findall(r"--run (\S+)", "\n".join(trained))}
    assert set(re.findall(r"(?:--run |--compare |byov-runs \w+ |runs/)([\w.-]+)", code)) <= made


@each_page
def test_links_lead_to_files_and_headings(page):
    for link in links(page.read_text(encoding="utf-8")):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        if anchor:
            headings = re.findall(
                r"^#+ (.+)$", _BLOCK.sub("", target.read_text(encoding="utf-8")), re.MULTILINE
            )
            anchors = {
                re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings
            }
            assert anchor in anchors, link


@each_page
def test_source_files_and_extras_exist(page):
    text = page.read_text(encoding="utf-8")
    folders = "apply|byov|cache|cli|cluster|data|evaluate|extract|report|train"
    assert [
        path
        for path in re.findall(rf"`((?:{folders})/[\w/]+\.py)`", text)
        if not (ROOT / path).exists()
    ] == []
    extras = re.findall(r"pip install [^\n#`]*?(?:\.|byov-egoexo)\[([\w,]+)\]", text)
    assert {name for group in extras for name in group.split(",")} <= PROJECT[
        "optional-dependencies"
    ].keys()


def test_readme_is_short_and_links_to_every_page():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len([word for word in text.split() if re.search("[A-Za-z]", word)]) < 900
    assert len(shell_commands(text, "byov-[a-z]+")) >= 5
    pages = [path for path in (ROOT / "docs").iterdir() if path.suffix in (".md", ".ipynb")]
    assert {f"docs/{path.name}" for path in pages} <= set(links(text))


@pytest.mark.parametrize(
    "words",
    [
        ("byov-train", "--ratoi", "0.3"),
        ("byov-cache", "list"),
        ("byov-eval", "--task", "clasification"),
        ("byov-train", "--epochs", "many"),
    ],
)
def test_wrong_usage_is_found(words):
    with pytest.raises((AssertionError, ClickException)):
        check_usage(*words, parse=True)


@pytest.fixture
def namespace(project):
    """Create the runs and videos that the pages mention, and return the variables that their code
    uses.
    """
    for seed, video in enumerate(("head", "tripod")):
        # 11 seconds, so that all events on the page occur.
        write_gradient(project / f"{video}.mp4", 110, seed)
    byov.load_run("demo-byov").embed_video("head.mp4").write(project / "new.npz")
    return {"features": byov.load_features("demo")["test_ego_00"]}


def run_page(page, namespace):
    snippets = blocks((ROOT / "docs" / page).read_text(encoding="utf-8"), "python")
    for snippet in snippets:
        paragraphs = [part for part in snippet.split("\n\n") if UNAVAILABLE not in part]
        exec(compile("\n\n".join(paragraphs), f"docs/{page}", "exec"), namespace)
    return len(snippets)


def test_python_page(project):
    """Run docs/python.md with the features of a second encoder in the cache."""
    shutil.copytree(
        project / "features/demo/random--tiny", project / "features/demo/imagenet--other"
    )
    namespace = {}
    assert run_page("python.md", namespace) >= 1
    assert namespace["nearest"].shape == (12,)
    assert namespace["video"].embedding.shape == (12, 32)


@pytest.mark.parametrize(("page", "name"), [("cache.md", "tokens"), ("training.md", "model")])
def test_other_pages(namespace, page, name):
    assert run_page(page, namespace) >= 1
    assert name in namespace


@pytest.mark.usefixtures("project")
def test_annotate_page(namespace):
    small = {"latent": 32, "frames": 8, "clips": 4, "epochs": 1}
    byov.train_run("demo-timeline", method="timeline", **small)
    assert run_page("annotate.md", namespace) == 1
    assert len(namespace["events"]) == len(namespace["annotation"].phase_names) - 1


def test_all_pages_with_python_are_tested():
    pages = {
        page.name
        for page in (ROOT / "docs").glob("*.md")
        if blocks(page.read_text(encoding="utf-8"), "python")
    }
    pages -= {"architecture.md", "live.md", "sweeps.md"}  # tested elsewhere
    assert pages <= {"annotate.md", "python.md", "cache.md", "training.md"}
    assert not blocks((ROOT / "README.md").read_text(encoding="utf-8"), "python")


@pytest.mark.slow
def test_notebook(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    write_demo_videos(tmp_path / "datasets/demo")
    byov.extract_features("demo", encoder="random/tiny")
    notebook = json.loads((ROOT / "docs/quickstart.ipynb").read_text(encoding="utf-8"))
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert len({cell["id"] for cell in notebook["cells"]}) == len(notebook["cells"])
    assert all(cell["outputs"] for cell in cells)
    namespace = {}
    output = io.StringIO()
    for cell in cells:
        with redirect_stdout(output):
            exec(
                compile("".join(cell["source"]), f"quickstart.ipynb {cell['id']}", "exec"),
                namespace,
            )
    assert (namespace["again"] == namespace["ego"]).all()
    assert "kendalls_tau/all" in output.getvalue()


@pytest.mark.usefixtures("project")
@pytest.mark.parametrize(
    "name",
    [
        "byov",
        "byov.folders",
        *sorted({*byov._MODULES.values()} - {"byov.errors", "byov.extract.plan"}),
    ],
)
def test_doctests(name):
    module = import_module(name)
    result = doctest.testmod(
        module, extraglobs={"byov": byov}, optionflags=doctest.NORMALIZE_WHITESPACE
    )
    assert result.failed == 0
    assert result.attempted > 0 or name == "byov.evaluate.tasks"
