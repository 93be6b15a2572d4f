"""Models in folders and on the HuggingFace hub: config.json and model.safetensors, read as data."""

import json
from pathlib import Path
from typing import Any, Self

import torch
from huggingface_hub import ModelCard, PyTorchModelHubMixin, hf_hub_download
from huggingface_hub.errors import EntryNotFoundError
from torch import nn

from byov.cache.runs import CONFIG_NAME, MODEL_NAME
from byov.errors import SettingsError, TrainError
from byov.train.checkpoint import load_weights
from byov.train.settings import refuse_unknown
from byov.train.tensor_file import tensor_shapes

_HEAD = """---
library_name: byov
license: mit
tags:
- ego-exo
- video
- byov
---
"""


class HubModel(nn.Module, PyTorchModelHubMixin, library_name="byov", tags=["ego-exo", "video"], license="mit"):
    """`from_pretrained`, `save_pretrained` and `push_to_hub` as usual.

    A model's constructor takes its sizes, and `training`: what it was trained on and how, which is carried along in
    config.json and kept as `record`.
    """

    record: dict[str, Any]

    @property
    def arguments(self) -> dict[str, Any]:
        """What the constructor was called with."""
        arguments = self._hub_mixin_config
        return dict(arguments) if isinstance(arguments, dict) else {}

    def generate_model_card(self, *_: Any, **__: Any) -> ModelCard:
        return ModelCard(card_text(self.record, sum(parameter.numel() for parameter in self.parameters())))

    @classmethod
    def _from_pretrained(
        cls,
        *,
        model_id: str,
        revision: str | None,
        cache_dir: str | Path | None,
        force_download: bool,
        local_files_only: bool,
        token: str | bool | None,
        config: dict[str, Any] | None = None,
        map_location: str = "cpu",
        strict: bool = True,  # noqa: ARG003
        **arguments: Any,
    ) -> Self:
        """All weights must be there, and the model is no larger than their file."""
        if Path(model_id).is_dir():
            path = Path(model_id) / MODEL_NAME
        else:
            try:
                path = Path(
                    hf_hub_download(
                        model_id,
                        MODEL_NAME,
                        revision=revision,
                        cache_dir=cache_dir,
                        force_download=force_download,
                        token=token,
                        local_files_only=local_files_only,
                    )
                )
            except EntryNotFoundError:
                raise TrainError(f"{model_id}: has no {MODEL_NAME}, and byov reads no other weights") from None
        config_path = path.with_name(CONFIG_NAME)
        given = config or {}
        refuse_unknown(config_path, given, cls._hub_mixin_init_parameters, given.get("training"))
        try:
            cls._refuse_other_shapes(path, arguments)
            model = cls(**arguments)
        except SettingsError as error:
            raise TrainError(f"{config_path}: {error}") from None
        load_weights(model, path)
        return model.to(map_location).eval()

    @classmethod
    def _refuse_other_shapes(cls, path: Path, arguments: dict[str, Any]) -> None:
        """Before memory is taken for a model: its weights are those of the file."""
        stored = tensor_shapes(path)
        blocks = [size for name, size in arguments.items() if name.endswith("depth") and isinstance(size, int)]
        if sum(blocks) <= len(stored):
            with torch.device("meta"):
                built = {name: tuple(tensor.shape) for name, tensor in cls(**arguments).state_dict().items()}
            if built == stored:
                return
        raise TrainError(f"{path}: weights of another model than {CONFIG_NAME} says")


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
        return ["No scores: there were no validation videos, or the run is not finished."]
    rows = [f"| {_code(name)} | {_code(value)} |" for name, value in validation.items()]
    return ["On the val split, of the model that is saved here:", "", "| | |", "|---|---|", *rows]


def _code(value: Any) -> str:
    """A value from a file, such that it cannot break out of the text."""
    shown = f"{value:.4f}" if isinstance(value, float) else str(value)
    return f"`{''.join(character for character in shown if character.isprintable() and character not in '`|')}`"
