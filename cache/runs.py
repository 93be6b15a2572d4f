"""Where a training run lies, and what its config.json tells the stages that have no PyTorch.

runs/<run>/config.json  model.safetensors  ...
runs/<run>/embeddings[-untrained][-trimmed]/<view>/<video>[@<first>-<last>].h5
"""

import fcntl
import hashlib
import json
import logging
import os
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from sys import float_info
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ValidationError

from byov.cache.digests import UNSEAL, SealError, WeightsFile, check_seal, check_weights, refuse_nameless, unsealed
from byov.cache.layout import check_name, clip_name, ratio_key
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
    untrained_sha256: str  # of the model at its initialization
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


CHECKPOINTS_NAME, LOCK_NAME = "checkpoint", ".lock"
RunState = Literal["finished", "in training", "stopped"]


@dataclass(frozen=True)
class RunProgress:
    """epoch, epochs: the last that is done, and how many there are to be; None where the run does not say."""

    state: RunState
    epoch: int | None
    epochs: int | None
    metric: str | None  # what the model is chosen by
    best: float | None  # the best of it on the val split, so far

    @property
    def said(self) -> str:
        """ "stopped at epoch 76 of 300" """
        if self.state == "finished" or self.epoch is None:
            return self.state
        where = f"epoch {self.epoch}" + (f" of {self.epochs}" if self.epochs is not None else "")
        return f"{self.state}, at {where}" if self.state == "in training" else f"{self.state} at {where}"


def read_progress(run: RunRecord) -> RunProgress:
    records, epochs = _records(run.folder / METRICS_NAME), run.settings.get("epochs")
    epoch = max((record["epoch"] for record in records), default=None)
    total = epochs if type(epochs) is int else None
    # Without its last model it may have been given away; with a checkpoint it has that model still to write.
    given_away = epoch is not None and epoch == total and not checkpoint_files(run)
    state: RunState = "in training" if at_work(run.folder) else "stopped"
    if (run.folder / LAST_MODEL_NAME).exists() or given_away:
        state = "finished"
    wanted = str(run.settings.get("select"))
    metric = next((name for name in (wanted, "tau") if any(name in record for record in records)), None)
    scores = [record[metric] for record in records if record["epoch"] > 0 and metric in record]
    return RunProgress(state, epoch, total, metric, max(scores, default=None))


def unfinished(run: RunRecord) -> str | None:
    """One line on a run that has epochs before it, with what to do; None for one that is finished or does not say."""
    said = unfinished_text(run)
    if said is None:
        return None
    advice = "" if at_work(run.folder) else f"; go on with byov-train --run {run.name} --resume"
    return f"{run.name}: {said}{advice}"


def unfinished_text(run: RunRecord) -> str | None:
    """As `unfinished`, for what is written and read elsewhere: "unfinished, stopped at epoch 76 of 300: ..." """
    progress = read_progress(run)
    if progress.state == "finished" or progress.epoch is None:
        return None
    model = ": its model is the best so far" if (run.folder / MODEL_NAME).exists() else ""
    return f"unfinished, {progress.said}{model}"


def at_work(folder: Path) -> bool:
    """Is a process training this run now?"""
    try:
        descriptor = os.open(folder / LOCK_NAME, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    except BlockingIOError:
        return True
    except OSError:  # a disk without locks
        return False
    finally:
        os.close(descriptor)


def size_bytes(folder: Path) -> int:
    """Of all files below a folder; in that of a run in training they come and go."""
    size = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError):
                size += Path(place, name).lstat().st_size
    return size


def checkpoint_files(run: RunRecord) -> list[Path]:
    return sorted((run.folder / CHECKPOINTS_NAME).glob("step-*.safetensors"))


def delete_run(run: RunRecord) -> None:
    if at_work(run.folder):
        raise CacheError(f"{run.folder}: a process is training this run; stop it first")
    if run.folder.is_symlink():
        raise CacheError(f"{run.folder}: a link; delete what it leads to by hand")
    shutil.rmtree(run.folder)


def prune_checkpoints(run: RunRecord) -> int:
    """Delete the checkpoints of a finished run, which nothing needs any more; returns their bytes."""
    files = checkpoint_files(run)
    freed = sum(path.stat().st_size for path in files)
    for path in files:
        path.unlink(missing_ok=True)
    return freed


def _records(path: Path) -> list[dict[str, Any]]:
    """The epochs' records; of a file that is damaged, those that can be read."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        return []
    records = []
    for line in lines:
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            continue
        figures = {name: value for name, value in record.items() if _is_number(value)} if type(record) is dict else {}
        if type(figures.get("epoch")) is int:
            records.append(figures)
    return records


def _is_number(value: Any) -> bool:
    """Such that it can be printed."""
    return type(value) in (int, float) and abs(value) <= float_info.max
