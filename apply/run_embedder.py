"""Frame embeddings of any videos, by a run's own encoder and model: what the stages do, for videos of no dataset."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from byov.apply.run_encoder import RunEncoder
from byov.cache.embeddings import EmbeddingProvenance
from byov.cache.row_reader import read_array, read_digest
from byov.cache.runs import RunRecord, model_digest
from byov.data.dataset import Dataset, Video
from byov.data.video import OnTruncated
from byov.device import Device
from byov.errors import ApplyError
from byov.extract.encoders import FrameEncoder, load_encoder
from byov.extract.plan import Job, Plan, make_plan
from byov.extract.run_plan import ExtractionOptions, extract_jobs
from byov.progress import SILENT, Progress
from byov.train.autoencoder import Autoencoder

NO_DATASET = "none"  # what the embeddings of a video outside all datasets say of theirs


@dataclass(frozen=True)
class EmbeddedVideo:
    """A video's (T, D) frame embeddings, the times of its frames, and what they were made by."""

    path: Path
    embedding: NDArray[np.float32]
    pts_seconds: NDArray[np.float64]
    source: EmbeddingProvenance


class RunEmbedder:
    """A run's encoder and model, checked to be the run's."""

    def __init__(self, run: RunRecord, encoder: RunEncoder, device: Device) -> None:
        self._run, self._encoder = run, encoder
        self._model_sha256 = model_digest(run.folder)
        self._frame_encoder = load_encoder(encoder.name, resize=encoder.resize, device=device)
        encoder.refuse_other(run, self._frame_encoder)
        self._model = _load_model(run, self._frame_encoder)

    def embed(
        self, videos: Mapping[str, Path], scratch: Path, on_truncated: OnTruncated, progress: Progress = SILENT
    ) -> tuple[dict[str, str], Iterator[tuple[str, EmbeddedVideo]]]:
        """Videos by names of one's own: those that failed with their reasons, and the others, one at a time.

        scratch: an empty folder for the features in between, to be kept until the last video is read.
        """
        plan = self._plan(videos, scratch)
        options = ExtractionOptions(on_truncated=on_truncated)
        failures = extract_jobs(self._frame_encoder, plan, plan.jobs, options, progress).failures
        done = (job for job in plan.jobs if job.video.id not in failures)
        return failures, ((job.video.id, self._embed(job)) for job in done)

    def _plan(self, videos: Mapping[str, Path], scratch: Path) -> Plan:
        # Neither view nor split changes how a video is seen.
        listed = tuple(Video(name, view="ego", split="test", path=path) for name, path in videos.items())
        return make_plan(
            Dataset(NO_DATASET, scratch, listed),
            scratch,
            self._encoder.name,
            resize=self._encoder.resize,
            ratios=(self._encoder.ratio,),
        )

    def _embed(self, job: Job) -> EmbeddedVideo:
        features = torch.from_numpy(read_array(job.path, self._run.column)).to(self._frame_encoder.device)
        embedding: NDArray[np.float32] = self._model.embed(features).cpu().numpy()
        if not np.isfinite(embedding).all():
            raise ApplyError(f"{job.video.path}: the embeddings of {self._run.name} are not finite; use another run")
        return EmbeddedVideo(job.video.path, embedding, read_array(job.path, "pts_seconds"), self._source(job))

    def _source(self, job: Job) -> EmbeddingProvenance:
        return EmbeddingProvenance(
            run=self._run.name,
            model_sha256=self._model_sha256,
            dataset=NO_DATASET,
            video=job.video.path.stem,
            encoder=self._run.encoder,
            encoder_revision=self._encoder.revision,
            encoder_sha256=self._encoder.sha256,
            preprocessing=self._encoder.preprocessing,
            column=self._run.column,
            column_sha256=read_digest(job.path, self._run.column),
            first_frame=0,
        )


def _load_model(run: RunRecord, encoder: FrameEncoder) -> Autoencoder:
    """The model that the run has kept, where the encoder is."""
    model: Autoencoder = Autoencoder.from_pretrained(run.folder, map_location=str(encoder.device))
    if model.width != encoder.shape.width:
        raise ApplyError(f"{run.name} takes features {model.width} wide, {run.encoder} gives {encoder.shape.width}")
    return model
