"""Distances between all frames of an ego and an exo video, and their alignment."""

import numpy as np
from scipy.spatial.distance import cdist

from byov.apply.align import dtw_path, nearest, tau
from byov.report.content import Similarity
from byov.report.material import Material
from byov.report.spread import evenly

MOST_FRAMES = 400  # of each video


def compare(material: Material) -> Similarity:
    """The first video of each view; both views have videos."""
    ego, exo = material.of_view("ego")[0], material.of_view("exo")[0]
    row_frames, column_frames = (evenly(material.length(video), MOST_FRAMES) for video in (ego, exo))
    a, b = material.embeddings(ego)[list(row_frames)], material.embeddings(exo)[list(column_frames)]
    matched = nearest(a, b)
    return Similarity(
        rows=ego,
        row_frames=row_frames,
        columns=exo,
        column_frames=column_frames,
        distances=cdist(a, b).astype(np.float32),
        path=dtw_path(a, b),
        nearest=matched,
        tau=tau(matched),
    )
