"""Where the figures of a run can be watched, beside its metrics.jsonl: TensorBoard, Weights & Biases. Each is a package
of its own, which is asked for before anything is trained."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from byov.cache.atomic import write_text
from byov.errors import TrainError

WANDB_ID = "id"  # of the run over there; in the folder wandb, so that a run that is resumed goes on there, too


class Board(Protocol):
    def __call__(self, figures: Mapping[str, float], step: int) -> None:
        """The figures of an epoch, which ended with this step."""

    def close(self) -> None: ...


class TensorBoard:
    """A folder of TensorBoard's files in that of the run."""

    def __init__(self, run: Path) -> None:
        self._folder, self._writer_class = run / "tensorboard", _summary_writer_class()
        self._writer: Any = None

    def __call__(self, figures: Mapping[str, float], step: int) -> None:
        if self._writer is None:  # what an interrupted run has logged beyond its checkpoint is hidden
            self._writer = self._writer_class(str(self._folder), purge_step=step)
        for name, value in figures.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


class WeightsAndBiases:
    """A run of the project "byov" there, called as the run is here. WANDB_MODE, WANDB_PROJECT and all else of its
    environment are as ever."""

    def __init__(self, run: Path, settings: Mapping[str, Any]) -> None:
        self._run, self._settings, self._wandb = run, dict(settings), _wandb()
        self._there: Any = None

    def __call__(self, figures: Mapping[str, float], step: int) -> None:
        if self._there is None:
            self._there = self._begin()
        self._there.log(dict(figures), step=step)  # a step that is there already is left as it is, and is the same

    def _begin(self) -> Any:
        folder = self._run / "wandb"
        folder.mkdir(parents=True, exist_ok=True)
        known = folder / WANDB_ID
        try:
            there = self._wandb.init(
                project=os.environ.get("WANDB_PROJECT", "byov"),
                name=self._run.name,
                id=known.read_text(encoding="utf-8").strip() if known.is_file() else None,
                resume="allow",
                dir=str(self._run),
                config=self._settings,
                settings=self._wandb.Settings(silent=True, console="off"),
            )
        except self._wandb.Error as error:
            reason = (str(error).splitlines() or ["no reason is given"])[0]
            raise TrainError(f"--wandb: {reason.rstrip('.')}; with WANDB_MODE=offline it writes files alone") from None
        write_text(known, there.id + "\n")
        return there

    def close(self) -> None:
        if self._there is not None:
            self._there.finish()


@contextmanager
def open_boards(run: Path, settings: Mapping[str, Any], *, tensorboard: bool, wandb: bool) -> Iterator[Sequence[Board]]:
    """Those that were asked for, closed in the end. settings: what there is to say of the run."""
    boards: list[Board] = []
    if tensorboard:
        boards.append(TensorBoard(run))
    if wandb:
        boards.append(WeightsAndBiases(run, settings))
    try:
        yield boards
    finally:
        for board in boards:
            board.close()


def _summary_writer_class() -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise TrainError("--tensorboard needs the package of that name: pip install tensorboard") from None
    return SummaryWriter


def _wandb() -> Any:
    try:
        import wandb
    except ImportError:
        raise TrainError("--wandb needs the package of that name: pip install wandb") from None
    return wandb
