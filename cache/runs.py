"""Run folders: records, summaries, listing and deletion. Does not import PyTorch.

runs/<run>/config.json  model.safetensors  model-last.safetensors  metrics.jsonl  checkpoint/
runs/<run>/embeddings[-untrained][-trimmed|-online]/<view>/<video>[@<first>-<last>].h5
"""

import logging
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from math import isfinite
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, ValidationError

from byov.cache import digests
from byov.cache.atomic import is_locked
from byov.cache.layout import Protocol, check_name, clip_name
from byov.errors import CacheError
from byov.files import parse_json, read_bytes, read_text
from byov.records import Record, problem

LOGGER = logging.getLogger(__name__)

CONFIG_NAME = "config.json"
MODEL_NAME = "model.safetensors"
METRICS_NAME = "metrics.jsonl"
LAST_MODEL_NAME = "model-last.safetensors"  # written after the last step
CHECKPOINTS_NAME = "checkpoint"
LOCK_NAME = ".lock"
# Key under "training" in config.json of finished runs; maps file names to digests.
FILES_KEY = "files_sha256"
DIAGNOSTICS_PREFIX = "diagnostics/"  # of names in metrics.jsonl
BYOV = "byov"  # the only method with recipes
MAX_LISTED = 5  # number of runs in an error message
BEING_TRAINED = "another process is training this run"
TrainingStatus = Literal["finished", "in training", "stopped"]


def _check_settings(training: dict[str, Any]) -> dict[str, Any]:
    settings = training.get("settings")
    if not isinstance(settings, dict | None):
        raise ValueError(f"settings is {settings!r:.80}; it must be a dictionary")
    return training


Training = Annotated[dict[str, Any], AfterValidator(_check_settings)]


class RunRecord(Record, extra="ignore"):
    """Record of a run, stored under "training" in its config.json."""

    name: str
    folder: Path
    dataset: Annotated[str, AfterValidator(partial(check_name, what="dataset"))]
    encoder: str
    encoder_revision: str = ""
    encoder_sha256: str = ""
    preprocessing: str = ""
    # In features/<dataset>/.
    encoder_folder: Annotated[str, AfterValidator(partial(check_name, what="encoder"))]
    # Tokens merged at the STM ratio.
    column: Annotated[str, Field(pattern=r"^merged/(0\.\d+|1\.0)$")]
    recipe: str  # BYOV recipe; for other methods, the method name
    title: str = ""  # name of the method in tables
    seed: int
    untrained_sha256: str  # digest of the model at initialization
    features_sha256: str  # digest of the train and val features; see `training_digests`
    labels_sha256: str
    training: Training  # the complete JSON record

    @property
    def settings(self) -> dict[str, Any]:
        """Training settings by the names of their options; empty if the record has none."""
        settings = dict[str, Any]()
        for name, value in (self.training.get("settings") or {}).items():
            settings |= value if isinstance(value, dict) else {name: value}
        if "name" in settings:
            settings["method"] = settings.pop("name")
        return settings

    @property
    def method(self) -> str:
        return str(self.settings.get("method", BYOV))

    @property
    def label(self) -> tuple[str, str]:
        """("recipe", name) for BYOV, ("method", name) for other methods, which have no recipes."""
        return ("recipe" if self.method == BYOV else "method"), self.recipe

    @property
    def ratio(self) -> float:
        """STM ratio of the features."""
        return float(self.column.removeprefix("merged/"))


def run_folder(runs_dir: Path, run: str) -> Path:
    """Return the folder of a run, given its name or the path runs_dir/name (from shell
    completion).
    """
    name = Path(run).name if isinstance(run, str) and Path(run).parent == runs_dir else run
    return runs_dir / check_name(name, "run")


def embeddings_folder(
    run: Path, protocol: Protocol = "standard", *, untrained: bool = False
) -> Path:
    return run / (
        "embeddings" + "-untrained" * untrained + f"-{protocol}" * (protocol != "standard")
    )


def embedding_path(
    folder: Path, view: str, video_id: str, clip: tuple[int, int] | None = None
) -> Path:
    """Return the path of the embedding file of a video, or of the sub-clip `clip` (start, stop)."""
    check_name(video_id, "video id")
    return folder / view / f"{clip_name(video_id, *clip) if clip else video_id}.h5"


def list_runs(runs_dir: Path) -> list[str]:
    """Return the names of all runs, newest first."""
    newest_first = sorted(
        runs_dir.glob(f"[!.]*/{CONFIG_NAME}"),
        key=lambda path: (path.stat().st_mtime_ns, path),
        reverse=True,
    )
    return [path.parent.name for path in newest_first]


def readable_runs(runs_dir: Path) -> Iterator[RunRecord]:
    """Yield all readable runs, newest first; log and skip the others."""
    for name in list_runs(runs_dir):
        try:
            yield read_run(runs_dir, name)
        except CacheError as error:
            LOGGER.info(f"{name}: skipped ({error})")


def choose_runs(
    runs_dir: Path, names: Sequence[str], dataset: str | None = None
) -> list[RunRecord]:
    """Return the named runs, or the newest run of the dataset if no name is given; empty if there
    is none.
    """
    if names:
        runs = [read_run(runs_dir, name) for name in dict.fromkeys(names)]
        if len({run.dataset for run in runs} | ({dataset} if dataset else set())) > 1:
            listed = ", ".join(f"{run.name} of {run.dataset}" for run in runs)
            raise CacheError(
                f"A table covers one dataset: {listed}. "
                + (f"Omit --dataset {dataset}." if dataset else "Choose runs of one dataset.")
            )
        return runs
    existing = list_runs(runs_dir)
    for name in existing:
        try:
            run = read_run(runs_dir, name)
        except CacheError as error:  # it may be the newest run of the dataset
            raise CacheError(f"{error}; or choose another run with --run") from None
        if dataset in (None, run.dataset):
            newest = "newest" if len(existing) > 1 else "only"
            LOGGER.info(f"run: {run.name}, the {newest} one (choose with --run)")
            return [run]
    return []


def choose_run(runs_dir: Path, name: str | None = None) -> RunRecord:
    """Return the named run, or the newest one."""
    runs = choose_runs(runs_dir, [] if name is None else [name])
    if not runs:
        raise CacheError(f"{runs_dir}: no runs; train one with byov-train or set --runs-dir")
    return runs[0]


def read_run(runs_dir: Path, run: str) -> RunRecord:
    """Read the record of a run from its config.json."""
    folder = run_folder(runs_dir, run)
    config = read_config(folder)
    try:
        training = {"settings": config.get("settings")} | (config.get("training") or {})
        return RunRecord(
            **(training | {"name": folder.name, "folder": folder, "training": training})
        )
    except (CacheError, TypeError, ValidationError) as error:
        reason = problem(error) if isinstance(error, ValidationError) else error
        raise CacheError(f"{folder / CONFIG_NAME}: not written by byov-train ({reason})") from error


def read_config(folder: Path) -> dict[str, Any]:
    """Read a run's config.json and verify its digest."""
    path = folder / CONFIG_NAME
    try:
        config = digests.read_sealed_json(read_bytes(path))
        digests.check_schema(config.get("schema_version", digests.SCHEMA_VERSION), path)
        return config
    except FileNotFoundError:
        raise CacheError(f"{folder}: no such run; {_other_runs(folder)}") from None
    except digests.SealError as error:
        raise CacheError(
            f"{path} {error}. Restore it from a copy, or {digests.ACCEPT_EDIT}"
        ) from None
    except (OSError, ValueError) as error:
        raise CacheError(
            f"{path}: not readable ({error}); restore it from a copy, or train the run again"
        ) from error


def _other_runs(folder: Path) -> str:
    """Suggest the runs whose names are similar to that of a missing run."""
    existing = list_runs(folder.parent)
    if not existing:
        return "there are none yet; train one with byov-train --ratio 0.3"
    if len(existing) <= MAX_LISTED:
        return f"choose one of {', '.join(existing)}"
    similar = ", ".join(get_close_matches(folder.name, existing)) or existing[0]
    return f"byov-runs lists all {len(existing)}, such as {similar}"


def _recorded_digest(training: Mapping[str, Any], name: str) -> str | None:
    files = training.get(FILES_KEY)
    return str(files[name]) if isinstance(files, dict) and name in files else None


def check_model(
    run: Path, training: Mapping[str, Any], name: str = MODEL_NAME
) -> digests.WeightsFile:
    """Check that a model file is intact and belongs to the run;

    `training` is the record in its config.json.
    """
    path = run / name
    if not path.exists():
        finish = f"finish the run with byov-train --run {run.name} --resume"
        raise CacheError(f"{path}: no model yet; {BEING_TRAINED if is_training(run) else finish}")
    try:
        weights = digests.check_weights(path, training)
    except CacheError as error:
        raise CacheError(f"{error}; restore it from a copy, or train the run again") from None
    recorded = _recorded_digest(training, name)
    if recorded not in (None, weights.sha256):
        raise CacheError(
            f"{path}: SHA-256 {weights.sha256[:12]}, but config.json records {recorded[:12]}; "
            "restore the model"
        )
    return weights


def check_file(path: Path, training: Mapping[str, Any]) -> bool:
    """Verify a file against its digest in config.json; return False if it has none, as in
    unfinished runs.
    """
    recorded = _recorded_digest(training, path.name)
    if recorded not in (None, digests.file_sha256(path)):
        raise CacheError(f"does not match its digest in {CONFIG_NAME}: it is damaged or was edited")
    return recorded is not None


@dataclass(frozen=True)
class RunSummary:
    """Status, epoch and best score of a run."""

    state: TrainingStatus
    epoch: int | None  # last completed epoch
    epochs: int | None  # total number of epochs
    metric: str | None  # metric that selects the model
    best: float | None  # best value of the metric on the val split
    damaged: bool = False  # metrics.jsonl does not match its digest and was not read

    @property
    def description(self) -> str:
        """Short text such as "stopped at epoch 76 of 300"."""
        if self.state == "finished" or self.epoch is None:
            return self.state
        comma = "," if self.state == "in training" else ""
        total = "" if self.epochs is None else f" of {self.epochs}"
        return f"{self.state}{comma} at epoch {self.epoch}{total}"


def summarize_run(run: RunRecord) -> RunSummary:
    """Read the status, epoch and best score of a run from its files."""
    records = list[dict[str, Any]]()
    damaged = False
    total = run.settings.get("epochs")
    try:
        records = read_metrics(run)
    except CacheError:
        damaged = True
    epoch = max((record["epoch"] for record in records), default=None)
    # A run shared without its last model also counts as finished, unless it still has a checkpoint
    # to resume from.
    is_shared = epoch is not None and epoch == total and not checkpoint_files(run)
    state: TrainingStatus = "in training" if is_training(run.folder) else "stopped"
    if (run.folder / LAST_MODEL_NAME).exists() or is_shared:
        state = "finished"
    wanted = str(run.settings.get("select"))
    metric = next(
        (name for name in (wanted, "tau") if any(name in record for record in records)), None
    )
    scores = [record[metric] for record in records if record["epoch"] > 0 and metric in record]
    return RunSummary(state, epoch, total, metric, max(scores, default=None), damaged)


def unfinished_text(run: RunRecord) -> str | None:
    """Return a remark such as "unfinished, stopped at epoch 76 of 300: ...";

    None if the run is finished.
    """
    summary = summarize_run(run)
    if summary.state == "finished" or summary.epoch is None:
        return None
    model = ": its model is the best so far" if (run.folder / MODEL_NAME).exists() else ""
    return f"unfinished, {summary.description}{model}"


def is_training(folder: Path) -> bool:
    """Return whether a process is training the run."""
    return is_locked(folder / LOCK_NAME)


def size_bytes(folder: Path) -> int:
    """Return the total size of all files in a folder and its subfolders."""
    size = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError):  # training may delete files concurrently
                size += Path(place, name).lstat().st_size
    return size


def checkpoint_files(run: RunRecord) -> list[Path]:
    return sorted((run.folder / CHECKPOINTS_NAME).glob("step-*.safetensors"))


def delete_run(run: RunRecord) -> None:
    """Delete a run's folder, unless the run is being trained."""
    if is_training(run.folder):
        raise CacheError(f"{run.folder}: {BEING_TRAINED}; stop it first")
    if run.folder.is_symlink():
        raise CacheError(f"{run.folder}: a symbolic link; delete its target by hand")
    shutil.rmtree(run.folder)


def prune_checkpoints(run: RunRecord) -> None:
    """Delete the checkpoints of a finished run, which are no longer needed."""
    for path in checkpoint_files(run):
        path.unlink(missing_ok=True)


def read_metrics(run: RunRecord) -> list[dict[str, Any]]:
    """Return the finite numbers in each valid line of metrics.jsonl; raise CacheError if the file
    is damaged.
    """
    path = run.folder / METRICS_NAME
    try:
        check_file(path, run.training)
        lines = read_text(path).splitlines()
    except (OSError, ValueError):
        return []
    records = []
    for line in lines:
        with suppress(ValueError, AttributeError, OverflowError):
            numbers = {
                name: value
                for name, value in parse_json(line).items()
                if type(value) in (int, float) and isfinite(value)
            }
            if type(numbers.get("epoch")) is int:
                records.append(numbers)
    return records
