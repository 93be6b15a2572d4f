"""Retrieval across views: strips of example queries with their nearest frames."""

from collections.abc import Iterator, Sequence

import numpy as np

from byov.report.content import FrameRef, Sheet, Strip, Unavailable
from byov.report.gallery import Gallery
from byov.report.material import Material
from byov.report.spread import center

DIRECTIONS = (("ego", "exo"), ("exo", "ego"))  # views of query and candidates
QUERIES = 3  # of each direction
RETRIEVED = 5


def one_view_only(material: Material) -> Unavailable | None:
    """Why nothing can be retrieved across the views, if nothing can."""
    there = [view for view, _ in DIRECTIONS if material.of_view(view)]
    return Unavailable(f"the {material.split} split has only {there[0]} videos") if len(there) == 1 else None


def choose_strips(material: Material, gallery: Gallery) -> tuple[Strip, ...]:
    """A strip for some moments of some videos of each view, both evenly spread; none without the other view."""
    return tuple(
        Strip(gallery.ref(video, frame), _nearest_of_each(material, gallery, video, frame, candidates))
        for query_view, candidate_view in DIRECTIONS
        if (candidates := material.of_view(candidate_view))
        for video, frame in dict.fromkeys(_queries(material, material.of_view(query_view)))
    )


def strips_with_pictures(
    strips: Sequence[Strip], sheets: Sequence[Sheet | Unavailable]
) -> tuple[Strip, ...] | Unavailable:
    """The strips of which the query and at least one retrieved frame have pictures."""

    def seen(ref: FrameRef) -> bool:
        return isinstance(sheets[ref.video], Sheet)

    return tuple(strip for strip in strips if seen(strip.query) and any(map(seen, strip.retrieved))) or no_picture(
        sheets
    )


def no_picture(sheets: Sequence[Sheet | Unavailable]) -> Unavailable:
    """The first reason why frames cannot be seen."""
    return next(sheet for sheet in sheets if isinstance(sheet, Unavailable))


def _queries(material: Material, videos: Sequence[int]) -> Iterator[tuple[int, int]]:
    for query in range(QUERIES if videos else 0):
        video = videos[center(len(videos), query, QUERIES)]
        yield video, center(material.length(video), query, QUERIES)


def _nearest_of_each(
    material: Material, gallery: Gallery, video: int, frame: int, candidates: Sequence[int]
) -> tuple[FrameRef, ...]:
    query = material.embeddings(video)[frame].astype(np.float64)
    found = []
    for other in candidates:
        distances = np.linalg.norm(material.embeddings(other) - query, axis=1)
        found.append((float(distances.min()), other, int(distances.argmin())))
    return tuple(gallery.ref(other, at) for _, other, at in sorted(found)[:RETRIEVED])
