"""HTML and SVG elements as text. Text becomes markup here and nowhere else, always escaped."""

import html
from base64 import b64encode

from byov.text import printable


class Html(str):
    """Markup: all that is not this is text, and is escaped."""

    __slots__ = ()


Child = str | None
Attribute = str | int | float | bool | None

_EMPTY = frozenset(("img", "input", "meta", "source"))


def escaped(text: str) -> Html:
    """Text for an element's inside or an attribute, control characters spelt out."""
    return Html(html.escape(printable(text), quote=True))


def joined(*children: Child) -> Html:
    """Markup as it is, text escaped, None left out."""
    return Html(
        "".join(child if isinstance(child, Html) else escaped(child) for child in children if child is not None)
    )


def element(name: str, /, *children: Child, **attributes: Attribute) -> Html:
    """`class_` stands for class, `aria_label` for aria-label; an attribute that is None or False is left out."""
    written = "".join(_attribute(key, value) for key, value in attributes.items())
    if name in _EMPTY:
        return Html(f"<{name}{written}>")
    return Html(f"<{name}{written}>{joined(*children)}</{name}>")


def number(value: float) -> str:
    """A length or coordinate: at most two digits behind the point."""
    return f"{value:.2f}".rstrip("0").rstrip(".") if value else "0"


def data_uri(kind: str, content: bytes) -> str:
    return f"data:{kind};base64,{b64encode(content).decode('ascii')}"


def _attribute(key: str, value: Attribute) -> str:
    if value is None or value is False:
        return ""
    name = key.rstrip("_").replace("_", "-")
    if value is True:
        return f" {name}"
    return f' {name}="{escaped(number(value) if isinstance(value, float) else str(value))}"'
