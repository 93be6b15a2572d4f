"""Commands, make targets and links of README and docs exist."""

import re
import tomllib
from functools import cache
from importlib import import_module

import pytest
import typer.main
from tests.python.markdown import PAGES, ROOT, anchors, links, mentioned_commands, shell_commands

from byov.cli.common import ClickException

MAKE_TARGETS = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


@cache
def find_command(name):
    return typer.main.get_command(import_module(PROJECT["scripts"][name].partition(":")[0]).app)


def option_names(command):
    parameters = command.get_params(typer.Context(command))
    return {option for parameter in parameters for option in (*parameter.opts, *parameter.secondary_opts)}


def check_usage(name, *words, parse):
    """Raise unless the command has these options and, if `parse` is set, accepts their values."""
    assert name in PROJECT["scripts"], f"{name} is not a command"
    command, arguments = find_command(name), list(words)
    if hasattr(command, "commands") and arguments and not arguments[0].startswith("-"):
        assert arguments[0] in command.commands, f"{name} has no subcommand {arguments[0]}"
        command = command.commands[arguments.pop(0)]
    for word in arguments:
        option = word.partition("=")[0]
        assert not re.match(r"--?[a-z]", option) or option in option_names(command), f"{name} has no option {option}"
    if "--config" in arguments:  # the file does not exist
        index = arguments.index("--config")
        del arguments[index : index + 2]
    has_placeholder = any("$" in word or "..." in word for word in arguments)
    if parse and not has_placeholder and not {"--help", "--version"} & set(arguments):
        command.make_context(name, arguments)


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
def test_links_lead_to_files_and_headings(page):
    for link in links(page.read_text(encoding="utf-8")):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        if anchor:
            assert anchor in anchors(target.read_text(encoding="utf-8")), link


@each_page
def test_paths_of_source_files_exist(page):
    paths = re.findall(
        r"`((?:apply|byov|cache|cli|cluster|data|evaluate|extract|report|train)/[\w/]+\.py)`",
        page.read_text(encoding="utf-8"),
    )
    assert [path for path in paths if not (ROOT / path).exists()] == []


@each_page
def test_extras_exist(page):
    extras = re.findall(r"pip install [^\n#`]*?(?:\.|byov-egoexo)\[([\w,]+)\]", page.read_text(encoding="utf-8"))
    assert {name for group in extras for name in group.split(",")} <= PROJECT["optional-dependencies"].keys()


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
