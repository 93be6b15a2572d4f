"""What can be chosen about a run. Each default says where it comes from; docs/fidelity.md has the whole story."""

from dataclasses import asdict, dataclass, fields
from sys import float_info
from typing import Any, Literal, get_args, get_origin

from byov.errors import TrainError

# The words that settings take.
Recipe = Literal["paper", "official", "cycle"]
Position = Literal["interpolated", "index", "none"]
Norm = Literal["after", "before"]  # the encoder's last LayerNorm: after its blocks, or before them
Standardize = Literal["none", "video"]
Pairs = Literal["views", "any"]  # an ego with an exo video, or any two
Schedule = Literal["constant", "cosine"]
Select = Literal["retrieval", "trimmed", "both", "tau", "last"]

LARGEST = 1_000_000  # of any size; what is above is a slip


@dataclass(frozen=True)
class TrainSettings:
    """All that decides the numbers of a run, beside the features it reads."""

    recipe: Recipe = "paper"
    seed: int = 0

    # model
    latent: int = 256  # paper, sec. 4.2
    depth: int = 12  # paper, sec. 4.2
    decoder_depth: int = 4  # paper, sec. 4.2
    heads: int = 16  # published code; the paper is silent
    position: Position = "interpolated"  # published code; the paper describes the decoder's only
    norm: Norm = "after"  # as MAE; the published code has it before the blocks
    attention_window: int | None = None  # neither has one
    standardize: Standardize = "none"  # neither does it

    # objective
    mask_self: float = 0.4  # paper, sec. 4.2
    mask_cross: float = 0.8  # paper, sec. 4.2
    causal: bool = True  # paper, sec. 3.4
    self_view: bool = True
    cross_view: bool = True
    masked_only: bool = False  # the paper's loss is over all frames
    cycle: float = 0.0  # beyond the paper
    order_prior: float | None = None  # of the cycles; share of a clip

    # sampling
    frames: int = 32  # paper, sec. 4.2
    pairs: Pairs = "views"  # paper, sec. 3: an ego and an exo video
    crop: tuple[float, float] = (1.0, 1.0)  # paper, sec. 4.2: frames that cover the whole video

    # optimisation; the paper is silent on all of it
    epochs: int = 300  # published code
    batch_size: int = 1  # published code; 4 for Break Eggs
    lr: float = 1e-5  # published code
    weight_decay: float = 5e-6  # published code
    warmup: float = 0.0  # epochs
    schedule: Schedule = "constant"  # published code
    clip_grad: float | None = None  # published code: none

    # choice of the model, on the val split
    validate_every: int = 10  # epochs; published code
    select: Select = "retrieval"

    def __post_init__(self) -> None:
        for field in fields(self):
            _check_type(field.name, getattr(self, field.name), field.type)
        self._check_ranges()

    def _check_ranges(self) -> None:
        for name in ("latent", "depth", "decoder_depth", "heads", "epochs", "batch_size", "validate_every"):
            _check(getattr(self, name) >= 1, name, getattr(self, name), "at least 1")
        for name in ("mask_self", "mask_cross"):
            _check(0 <= getattr(self, name) <= 1, name, getattr(self, name), "from 0 to 1")
        for name in ("cycle", "weight_decay", "warmup", "seed"):
            _check(getattr(self, name) >= 0, name, getattr(self, name), "0 or above")
        _check(self.seed < 2**63, "seed", self.seed, "below 2^63")
        _check(self.frames >= 2, "frames", self.frames, "at least 2")
        _check(self.lr > 0, "lr", self.lr, "above 0")
        _check(self.order_prior is None or self.order_prior > 0, "order_prior", self.order_prior, "above 0")
        _check(self.clip_grad is None or self.clip_grad > 0, "clip_grad", self.clip_grad, "above 0")
        _check(
            self.attention_window is None or self.attention_window >= 1,
            "attention_window",
            self.attention_window,
            "at least 1 frame",
        )
        _check(0 < self.crop[0] <= self.crop[1] <= 1, "crop", self.crop, "LOW,HIGH with 0 < LOW <= HIGH <= 1")
        for name in ("latent", "depth", "decoder_depth", "frames", "attention_window", "batch_size"):
            _check((getattr(self, name) or 0) <= LARGEST, name, getattr(self, name), f"at most {LARGEST:,}")
        _check(self.latent % 2 == 0, "latent", self.latent, "even, for the positions")
        if self.latent % self.heads:
            raise TrainError(f"{self.heads} heads do not divide a latent of {self.latent}")
        if self.order_prior is not None and not self.cycle:
            raise TrainError("order_prior is of the cycles, and cycle is 0; give --cycle a weight")
        if not (self.self_view or self.cross_view or self.cycle):
            raise TrainError("nothing to learn from: --no-self, --no-cross, and no --cycle")
        masks = self.self_view * self.mask_self + self.cross_view * self.mask_cross
        if self.masked_only and not masks and not self.cycle:
            raise TrainError("nothing to learn from: the loss is over masked frames, and none is masked")

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


DATASETS: dict[str, dict[str, Any]] = {
    "break_eggs": {"batch_size": 4},  # published code
    "tennis_forehand": {"frames": 20},  # paper, sec. 4.2: its videos are shorter
}

RECIPES: dict[str, dict[str, Any]] = {
    "paper": {},
    "official": {"pairs": "any", "norm": "before", "masked_only": True},
    "cycle": {"standardize": "video", "crop": (0.5, 1.0), "cycle": 5.0},
}


def choose(dataset: str, *, recipe: Recipe = "paper", **given: Any) -> TrainSettings:
    """The settings of a recipe for a dataset, with those that are given in their place."""
    if recipe not in RECIPES:
        raise TrainError(f"recipe {recipe!r}; choose one of {', '.join(RECIPES)}")
    return TrainSettings(**({"recipe": recipe} | DATASETS.get(dataset, {}) | RECIPES[recipe] | given))


def from_dict(raw: Any) -> TrainSettings:
    """TrainSettings as a run's config.json holds them; raises TrainError for what they cannot be."""
    names = {field.name for field in fields(TrainSettings)}
    if not isinstance(raw, dict) or raw.keys() != names:
        found = sorted(raw.keys() ^ names) if isinstance(raw, dict) else raw
        raise TrainError(f"settings of another version of byov ({found})")
    crop = raw["crop"]
    return TrainSettings(**(raw | {"crop": tuple(crop) if isinstance(crop, list) else crop}))


def differences(ours: TrainSettings, theirs: TrainSettings) -> list[str]:
    """`name theirs, not ours` of each setting that is not the same."""
    return [
        f"{field.name} {getattr(theirs, field.name)!r}, not {getattr(ours, field.name)!r}"
        for field in fields(TrainSettings)
        if getattr(ours, field.name) != getattr(theirs, field.name)
    ]


def _check(holds: bool, name: str, value: object, expected: str) -> None:
    if not holds:
        raise TrainError(f"{name} is {value}; it must be {expected}")


def _check_type(name: str, value: object, kind: Any) -> None:
    """TrainSettings come from the command line and from files: a wrong type is a mistake of theirs, not of ours."""
    if kind == tuple[float, float]:
        right = isinstance(value, tuple) and len(value) == 2 and all(_is_a(part, (float,)) for part in value)
    elif get_origin(kind) is Literal:
        right = value in get_args(kind)
    else:
        right = _is_a(value, get_args(kind) or (kind,))
    if not right:
        raise TrainError(f"{name} is {value!r}, which it cannot be")


def _is_a(value: object, kinds: tuple[type, ...]) -> bool:
    """Of one of these types; whole numbers pass for others, booleans and what is not finite do not."""
    if isinstance(value, float | int) and not isinstance(value, bool):
        return abs(value) <= float_info.max and (type(value) in kinds or float in kinds)
    return type(value) in kinds
