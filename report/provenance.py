"""What a run is, in a line under the title, and all that its figures depend on. No places and no times."""

import platform
from collections.abc import Sequence
from importlib.metadata import version
from math import prod
from typing import Any

from byov import __version__
from byov.cache.runs import MODEL_NAME, RunRecord, unfinished_text
from byov.errors import TrainError
from byov.report import failures, nearest_frames, projection, sheets, similarity
from byov.report.content import Sheet, Unavailable
from byov.report.material import Material
from byov.train.checkpoint import tensor_shapes
from byov.train.settings import differences, resolve_settings, settings_of

Lines = tuple[tuple[str, str], ...]
PACKAGES = ("numpy", "scipy", "scikit-learn", "av", "pillow")


def facts(material: Material) -> Lines:
    """For the reader who has seen other runs."""
    run = material.reader.run
    ego, exo = (len(material.of_view(view)) for view in ("ego", "exo"))
    what, label = run.label
    return (
        *_unfinished(run),
        (what.capitalize(), label),
        ("Encoder", run.encoder),
        ("STM ratio", run.column.removeprefix("merged/")),
        ("Seed", str(run.seed)),
        ("Model", f"{_parameters(run)}{run.settings.get('depth')} blocks, latent width {run.settings.get('latent')}"),
        ("Split", f"{material.split}: {ego} ego and {exo} exo videos, {len(material.frames.embeddings):,} frames"),
    )


def provenance(
    material: Material, chosen: projection.Chosen, pictures: Sequence[Sheet | Unavailable], seed: int
) -> Lines:
    """chosen: the frames of the maps."""
    run, origin = material.reader.run, material.reader.origin()
    what, label = run.label
    return (
        ("Run", run.name),
        ("Dataset", run.dataset),
        (what.capitalize(), label),
        ("Seed", str(run.seed)),
        (f"Settings other than the {what}'s", _changed_settings(run)),
        *_unfinished(run),
        (f"SHA-256 of {MODEL_NAME}", origin["model_sha256"]),
        ("Frame encoder", origin["encoder"]),
        ("Revision of the encoder", origin["encoder_revision"]),
        ("SHA-256 of the encoder's weights", origin["encoder_sha256"]),
        ("Preprocessing", origin["preprocessing"]),
        ("Features", origin["column"]),
        (f"SHA-256 of the {material.split} split's features", origin["features_sha256"]),
        ("Trained with", _versions(run.training.get("versions"))),
        (
            "This report",
            _versions(
                {"python": platform.python_version(), "byov": __version__} | {name: version(name) for name in PACKAGES}
            ),
        ),
        ("t-SNE", _tsne(chosen, seed)),
        ("Similarity", f"Euclidean distances; at most {similarity.MOST_FRAMES} frames of a video, evenly spread"),
        (
            "Retrieval",
            f"{nearest_frames.QUERIES} queries of each view from evenly spread videos and moments; the nearest frame "
            f"of each video of the other view, at most {nearest_frames.RETRIEVED} of them",
        ),
        (
            "Worst videos",
            f"by the mean Kendall's tau with all others in both roles, every {failures.STRIDE}th frame",
        ),
        (
            "Embeddings in this page",
            "of the frames that have pictures, as 8-bit integers with one step for all; what the page finds near by "
            "them can differ from the tables, which are made from all frames as they are",
        ),
        ("Pictures", f"{_sizes(pictures)}JPEG quality {sheets.QUALITY}"),
    )


def _unfinished(run: RunRecord) -> Lines:
    """That the settings promise more epochs than there were; nothing of a run that has them all."""
    said = unfinished_text(run)
    return () if said is None else (("Training", said),)


def _tsne(chosen: projection.Chosen, seed: int) -> str:
    points = sum(len(frames) for _, frames in chosen)
    shown = f"{projection.perplexity(points):.4g}" if points >= projection.FEWEST_POINTS else "-"
    return f"{points} frames, seed {seed}, perplexity {shown}, initialized by PCA, Barnes-Hut gradient"


def _sizes(pictures: Sequence[Sheet | Unavailable]) -> str:
    there = [sheet for sheet in pictures if isinstance(sheet, Sheet)]
    sizes = dict.fromkeys(f"{sheet.tile_width} x {sheet.tile_height}" for sheet in there)
    count = sum(len(sheet.frames) for sheet in there)
    return f"{count} frames of {', '.join(sizes)} pixels, " if there else ""


def _parameters(run: RunRecord) -> str:
    """How many numbers the model's file holds; nothing if it cannot be read."""
    try:
        shapes = tensor_shapes(run.folder / MODEL_NAME)
    except TrainError:
        return ""
    return f"{sum(map(prod, shapes.values())) / 1e6:.2f} million parameters, "


def _changed_settings(run: RunRecord) -> str:
    try:
        ours = settings_of(run)
        kept = {name: getattr(ours, name) for name in ("recipe", "seed") if hasattr(ours, name)}
        usual = resolve_settings(ours.method, run.dataset, kept)
    except TrainError:
        return "of another version of byov"
    return "; ".join(differences(usual, ours)) or "none"


def _versions(raw: Any) -> str:
    return ", ".join(f"{name} {number}" for name, number in raw.items()) if isinstance(raw, dict) else "not known"
