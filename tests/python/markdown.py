"""Code blocks, commands, links and headings of a Markdown page."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_SPAN = re.compile(r"`([^`]+)`")
_LINK = re.compile(r"\]\(([^()\s]+)\)")
_HEREDOC = re.compile(r"<<'(\w+)'(.*?)\n.*?^\1$", re.MULTILINE | re.DOTALL)
_ARGUMENTS = re.compile(r"""(?:"[^"\n]*"|'[^'\n]*'|[^"';|&)\n#]|(?<!\s)#)*""")  # up to the end of a command


def blocks(text: str, language: str) -> list[str]:
    """Return the code blocks of a language."""
    return [body for name, body in _BLOCK.findall(text) if name == language]


def shell_commands(text: str, name: str) -> list[list[str]]:
    """Return the words of every use of a command in shell blocks; `name` is a pattern."""
    shell = "\n".join(_HEREDOC.sub(r"\2", body) for body in blocks(text, "sh")).replace("\\\n", " ")
    return list(_commands(shell, rf"(?:^|[\s(;])(?:\S+/)?({name})(?=[\s)]|$)"))


def mentioned_commands(text: str, name: str) -> list[list[str]]:
    """Return the same for inline code such as `byov-train --method tcc`."""
    spans = "\n".join(" ".join(span.split()) for span in _SPAN.findall(_BLOCK.sub("", text)))
    return list(_commands(spans, rf"^({name})(?=\s|$)"))


def _commands(source: str, pattern: str) -> Iterator[list[str]]:
    for found in re.finditer(pattern, source, re.MULTILINE):
        arguments = _ARGUMENTS.match(source, found.end())
        assert arguments is not None
        words = shlex.split(arguments[0])
        yield [found[1], *(words[: words.index(">")] if ">" in words else words)]


def links(text: str) -> list[str]:
    """Return links to files and headings of the project."""
    bare = _SPAN.sub("", _BLOCK.sub("", text))
    return [target for target in _LINK.findall(bare) if not re.match(r"\w+:", target)]


def anchors(text: str) -> set[str]:
    """Return the anchors of the headings, as GitHub generates them."""
    headings = re.findall(r"^#+ (.+)$", _BLOCK.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
