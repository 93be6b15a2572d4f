"""What can be chosen about each method. Apart from the methods themselves, since --help has no need of PyTorch."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from byov.cache.runs import RunRecord
from byov.errors import SettingsError, TrainError
from byov.train.baseline_settings import BASELINES, BackboneMethodSettings
from byov.train.settings import (
    LARGEST,
    EncoderSettings,
    Pairs,
    Positive,
    Share,
    Size,
    TrainSettings,
    checked,
    refuse_unknown,
)

Recipe = Literal["paper", "official", "cycle"]


class ByovSettings(EncoderSettings, TrainSettings):
    """Of train/methods/byov.py."""

    summary = "the paper's masked self-view and cross-view modeling."
    name = "BYOV"

    method: Literal["byov"] = "byov"
    recipe: Recipe = Field("paper", description="The paper's text, its published code, or beyond: with cycles.")
    decoder_depth: Size = Field(4, description="Decoder blocks.")  # paper, sec. 4.2
    self_view: bool = Field(True, description="Masked self-view modeling.")
    cross_view: bool = Field(True, description="Masked cross-view modeling.")
    causal: bool = Field(True, description="Causal self-view decoder.")  # paper, sec. 3.4
    mask_self: Share = Field(0.4, description="Share of frames masked, self-view.")  # paper, sec. 4.2
    mask_cross: Share = Field(0.8, description="Share of frames masked, cross-view.")  # paper, sec. 4.2
    masked_only: bool = False  # the paper's loss is over all frames
    # paper, sec. 3: an ego and an exo video
    pairs: Pairs = Field("views", description="Any two videos, or an ego with an exo video.")
    # beyond the paper
    cycle: float = Field(0.0, ge=0, description="Weight of temporal cycle-consistency.")
    order_prior: Positive | None = Field(
        None, description="Cycles prefer frames at the same share of the other clip, with this deviation."
    )

    RECIPES: ClassVar[dict[str, dict[str, Any]]] = {
        "paper": {},
        "official": {"pairs": "any", "norm": "before", "masked_only": True},
        "cycle": {"standardize": "video", "crop": (0.5, 1.0), "cycle": 5.0},
    }
    OF_DATASETS: ClassVar[dict[str, dict[str, Any]]] = {
        "break_eggs": {"batch_size": 4},  # published code
    }

    @property
    def label(self) -> str:
        return self.recipe

    def variants(self) -> Iterator[str]:
        yield self.recipe
        if self.recipe != "cycle":  # of which it is a part
            yield from super().variants()

    @property
    def blocks(self) -> int:
        return self.depth + self.decoder_depth

    @classmethod
    def presets(cls, dataset: str, given: dict[str, Any]) -> dict[str, Any]:
        recipe = given.get("recipe", "paper")
        if recipe not in cls.RECIPES:
            raise SettingsError(f"recipe {recipe!r}; choose one of {', '.join(cls.RECIPES)}")
        return super().presets(dataset, given) | cls.RECIPES[recipe]

    @model_validator(mode="after")
    def _there_is_something_to_learn(self) -> Self:
        if self.order_prior is not None and not self.cycle:
            raise ValueError("order_prior is of the cycles, and cycle is 0; give --cycle a weight")
        if not (self.self_view or self.cross_view or self.cycle):
            raise ValueError("nothing to learn from: --no-self, --no-cross, and no --cycle")
        masks = self.self_view * self.mask_self + self.cross_view * self.mask_cross
        if self.masked_only and not masks and not self.cycle:
            raise ValueError("nothing to learn from: the loss is over masked frames, and none is masked")
        return self


class TimelineSettings(BackboneMethodSettings):
    """Of train/methods/timeline.py."""

    summary = "frames at the same share of their videos are alike; each training video must show the action once."
    name = "Timeline"

    method: Literal["timeline"] = "timeline"
    clips: int = Field(8, ge=2, le=LARGEST, description="Clips of different videos that are compared, half ego.")
    whole: Share = Field(0.3, description="Probability of a clip that is the whole video, not a part.")
    sigma: Positive = Field(0.08, description="Deviation of the places that count as the same, in shares of a video.")
    temperature: Positive = Field(0.1, description="Of the similarities between frames.")
    feature_dropout: float = Field(0.3, ge=0, lt=1, description="Share of the features' values set to zero.")

    # Chosen on the val split of the demo: docs/training.md
    DEFAULTS: ClassVar[dict[str, Any]] = {
        "backbone": "encoder",
        "depth": 6,
        "heads": 8,
        "position": "share",
        "position_in": "latent",
        "crop": (0.3, 1.0),
        "standardize": "video",
        "optimizer": "adamw",
        "epochs": 100,
        "batch_size": 1,
        "lr": 6e-4,
        "weight_decay": 0.05,
        "warmup": 10.0,
        "schedule": "cosine",
        "select": "both",
    }


SETTINGS: dict[str, type[TrainSettings]] = {"byov": ByovSettings, "timeline": TimelineSettings, **BASELINES}
# Options that are not called as their settings, in commands and in files of options.
SHORTER = {"self_view": "self", "cross_view": "cross"}


def option_name(setting: str) -> str:
    """batch_size → "batch-size", self_view → "self" """
    return SHORTER.get(setting, setting).replace("_", "-")


def choose(dataset: str, *, method: str = "byov", **given: Any) -> TrainSettings:
    """The settings of a method for a dataset, with those that are given in their place."""
    kind = settings_kind(method)
    refuse_of_others(method, given)
    return checked(kind, **(kind.presets(dataset, given) | given))


def settings_kind(method: str) -> type[TrainSettings]:
    if method not in SETTINGS:
        raise SettingsError(f"method {method!r}; choose one of {', '.join(SETTINGS)}")
    return SETTINGS[method]


def owners(name: str) -> list[str]:
    """The methods that have a setting of this name."""
    return [method for method, kind in SETTINGS.items() if name in kind.model_fields]


def refuse_of_others(method: str, given: Iterable[str]) -> None:
    for name in given:
        if method not in owners(name):
            told = f"--{option_name(name)} is a setting of {', '.join(owners(name))}"
            raise SettingsError(f"{told if owners(name) else f'{name} is no setting'}, and the method is {method}")


def settings_of(run: RunRecord) -> TrainSettings:
    """What a run was started with. A setting that this version has added since takes its default."""
    return read_settings(run.config, run.training.get("settings"), run.training)


def read_settings(config: Path, raw: Any, training: Any) -> TrainSettings:
    """raw: what a run's file says; the method byov, if it says none, as before there were others."""
    if not isinstance(raw, dict):
        raise TrainError(f"{config}: it does not say its settings")
    values = {name: tuple(value) if isinstance(value, list) else value for name, value in raw.items()}
    try:
        kind = settings_kind(str(values.get("method", "byov")))
        refuse_unknown(config, values, kind.model_fields, training)
        return checked(kind, **values)
    except SettingsError as error:
        raise TrainError(f"{config}: {error}") from None
