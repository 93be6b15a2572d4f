"""What an evaluation leaves: one JSON document, and its tables as Markdown and LaTeX."""

import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from byov.cache.atomic import write_text
from byov.cache.sub_clips import CLIPS_PER_VIDEO, LONGEST, SEED, SHORTEST
from byov.evaluate.comparison import Comparison
from byov.evaluate.render import latex, markdown
from byov.evaluate.table import Table
from byov.evaluate.task import EvaluationOptions

SCHEMA_VERSION = 1


def document(comparison: Comparison) -> dict[str, Any]:
    """All that is known, for machines."""
    scope = comparison.scope
    return {
        "schema_version": SCHEMA_VERSION,
        "dataset": comparison.title,
        "split": scope.split,
        "tasks": list(scope.tasks),
        **_how(scope.options),
        "left_out": comparison.left_out,
        "protocols": {
            protocol: {**comparison.counts[protocol], "rows": [row.as_dict() for row in rows]}
            for protocol, rows in comparison.rows.items()
        },
        "published": [row.as_dict() for row in comparison.published("standard")],
    }


def npz_document(comparison: Comparison) -> dict[str, Any]:
    """The document of somebody's file: its scores at the top, in the shape of the golden files."""
    row, *others = comparison.rows["standard"]
    return {
        **row.nested_scores(),
        **({"time_only": others[0].nested_scores()} if others else {}),
        "details": row.details(),
        "notes": list(row.notes),
        "origin": row.origin,
        "split": comparison.scope.split,
        **comparison.counts["standard"],
        **_how(comparison.scope.options),
    }


def _how(options: EvaluationOptions) -> dict[str, Any]:
    """What a score depends on beside the embeddings."""
    packages = {name: version(name) for name in ("byov", "numpy", "scipy", "scikit-learn")}
    clips = {"seed": SEED, "per_video": CLIPS_PER_VIDEO, "shortest": SHORTEST, "longest": LONGEST}
    return {
        "settings": asdict(options),
        "trimmed_clips": clips,
        "versions": {"python": platform.python_version(), **packages},
    }


def write_results(folder: Path, stem: str, results: Mapping[str, Any], drawn: Sequence[Table]) -> list[Path]:
    """<stem>.json, .md and .tex; each whole or not at all."""
    texts = {
        ".json": json.dumps(results, indent=1, ensure_ascii=False) + "\n",
        ".md": "\n".join(map(markdown, drawn)),
        ".tex": "% \\usepackage{booktabs}\n" + "\n".join(map(latex, drawn)),
    }
    for suffix, text in texts.items():
        write_text(folder / f"{stem}{suffix}", text)
    return [folder / f"{stem}{suffix}" for suffix in texts]
