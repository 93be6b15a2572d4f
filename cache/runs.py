"""Where a training run lies, and what its config.json tells the stages that have no PyTorch.

runs/<run>/config.json  model.safetensors  ...
runs/<run>/embeddings[-untrained][-trimmed]/<view>/<video>[@<first>-<last>].h5
"""

import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, ValidationError

from byov.cache.layout import check_name, ratio_key
from byov.cache.seal import UNSEAL, SealError, check_seal, refuse_nameless, unsealed
from byov.cache.sub_clips import clip_name
from byov.cache.weights import WeightsFile, check_weights
from byov.errors import CacheError
from byov.records import Record, problem

LOGGER = logging.getLogger(__name__)

CONFIG_NAME, MODEL_NAME, METRICS_NAME = "config.json", "model.safetensors", "metrics.jsonl"
LAST_MODEL_NAME = "model-last.safetensors"  # written when the last step is done
FILES_KEY = "files_sha256"  # of config.json, under "training"
BYOV = "byov"  # the method that has recipes


class RunRecord(Record, extra="ignore"):
    """A run, and what it was trained on, as its config.json says under "training"."""

    name: str
    folder: Path
    dataset: Annotated[str, AfterValidator(partial(check_name, what="dataset"))]
    encoder: str
    encoder_folder: Annotated[str, AfterValidator(partial(check_name, what="encoder"))]  # below features/<dataset>/
    column: str  # "merged/0.3"
    recipe: str  # of byov; of a run of another method, that one's name
    title: str = ""  # of its method, for tables; up to byov 0.2 it was not said
    seed: int
    untrained_sha256: str  # of the model at its initialisation
    training: dict[str, Any]  # all of it

    @property
    def config(self) -> Path:
        return self.folder / CONFIG_NAME

    @property
    def settings(self) -> dict[str, Any]:
        """What it was trained with, for people to read; {} if it does not say."""
        settings = self.training.get("settings")
        return settings if isinstance(settings, dict) else {}

    @property
    def method(self) -> str:
        return str(self.settings.get("method", BYOV))  # up to byov 0.2 there was no other

    @property
    def label(self) -> tuple[str, str]:
        """What it is called, after the word for what that is: byov has recipes, of which each run names one, and the
        other methods have none."""
        return ("recipe" if self.method == BYOV else "method"), self.recipe

    @property
    def ratio(self) -> float:
        """STM, as its column says."""
        try:
            ratio = float(self.column.removeprefix("merged/"))
        except ValueError:
            ratio = 0.0
        if not 0 < ratio <= 1 or self.column != f"merged/{ratio_key(ratio)}":
            raise CacheError(f"{self.config}: its column {self.column!r} is none of a ratio")
        return ratio


def run_folder(runs_dir: Path, run: str) -> Path:
    """run: its name, or runs_dir/name, as a shell completes it."""
    name = Path(run).name if Path(run).parent == runs_dir else run
    return runs_dir / check_name(name, "run")


def embeddings_folder(run: Path, *, untrained: bool = False, trimmed: bool = False) -> Path:
    return run / ("embeddings" + "-untrained" * untrained + "-trimmed" * trimmed)


def embedding_path(folder: Path, view: str, video_id: str, clip: tuple[int, int] | None = None) -> Path:
    """The file of a whole video, or of one of its sub-clips (first and last frame)."""
    check_name(video_id, "video id")
    return folder / view / f"{clip_name(video_id, *clip) if clip else video_id}.h5"


def list_runs(runs_dir: Path) -> list[str]:
    """The runs in a folder, the newest first."""
    configs = [path for path in runs_dir.glob(f"*/{CONFIG_NAME}") if not path.parent.name.startswith(".")]
    return [
        path.parent.name for path in sorted(configs, key=lambda path: (path.stat().st_mtime_ns, path), reverse=True)
    ]


def choose_runs(runs_dir: Path, wanted: Sequence[str], dataset: str | None = None) -> list[RunRecord]:
    """The runs by name; if none is named, the newest of the dataset, or [] if it has none."""
    if wanted:
        runs = [read_run(runs_dir, run) for run in dict.fromkeys(wanted)]
        if len({run.dataset for run in runs} | ({dataset} if dataset else set())) > 1:
            told = ", ".join(f"{run.name} of {run.dataset}" for run in runs)
            raise CacheError(f"one table is of one dataset: {told}" + (f"; --dataset {dataset}" if dataset else ""))
        return runs
    names, others = list_runs(runs_dir), 0
    for name in names:
        try:
            run = read_run(runs_dir, name)
        except CacheError as error:
            LOGGER.info(f"{name}: not looked at ({error})")
            continue
        if dataset in (None, run.dataset):
            LOGGER.info(f"run: {name}, the {'newest' if len(names) > 1 else 'only'} one (choose with --run)")
            return [run]
        others += 1
    if others:
        LOGGER.info(f"no run of {dataset} among the {others} in {runs_dir}")
    return []


def choose_run(runs_dir: Path, wanted: str | None = None) -> RunRecord:
    """The run by name, else the newest."""
    runs = choose_runs(runs_dir, [] if wanted is None else [wanted])
    if not runs:
        raise CacheError(f"{runs_dir}: no run here; make one with byov-train, or say where with --runs-dir")
    return runs[0]


def read_run(runs_dir: Path, run: str) -> RunRecord:
    folder = run_folder(runs_dir, run)
    config = read_config(folder)
    training = config.get("training")
    try:
        if not isinstance(training, dict):
            raise ValueError("it does not say how the model was trained")
        training = dict[str, Any]({"settings": config.get("settings")} | training)  # up to byov 0.2 it was in there
        return RunRecord(**(training | {"name": folder.name, "folder": folder, "training": training}))
    except (CacheError, ValueError) as error:
        reason = problem(error) if isinstance(error, ValidationError) else error
        raise CacheError(f"{folder / CONFIG_NAME}: not a run of byov-train ({reason})") from error


def read_config(folder: Path) -> dict[str, Any]:
    path = folder / CONFIG_NAME
    try:
        content = path.read_bytes()
        is_sealed, config = check_seal(content), json.loads(content)
        if isinstance(config, dict) and not is_sealed:
            refuse_nameless(config)
    except FileNotFoundError:
        there = ", ".join(list_runs(folder.parent))
        instead = f"choose one of {there}" if there else "there is none yet; make one with byov-train --ratio 0.3"
        raise CacheError(f"{folder}: no such run; {instead}") from None
    except SealError as error:
        raise CacheError(f"{path}: {error}; restore it from a copy, or, if you have edited it, {UNSEAL}") from None
    except (OSError, ValueError, RecursionError) as error:
        raise CacheError(f"{path}: not readable ({error})") from error
    if not isinstance(config, dict):
        raise CacheError(f"{path}: not a JSON object")
    return unsealed(config)


def written_files(training: Mapping[str, Any]) -> dict[str, str]:
    """File name → SHA-256 of what a finished run has written beside its config.json; {} if that does not say."""
    files = training.get(FILES_KEY)
    return {name: str(digest) for name, digest in files.items()} if isinstance(files, dict) else {}


def check_model(run: Path, training: Mapping[str, Any], name: str = MODEL_NAME) -> WeightsFile:
    """A run's model file, if it is whole and the run's own; training: what the run's config.json says."""
    try:
        found = check_weights(run / name)
    except CacheError as error:
        if not (run / name).exists():
            raise CacheError(
                f"{run / name}: no model yet; finish the run with byov-train --run {run.name} --resume"
            ) from None
        raise CacheError(f"{error}; restore it from a copy, or train the run again") from None
    if found.sealed and found.identity != training.get("identity"):
        raise CacheError(f"{found.path}: a model of another run ({found.origin}); restore the run's own")
    recorded = written_files(training).get(name, found.sha256)
    if recorded != found.sha256:
        raise CacheError(
            f"{found.path}: model {found.sha256[:12]}, the run was finished with {recorded[:12]}; restore the run's own"
        )
    return found


def check_file(path: Path, training: Mapping[str, Any]) -> None:
    """Raise CacheError if a file of a finished run is not as the run has left it."""
    recorded = written_files(training).get(path.name)
    if recorded is not None and hashlib.sha256(path.read_bytes()).hexdigest() != recorded:
        raise CacheError(f"it is not as the run has left it: its digest is not that in {CONFIG_NAME}")


def model_digest(run: Path, training: Mapping[str, Any]) -> str:
    """The SHA-256 of a run's own model file, which its embeddings carry too."""
    return check_model(run, training).sha256
