"""Embeddings that travel with the page: of the run, and of the first run that it is compared with."""

import logging
from collections.abc import Sequence

from byov.errors import CacheError, EvaluationError
from byov.evaluate.embeddings import RunEmbeddings
from byov.report.content import RunVectors, Unavailable
from byov.report.material import Material

LOGGER = logging.getLogger(__name__)


def compared_material(material: Material, run: str) -> Material | None:
    """The same videos by another run; None, and a line about it, if they cannot be read."""
    reader = RunEmbeddings(material.runs_dir, material.features_dir, run)
    try:
        return material.by(reader)
    except (CacheError, EvaluationError) as error:
        LOGGER.info(f"{run} is in the tables only: {material.without_places(error)}")
        return None


def run_vectors(
    materials: Sequence[Material], moments: Sequence[tuple[int, ...]]
) -> tuple[RunVectors, ...] | Unavailable:
    """moments: of each video, the frames that the page knows."""
    first = materials[0]
    if len(first) == 1:
        return Unavailable(f"the {first.split} split has only one video: none to match it with")
    return tuple(
        RunVectors(
            material.reader.run.name,
            tuple(material.embeddings(video)[list(frames)] for video, frames in enumerate(moments)),
        )
        for material in materials
    )
