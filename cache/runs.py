"""Where a training run lies, and what its config.json tells the stages that have no PyTorch.

runs/<run>/config.json  model.safetensors  ...
runs/<run>/embeddings[-untrained][-trimmed]/<view>/<video>[@<first>-<last>].h5
"""

import hashlib
import json
import logging
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, ValidationError

from byov.cache.layout import check_name
from byov.cache.sub_clips import clip_name
from byov.errors import CacheError
from byov.records import Record, problem

LOGGER = logging.getLogger(__name__)

CONFIG_NAME, MODEL_NAME, METRICS_NAME = "config.json", "model.safetensors", "metrics.jsonl"


class RunRecord(Record, extra="ignore"):
    """A run, and what it was trained on, as its config.json says under "training"."""

    name: str
    folder: Path
    dataset: Annotated[str, AfterValidator(partial(check_name, what="dataset"))]
    encoder: str
    encoder_folder: Annotated[str, AfterValidator(partial(check_name, what="encoder"))]  # below features/<dataset>/
    column: str  # "merged/0.3"
    recipe: str
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
        config = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        there = ", ".join(list_runs(folder.parent))
        instead = f"choose one of {there}" if there else "there is none yet; make one with byov-train --ratio 0.3"
        raise CacheError(f"{folder}: no such run; {instead}") from None
    except (OSError, ValueError, RecursionError) as error:
        raise CacheError(f"{path}: not readable ({error})") from error
    if not isinstance(config, dict):
        raise CacheError(f"{path}: not a JSON object")
    return config


def model_digest(run: Path) -> str:
    """The SHA-256 of a run's model file, which its embeddings carry too."""
    path = run / MODEL_NAME
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError:
        raise CacheError(f"{path}: no model yet; finish the run with byov-train --run {run.name} --resume") from None
