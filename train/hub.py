"""Models in folders and on the Hugging Face Hub: config.json and model.safetensors, read as data."""

from pathlib import Path
from typing import Any, Self

import torch
from huggingface_hub import ModelCard, PyTorchModelHubMixin, hf_hub_download
from huggingface_hub.errors import EntryNotFoundError
from pydantic import Field
from torch import nn

from byov.cache.digests import SEAL_NAME
from byov.cache.runs import BYOV, CONFIG_NAME, FILES_KEY, MODEL_NAME, check_model, read_config
from byov.errors import SettingsError, TrainError
from byov.records import Record
from byov.train.checkpoint import load_weights, tensor_shapes
from byov.train.settings import Size, TrainSettings, checked, read_settings


class _Arguments(Record):
    width: Size = Field(multiple_of=2)
    training: dict[str, Any] | None


class HubModel(nn.Module, PyTorchModelHubMixin, library_name="byov", tags=["ego-exo", "video"], license="mit"):
    """Base of all models, with `from_pretrained`, `save_pretrained` and `push_to_hub`.

    Args:
        width: Width of the input features.
        settings: Settings of the method.
        training: What the model was trained on; stored in config.json and available as `record`.
    """

    settings: TrainSettings

    def __init__(self, width: int, settings: TrainSettings, training: dict[str, Any] | None = None) -> None:
        super().__init__()
        checked(_Arguments, width=width, training=training)
        self.width, self.settings = width, settings
        # The digests of a run's files do not apply to a copy: the same weights saved elsewhere are another file.
        self.record = {key: value for key, value in (training or {}).items() if key != FILES_KEY}
        self._hub_mixin_config = self.config

    @property
    def config(self) -> dict[str, Any]:
        """The content of config.json."""
        return {"width": self.width, "settings": self.settings.model_dump(mode="json"), "training": self.record}

    def generate_model_card(self, *_: Any, **__: Any) -> ModelCard:
        return ModelCard(card_text(self))

    @classmethod
    def _from_pretrained(cls, *, model_id: str, config: Any = None, map_location: str = "cpu", **options: Any) -> Self:
        path = Path(model_id) / MODEL_NAME
        if not path.parent.is_dir():
            names = ("revision", "cache_dir", "force_download", "token", "local_files_only")
            try:
                path = Path(hf_hub_download(model_id, MODEL_NAME, **{name: options[name] for name in names}))
            except EntryNotFoundError:
                raise TrainError(f"{model_id} has no {MODEL_NAME}, the only weights that byov reads.") from None
        model = cls._build(path, config)
        check_model(path.parent, config.get("training") or {})
        load_weights(model, path)
        return model.to(map_location).eval()

    @classmethod
    def _build(cls, weights: Path, config: Any) -> Self:
        """Build the model of a config.json, after a check that it is no larger than the file of its weights."""
        from byov.train.methods import METHODS  # imports this module

        path = weights.with_name(CONFIG_NAME)
        if not isinstance(config, dict):
            raise TrainError(f"{path} is not the configuration of a model.")
        if path.is_file():
            read_config(path.parent)  # raises if it is damaged
        unknown = config.keys() - {"width", "settings", "training", SEAL_NAME}
        if unknown:
            raise TrainError(f"{path}: unknown entry {min(unknown)!r}, perhaps of a newer version of byov.")
        settings = read_settings(path, config.get("settings"))
        method = METHODS[settings.method]
        if not issubclass(method, cls):
            raise TrainError(f"{path}: a model of method {settings.method}, not a {cls.__name__}")
        try:
            check_sizes(weights, method, config.get("width", 0), settings)
            return method(config["width"], settings, config.get("training"))
        except SettingsError as error:
            raise TrainError(f"{path}: {error}") from None


def check_sizes(weights: Path, method: type[HubModel], width: int, settings: TrainSettings) -> None:
    """Raise TrainError unless a file has the weights of this model, without allocating the model."""
    try:
        with torch.device("meta"):
            built = method(width, settings).state_dict()
    except (RuntimeError, ValueError, OverflowError, MemoryError) as error:  # raised by PyTorch for absurd sizes
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise TrainError(f"{weights.with_name(CONFIG_NAME)} has sizes that no model can have: {reason}") from None
    if {name: tuple(tensor.shape) for name, tensor in built.items()} != tensor_shapes(weights):
        raise TrainError(f"{weights} does not hold the weights of the model in {CONFIG_NAME}.")


def card_text(model: HubModel) -> str:
    """Return the model card in Markdown: what the model is, its training data, settings and validation metrics."""
    record, parameters = model.record, sum(parameter.numel() for parameter in model.parameters())
    label = "recipe" if model.settings.method == BYOV else "method"  # only byov has recipes
    text = f"""---
library_name: byov
license: mit
tags:
- ego-exo
- video
- byov
---
# {model.settings.title}

A model with {parameters / 1e6:.3f} million parameters, trained with the method `{model.settings.method}` of byov, an
implementation of "Bootstrap Your Own Views" (Park et al., CVPR 2025) and its baselines. It maps the frame features of
a video to embeddings that follow the progress of the action, independent of the camera.

```python
from byov.train.methods.base import Method

model = Method.from_pretrained("...")
embedding = model.embed(features)  # (T, width) cached features of one video → (T, D)
```
"""
    if not record:
        return text
    return f"""{text}
- dataset: {_code(record.get("dataset"))}
- frame encoder: {_code(record.get("encoder"))}, features {_code(record.get("column"))}
- {label}: {_code(record.get("recipe"))}, seed {_code(record.get("seed"))}
- preprocessing: {_code(record.get("preprocessing"))}

## Validation

{_validation_table(record.get("validation"))}

## Settings

```json
{model.settings.model_dump_json(indent=1, exclude=model.settings.unused)}
```
"""


def _validation_table(validation: Any) -> str:
    if not isinstance(validation, dict) or not validation:
        return "No scores: there were no validation videos, or the run is not finished."
    rows = [f"| {_code(name)} | {_code(value)} |" for name, value in validation.items()]
    return "\n".join(["Metrics of this model on the val split:", "", "| | |", "|---|---|", *rows])


def _code(value: Any) -> str:
    """Format a value as inline code; a value from a file cannot break out of it."""
    text = f"{value:.4f}" if isinstance(value, float) else str(value)
    return f"`{''.join(character for character in text if character.isprintable() and character not in '`|')}`"
