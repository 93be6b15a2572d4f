"""The README that goes with a saved model."""

import json
from typing import Any

_HEAD = """---
library_name: byov
license: mit
tags:
- ego-exo
- video
- byov
---
"""


def card_text(record: dict[str, Any], parameters: int) -> str:
    """Markdown: what the model is, what it was trained on and how, and what validation said."""
    lines = [
        "# BYOV frame encoder",
        "",
        f'A masked ego-exo autoencoder of {parameters / 1e6:.3f} million parameters, after "Bootstrap Your Own Views" '
        "(Park et al., CVPR 2025). Its encoder maps the frame features of one video to embeddings that follow the "
        "action and not the camera.",
        "",
    ]
    if record:
        lines += [
            f"- dataset: {_code(record.get('dataset'))}",
            f"- frame encoder: {_code(record.get('encoder'))}, features {_code(record.get('column'))}",
            f"- recipe: {_code(record.get('recipe'))}, seed {_code(record.get('seed'))}",
            f"- preprocessing: {_code(record.get('preprocessing'))}",
            "",
            "## Validation",
            "",
            *_metrics(record.get("validation")),
            "",
            "## TrainSettings",
            "",
            "```json",
            json.dumps(record.get("settings"), indent=1, ensure_ascii=True).replace("```", "'''"),
            "```",
            "",
        ]
    lines += [
        "```python",
        "from byov.train.autoencoder import Autoencoder",
        "",
        'model = Autoencoder.from_pretrained("...")',
        "embedding = model.embed(features)  # (T, width) features of one video from the cache → (T, D)",
        "```",
        "",
    ]
    return _HEAD + "\n".join(lines)


def _metrics(validation: Any) -> list[str]:
    if not isinstance(validation, dict) or not validation:
        return ["No figures: there were no validation videos, or the run is not finished."]
    rows = [f"| {_code(name)} | {_code(value)} |" for name, value in validation.items()]
    return ["On the val split, of the model that is saved here:", "", "| | |", "|---|---|", *rows]


def _code(value: Any) -> str:
    """A value from a file, such that it cannot break out of the text."""
    shown = f"{value:.4f}" if isinstance(value, float) else str(value)
    return f"`{''.join(character for character in shown if character.isprintable() and character not in '`|')}`"
