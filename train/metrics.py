"""Where the figures of a run go: metrics.jsonl always, TensorBoard on request."""

import json
from pathlib import Path
from typing import Any

from byov.cache.atomic import write_text
from byov.errors import TrainError

METRICS_NAME = "metrics.jsonl"


class MetricsLog:
    """One JSON object per epoch. No times in it: a run that is repeated, or resumed, writes the same file."""

    def __init__(self, folder: Path, *, tensorboard: bool) -> None:
        self._path = folder / METRICS_NAME
        self._folder, self._tensorboard = folder / "tensorboard", tensorboard
        if tensorboard:
            _summary_writer_class()
        self._board: Any = None

    def __call__(self, records: list[dict[str, Any]]) -> None:
        write_text(self._path, "".join(json.dumps(record) + "\n" for record in records))
        newest = records[-1]
        if self._tensorboard:
            if self._board is None:  # what an interrupted run has logged beyond its checkpoint is hidden
                self._board = _summary_writer_class()(str(self._folder), purge_step=newest["step"])
            for name, value in newest.items():
                if name not in ("epoch", "step"):
                    self._board.add_scalar(name, value, newest["step"])
            self._board.flush()


def _summary_writer_class() -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise TrainError("--tensorboard needs the package of that name: pip install 'byov[tensorboard]'") from None
    return SummaryWriter
