"""What a sweep has its workers do: train and score a run; score what stands beside the runs in a table."""

import json
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from byov.cache.atomic import write_text
from byov.cache.runs import CHECKPOINTS_NAME, CONFIG_NAME, LAST_MODEL_NAME, is_training
from byov.cluster.grids import PlannedRun
from byov.cluster.score_files import SWEEP_FOLDER, Rows, measured_rows, run_scores
from byov.device import Device
from byov.errors import ByovError, Diverged, Interrupted
from byov.evaluate.embeddings import CachedFeatures, EmbeddingReader, RunEmbeddings, TimeOnly
from byov.evaluate.evaluation import Scope
from byov.progress import NO_PROGRESS, Stop, Stoppable

FAILURE_NAME = ".failure.json"  # hidden, since a folder that holds nothing else is free for a run of that name
PATIENCE_SECONDS = 10.0  # for the workers of a sweep that was killed, which end by themselves
ResultState = Literal["finished", "failed", "stopped"]


@dataclass(frozen=True)
class Folders:
    """Absolute: workers may be anywhere."""

    features: Path
    runs: Path

    def run(self, name: str) -> Path:
        return self.runs / name


@dataclass(frozen=True)
class RunResult:
    """What became of a run."""

    name: str
    state: ResultState
    reason: str = ""  # why it failed
    seconds: float = 0.0


@dataclass(frozen=True)
class RunWork:
    """A run from where it is to its scores."""

    run: PlannedRun
    folders: Folders
    scope: Scope
    untrained: bool  # score its model at initialization too
    device: Device = "auto"

    @property
    def name(self) -> str:
        return self.run.name

    def __call__(self, stop: Stop) -> RunResult:
        started, folder = time.monotonic(), self.folders.run(self.name)
        ended = partial(RunResult, self.name)
        if not _left_alone(folder, stop):
            return ended("failed", "another process is at work on this run; once that has ended, start the sweep again")
        try:
            self._train(folder, stop)
            self._score(folder, stop)
        except Interrupted:
            return ended("stopped")
        except (ByovError, Diverged) as error:
            write_failure(folder, str(error))
            return ended("failed", str(error))
        except OSError as error:  # of this machine, now: the next sweep goes on
            return ended("failed", f"{error.filename or folder}: {error.strerror or error}")
        return ended("finished", seconds=round(time.monotonic() - started, 1))

    def _train(self, folder: Path, stop: Stop) -> None:
        is_scored = run_scores(folder).exists()  # at another time, for other tasks
        is_pruned = (folder / LAST_MODEL_NAME).exists() and not any((folder / CHECKPOINTS_NAME).glob("*.safetensors"))
        if is_scored or is_pruned:
            return
        from byov.train.run import train_run  # imports PyTorch, which only workers need

        train_run(
            self.name,
            dataset=self.run.dataset,
            encoder=self.run.encoder_folder,
            ratio=self.run.ratio,
            resume=(folder / CONFIG_NAME).exists(),
            device=self.device,
            features_dir=self.folders.features,
            runs_dir=self.folders.runs,
            stop=stop,
            **self.run.settings.model_dump(),
        )

    def _score(self, folder: Path, stop: Stop) -> None:
        """Its own scores last: they say that it is finished."""
        for untrained in (True, False) if self.untrained else (False,):
            reader = RunEmbeddings(self.folders.runs, self.folders.features, self.name, untrained=untrained)
            path = run_scores(folder, untrained=untrained)
            measured_rows(path, reader, self.folders.features, self.scope, Stoppable(NO_PROGRESS, stop))


@dataclass(frozen=True)
class BaselineWork:
    """Scores of cached features, or of time alone; its result is rows, or in one line why there are none."""

    dataset: str
    folders: Folders
    scope: Scope
    features: tuple[str, str, bool] | None = None  # encoder folder, column, standardized; None: time alone

    @property
    def name(self) -> str:
        if self.features is None:
            return self.dataset
        encoder, column, standardized = self.features
        return ",".join((self.dataset, encoder, column.replace("/", "-"), *(["standardized"] if standardized else [])))

    def __call__(self, stop: Stop) -> Rows | str | None:
        path = self.folders.runs / SWEEP_FOLDER / f"{self.name}.json"
        try:
            return measured_rows(path, self._reader(), self.folders.features, self.scope, Stoppable(NO_PROGRESS, stop))
        except Interrupted:
            return None
        except (ByovError, OSError) as error:
            return str(error)

    def _reader(self) -> EmbeddingReader:
        if self.features is None:
            return TimeOnly(self.folders.features, self.dataset)
        encoder, column, standardized = self.features
        return CachedFeatures(self.folders.features, self.dataset, encoder, column, standardized=standardized)


def write_failure(run: Path, reason: str) -> None:
    """That it is not tried again without being asked to."""
    write_text(run / FAILURE_NAME, json.dumps({"reason": reason}) + "\n")


def read_failure(run: Path) -> str | None:
    """Why a run has failed; None if it has not."""
    try:
        record = json.loads((run / FAILURE_NAME).read_text(encoding="utf-8"))
        return str(record["reason"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return "it does not say why"


def _left_alone(folder: Path, stop: Stop) -> bool:
    """Wait a little for another process that is training this run."""
    began = time.monotonic()
    while is_training(folder):
        if stop() or time.monotonic() - began > PATIENCE_SECONDS:
            return False
        time.sleep(0.1)
    return True
