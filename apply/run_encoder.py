"""The encoder that a run was trained on, as its config.json says, and how frames were prepared for it."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast, get_args

from byov.cache.layout import ratio_key
from byov.cache.runs import CONFIG_NAME, RunRecord
from byov.errors import ApplyError
from byov.extract.encoder_name import RANDOM_PREFIX, EncoderName, Resize, parse_encoder

if TYPE_CHECKING:  # torch and transformers take seconds to import
    from byov.extract.encoders import FrameEncoder

_OF_A_FOLDER = "folder "  # how the revision of an encoder from a local folder begins


@dataclass(frozen=True)
class RunEncoder:
    """What must be loaded, and what it must turn out to be, for a new video to be seen as the run saw its own."""

    name: EncoderName
    resize: Resize
    ratio: float  # STM
    revision: str  # this and the rest: as the run's features were made
    sha256: str
    preprocessing: str

    def refuse_other(self, run: RunRecord, loaded: "FrameEncoder") -> None:
        """Raise unless the loaded encoder is the run's."""
        for what, theirs, ours in (
            ("encoder weights", self.sha256, loaded.sha256),
            ("preprocessing", self.preprocessing, loaded.preprocessing.describe()),
        ):
            if theirs != ours:
                raise ApplyError(
                    f"{run.name} was trained on {run.encoder} with {what} {theirs!r}, "
                    f"{self.name.source} has {ours!r}; give the run's own encoder with --encoder"
                )


def encoder_of(run: RunRecord, given: str | None) -> RunEncoder:
    """The run's encoder; `given`: where to find it, if it is not where the run's record says."""
    revision, sha256, preprocessing = (
        _text(run, key) for key in ("encoder_revision", "encoder_sha256", "preprocessing")
    )
    return RunEncoder(
        name=_recorded_name(run, revision) if given is None else parse_encoder(given),
        resize=_resize(run, preprocessing),
        ratio=_ratio(run),
        revision=revision,
        sha256=sha256,
        preprocessing=preprocessing,
    )


def _recorded_name(run: RunRecord, revision: str) -> EncoderName:
    if revision.startswith(_OF_A_FOLDER):
        raise ApplyError(
            f"{run.name} was trained on an encoder from a local folder named {run.encoder!r}; "
            "say where it is with --encoder FOLDER"
        )
    if run.encoder.startswith(RANDOM_PREFIX):
        return parse_encoder(run.encoder)
    # On the hub, then; a folder of that name would be loaded in its place.
    if run.encoder.startswith((".", "/", "~")) or Path(run.encoder).is_dir():
        raise ApplyError(f"{run.name} was trained on {run.encoder!r}, a folder's name; say --encoder if it is that")
    return parse_encoder(run.encoder, revision or None)


def _resize(run: RunRecord, preprocessing: str) -> Resize:
    word = preprocessing.partition(" ")[0]
    if word not in get_args(Resize):
        raise ApplyError(f"{_config(run)}: its preprocessing {preprocessing!r} is none that byov knows")
    return cast(Resize, word)


def _ratio(run: RunRecord) -> float:
    try:
        ratio = float(run.column.removeprefix("merged/"))
    except ValueError:
        ratio = 0.0
    if not 0 < ratio <= 1 or run.column != f"merged/{ratio_key(ratio)}":
        raise ApplyError(f"{_config(run)}: its column {run.column!r} is none of a ratio")
    return ratio


def _text(run: RunRecord, key: str) -> str:
    value = run.training.get(key)
    if not isinstance(value, str):
        raise ApplyError(f"{_config(run)}: {key} is {value!r}; without it the run's encoder is not known")
    return value


def _config(run: RunRecord) -> Path:
    return run.folder / CONFIG_NAME
