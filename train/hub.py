"""Models in folders and on the HuggingFace hub: config.json and model.safetensors, read as data."""

from abc import abstractmethod
from pathlib import Path
from typing import Any, Self

import torch
from huggingface_hub import ModelCard, PyTorchModelHubMixin, hf_hub_download
from huggingface_hub.errors import EntryNotFoundError
from pydantic import Field
from torch import nn

from byov.cache.digests import SEAL_NAME
from byov.cache.runs import BYOV, CONFIG_NAME, FILES_KEY, MODEL_NAME, check_model, read_config
from byov.errors import TrainError
from byov.records import Record
from byov.train.checkpoint import load_weights, tensor_shapes
from byov.train.settings import Size, TrainSettings, checked, read_settings

_HEAD = """---
library_name: byov
license: mit
tags:
- ego-exo
- video
- byov
---
"""


class Arguments(Record):
    """What a model's constructor takes beside its settings."""

    width: Size = Field(multiple_of=2)  # of the features
    training: dict[str, Any] | None


class HubModel(nn.Module, PyTorchModelHubMixin, library_name="byov", tags=["ego-exo", "video"], license="mit"):
    """`from_pretrained`, `save_pretrained` and `push_to_hub` as usual.

    width: of the features that it takes.
    training: what it was trained on and how, which is carried along in config.json and kept as `record`.
    """

    settings: TrainSettings

    def __init__(self, width: int, settings: TrainSettings, training: dict[str, Any] | None = None) -> None:
        super().__init__()
        checked(Arguments, width=width, training=training)
        self.width, self.settings = width, settings
        # Without the digests of a run's files: saved elsewhere, the same weights are another file.
        self.record = {key: value for key, value in (training or {}).items() if key != FILES_KEY}
        self._hub_mixin_config = self.config

    @property
    def config(self) -> dict[str, Any]:
        """config.json."""
        return {"width": self.width, "settings": self.settings.model_dump(mode="json"), "training": self.record}

    @classmethod
    @abstractmethod
    def kind(cls, settings: TrainSettings) -> type[Self]:
        """The class of a model with these settings; raises TrainError if it is not one of this class."""

    def generate_model_card(self, *_: Any, **__: Any) -> ModelCard:
        return ModelCard(card_text(self))

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
        config: Any = None,
        map_location: str = "cpu",
        **_: Any,
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
        model = cls._built(path, config)
        check_model(path.parent, config.get("training") or {})  # whole, and of the run that config.json tells of
        load_weights(model, path)
        return model.to(map_location).eval()

    @classmethod
    def _built(cls, weights: Path, config: Any) -> Self:
        """The model that config.json describes, if the weights are of it: seen before memory is taken for it."""
        path = weights.with_name(CONFIG_NAME)
        if not isinstance(config, dict):
            raise TrainError(f"{path}: not the configuration of a model")
        if path.is_file():
            read_config(path.parent)  # raises if it is not as it was written
        settings = settings_in(path, config)
        stored = tensor_shapes(weights)
        try:
            arguments: dict[str, Any] = {"width": config.get("width"), "settings": settings}
            with torch.device("meta"):
                built = cls.kind(settings)(**arguments).state_dict()
            if {name: tuple(tensor.shape) for name, tensor in built.items()} == stored:
                return cls.kind(settings)(**arguments, training=config.get("training"))
        except TrainError as error:
            raise TrainError(f"{path}: {error}") from None
        except (RuntimeError, ValueError, OverflowError, MemoryError) as error:  # PyTorch's, of forged sizes
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise TrainError(f"{path}: sizes that no model can have ({reason})") from None
        raise TrainError(f"{weights}: weights of another model than {CONFIG_NAME} says")


def settings_in(path: Path, config: dict[str, Any]) -> TrainSettings:
    """Read the settings in a config.json."""
    unknown = config.keys() - {"width", "settings", "training", SEAL_NAME}
    if unknown:
        raise TrainError(f"{path}: unknown entry {min(unknown)!r}; a newer version of byov may have written it")
    return read_settings(path, config.get("settings"))


def card_text(model: HubModel) -> str:
    """Markdown: what the model is, what it was trained on and how, and what validation said."""
    record, parameters = model.record, sum(parameter.numel() for parameter in model.parameters())
    what = "recipe" if model.settings.method == BYOV else "method"  # the others have no recipes
    lines = [
        "# BYOV frame encoder",
        "",
        f"A model of {parameters / 1e6:.3f} million parameters, trained by the method `{model.settings.method}` of "
        'byov, which builds on "Bootstrap Your Own Views" (Park et al., CVPR 2025). It maps the frame features of one '
        "video to embeddings that follow the action and not the camera.",
        "",
    ]
    if record:
        lines += [
            f"- dataset: {_code(record.get('dataset'))}",
            f"- frame encoder: {_code(record.get('encoder'))}, features {_code(record.get('column'))}",
            f"- {what}: {_code(record.get('recipe'))}, seed {_code(record.get('seed'))}",
            f"- preprocessing: {_code(record.get('preprocessing'))}",
            "",
            "## Validation",
            "",
            *_metrics(record.get("validation")),
            "",
            "## Settings",
            "",
            "```json",
            model.settings.model_dump_json(indent=1),
            "```",
            "",
        ]
    lines += [
        "```python",
        "from byov.train.methods.base import Method",
        "",
        'model = Method.from_pretrained("...")',
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
