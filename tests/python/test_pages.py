"""Commands, targets and links of README and docs exist."""

import re
import tomllib
from functools import cache
from importlib import import_module

import pytest
import typer.main
from tests.python.markdown import PAGES, ROOT, anchors, links, mentioned_commands, shell_commands

from byov.cli.common import UsageError

MAKE_TARGETS = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
SCRIPTS = PROJECT["scripts"]
each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


@cache
def command_of(name):
    """The command itself, as its library parses it."""
    return typer.main.get_command(import_module(SCRIPTS[name].partition(":")[0]).app)


def options(command):
    parameters = command.get_params(typer.Context(command))
    return {option for parameter in parameters for option in (*parameter.opts, *parameter.secondary_opts)}


def refuse_unknown(name, *words, parse):
    """Raise unless a command has these options; parse: and takes their values, where all are there to see."""
    assert name in SCRIPTS, f"{name} is no command"
    command, rest = command_of(name), list(words)
    if hasattr(command, "commands") and rest and not rest[0].startswith("-"):
        assert rest[0] in command.commands, f"{name} has no {rest[0]}"
        command = command.commands[rest.pop(0)]
    if "--config" in rest:  # which every command takes before its options are parsed; the file is not there
        at = rest.index("--config")
        del rest[at : at + 2]
    for word in rest:
        option = word.partition("=")[0]
        assert not re.match(r"--?[a-z]", option) or option in options(command), f"{name} has no {option}"
    stands_for_others = any("$" in word or "..." in word for word in rest)
    if parse and not stands_for_others and not {"--help", "--version"} & set(rest):
        command.make_context(name, rest)


@each_page
def test_commands_take_the_options_that_are_shown(page):
    text = page.read_text(encoding="utf-8")
    for words in shell_commands(text, "byov-[a-z]+"):
        refuse_unknown(*words, parse=True)
    for words in mentioned_commands(text, "byov-[a-z]+"):
        if words != [PROJECT["name"]]:
            refuse_unknown(*words, parse=False)  # the text may leave a value to the reader


@each_page
def test_targets_of_make_are_there(page):
    text = page.read_text(encoding="utf-8")
    for _, *words in shell_commands(text, "make") + mentioned_commands(text, "make"):
        targets = [word for word in words if "=" not in word and not word.startswith("-")]
        assert set(targets) <= MAKE_TARGETS, f"make {' '.join(words)}"


@each_page
def test_links_lead_to_files_and_headings(page):
    text = page.read_text(encoding="utf-8")
    for link in links(text):
        path, _, anchor = link.partition("#")
        target = page if not path else (page.parent / path).resolve()
        assert target.exists(), f"{page.name}: {link}"
        if anchor:
            assert anchor in anchors(target.read_text(encoding="utf-8")), f"{page.name}: {link}"


def test_the_readme_is_short():
    words = [word for word in (ROOT / "README.md").read_text(encoding="utf-8").split() if re.search("[A-Za-z]", word)]
    assert len(words) < 900


def test_the_readme_leads_to_every_page():
    pages = [path for path in (ROOT / "docs").iterdir() if path.suffix in (".md", ".ipynb")]
    assert {f"docs/{path.name}" for path in pages} <= set(links((ROOT / "README.md").read_text(encoding="utf-8")))


def test_extras_that_pages_install_are_there():
    for page in PAGES:
        for extras in re.findall(
            r"pip install [^\n#`]*?(?:\.|byov-egoexo)\[([\w,]+)\]", page.read_text(encoding="utf-8")
        ):
            assert set(extras.split(",")) <= PROJECT["optional-dependencies"].keys(), f"{page.name}: {extras}"


PAGE = """
# A page: with `code`, and more

[here](#a-page-with-code-and-more), [there](docs/other.md), [web](https://example.com), `[no](link)`

```sh
export A=1
for seed in 0 1; do byov-train --lr 3e-4 --seed $seed \\
  --run a-$seed; done
byov-eval $(for row in a b; do echo --run $row; done) --task all   # not --this
byov-align a.mp4 b.mp4 -o "c d.mp4" --phases "3.2;9.8" && byov-report
python - my <<'EOF' && mv a b
byov-never --said
EOF
torchrun -- $(which byov-train) --resume
.venv/bin/byov-cache ls
```

By `byov-train --epochs
3` or `make check SLOW=1`; not `abyov-train --no`.
"""


def test_a_page_is_read_as_people_read_it():
    assert shell_commands(PAGE, "byov-[a-z]+") == [
        ["byov-train", "--lr", "3e-4", "--seed", "$seed", "--run", "a-$seed"],
        ["byov-eval", "$(for", "row", "in", "a", "b"],
        ["byov-align", "a.mp4", "b.mp4", "-o", "c d.mp4", "--phases", "3.2;9.8"],
        ["byov-report"],
        ["byov-train"],
        ["byov-cache", "ls"],
    ]
    assert mentioned_commands(PAGE, "byov-[a-z]+") == [["byov-train", "--epochs", "3"]]
    assert mentioned_commands(PAGE, "make") == [["make", "check", "SLOW=1"]]
    assert links(PAGE) == ["#a-page-with-code-and-more", "docs/other.md"]
    assert anchors(PAGE) == {"a-page-with-code-and-more"}


@pytest.mark.parametrize(
    "words",
    [
        ("byov-train", "--ratoi", "0.3"),
        ("byov-cache", "list"),
        ("byov-eval", "--task", "clasification"),
        ("byov-extract", "--device", "tpu"),
        ("byov-train", "--epochs", "many"),
    ],
)
def test_what_no_command_takes_is_found(words):
    with pytest.raises((AssertionError, UsageError)):
        refuse_unknown(*words, parse=True)
