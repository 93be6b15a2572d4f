"""Header and provenance of a report, without paths and timestamps."""

import platform
from collections.abc import Sequence
from contextlib import suppress
from importlib.metadata import version
from math import prod
from typing import Any

from byov import __version__
from byov.cache.runs import MODEL_NAME, RunRecord, unfinished_text
from byov.errors import TrainError
from byov.evaluate.embeddings import RunEmbeddings
from byov.evaluate.frames import Frames
from byov.report.analysis import tsne_perplexity
from byov.report.content import Sheet, Unavailable
from byov.report.pictures import QUALITY
from byov.train.checkpoint import tensor_shapes
from byov.train.settings import differences, resolve_settings, settings_of

Lines = tuple[tuple[str, str], ...]
PACKAGES = ("numpy", "scipy", "scikit-learn", "av", "pillow")


def facts(run: RunRecord, split: str, frames: Frames) -> Lines:
    """Return the key facts of a run, shown below the title."""
    ego = int(frames.is_ego.sum())
    videos = f"{ego} ego and {len(frames.is_ego) - ego} exo videos"
    kind, label = run.label
    unfinished = unfinished_text(run)
    return (
        *((("Training", unfinished),) if unfinished else ()),
        (kind.capitalize(), label),
        ("Encoder", run.encoder),
        ("STM ratio", run.column.removeprefix("merged/")),
        ("Seed", str(run.seed)),
        ("Model", _model(run)),
        ("Split", f"{split}: {videos}, {len(frames.embeddings):,} frames"),
    )


def provenance(
    reader: RunEmbeddings, split: str, points: int, sheets: Sequence[Sheet | Unavailable], seed: int
) -> Lines:
    """Return everything that the figures depend on; `points` is the number of frames in the t-SNE maps."""
    run, origin = reader.run, reader.origin()
    packages = {name: version(name) for name in PACKAGES}
    perplexity = f"{tsne_perplexity(points):.4g}" if points > 1 else "-"
    return (
        (f"Settings that differ from the {run.label[0]}", _changed_settings(run)),
        (f"SHA-256 of {MODEL_NAME}", origin["model_sha256"]),
        ("Encoder revision", origin["encoder_revision"]),
        ("SHA-256 of the encoder weights", origin["encoder_sha256"]),
        ("Preprocessing", origin["preprocessing"]),
        ("Features", origin["column"]),
        (f"SHA-256 of the {split} features", origin["features_sha256"]),
        ("Trained with", _versions(run.training.get("versions"))),
        ("Report made with", _versions({"python": platform.python_version(), "byov": __version__} | packages)),
        ("t-SNE", f"{points} frames, seed {seed}, perplexity {perplexity}, PCA initialization, Barnes-Hut"),
        ("Pictures", _pictures(sheets)),
    )


def _pictures(sheets: Sequence[Sheet | Unavailable]) -> str:
    present = [sheet for sheet in sheets if sheet]
    sizes = ", ".join(dict.fromkeys(f"{sheet.tile_width} x {sheet.tile_height}" for sheet in present))
    count = sum(len(sheet.frames) for sheet in present)
    return f"{count} frames of {sizes} pixels, JPEG quality {QUALITY}" if present else "none"


def _model(run: RunRecord) -> str:
    """Describe the network. Only the encoder backbone has the `depth` of the settings."""
    networks = {"frame": "frame head", "transformer": "transformer"}
    network = networks.get(str(run.settings.get("backbone")), f"depth {run.settings.get('depth')}")
    text = f"{network}, latent width {run.settings.get('latent')}"
    with suppress(TrainError):
        shapes = tensor_shapes(run.folder / MODEL_NAME)
        return f"{sum(map(prod, shapes.values())) / 1e6:.2f} million parameters, {text}"
    return text


def _changed_settings(run: RunRecord) -> str:
    try:
        settings = settings_of(run)
        kept = {name: getattr(settings, name) for name in ("recipe", "size", "seed") if hasattr(settings, name)}
        usual = resolve_settings(settings.method, run.dataset, kept)
    except TrainError:
        return "not readable by this version of byov"
    return "; ".join(differences(usual, settings)) or "none"


def _versions(raw: Any) -> str:
    return ", ".join(f"{name} {number}" for name, number in raw.items()) if isinstance(raw, dict) else "unknown"
