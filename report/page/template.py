"""Rendering of self-contained HTML pages, whose content security policy allows only their own
styles, scripts, pictures and videos.
"""

from base64 import b64encode
from collections.abc import Sequence
from hashlib import sha256
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from byov.text import printable

PACKAGE = "byov.report.page"


def render_template(
    template: str, styles: Sequence[str], scripts: Sequence[str], **context: Any
) -> str:
    """Render a template; inserted values are escaped.

    Args:
        template: Name of the template in this folder.
        styles: Names of style sheets in this folder, joined and passed to the template as `style`.
        scripts: Names of scripts in this folder, joined and passed as `script`.
        context: Further variables of the template. It also receives `policy`, the content security
            policy.
    """
    environment = Environment(
        loader=PackageLoader(PACKAGE, ""),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
        finalize=_printable,
    )
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
    style = _read(styles)
    script = _read(scripts)
    policy = (
        f"default-src 'none'; img-src data:; media-src blob:; style-src '{_hash(style)}'; "
        f"script-src '{_hash(script)}'; base-uri 'none'; form-action 'none'"
    )
    page = environment.get_template(template).render(
        context, policy=policy, style=style, script=script
    )
    return page.lstrip()  # macros leave blank lines at the top


def base64_text(content: bytes) -> str:
    return b64encode(content).decode("ascii")


def data_uri(kind: str, content: bytes) -> str:
    return f"data:{kind};base64,{base64_text(content)}"


def _read(names: Sequence[str]) -> str:
    return "\n".join(files(PACKAGE).joinpath(name).read_text("utf-8") for name in names)


def _hash(text: str) -> str:
    return f"sha256-{base64_text(sha256(text.encode('utf-8')).digest())}"


def _printable(value: Any) -> Any:
    """Escape control characters in all text that the template inserts."""
    return printable(value) if isinstance(value, str) and not hasattr(value, "__html__") else value
