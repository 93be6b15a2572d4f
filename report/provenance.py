"""Header and provenance of a report, without paths and timestamps."""

from math import prod

from byov import __version__
from byov.cache.runs import MODEL_NAME, RunRecord, unfinished_text
from byov.errors import TrainError
from byov.evaluate.frames import Frames
from byov.evaluate.readers import RunEmbeddings
from byov.text import pluralize
from byov.train.checkpoint import tensor_shapes
from byov.train.settings import differences, resolve_settings, settings_of

Lines = tuple[tuple[str, str], ...]
ORIGIN = (
    "model_sha256",
    "encoder_revision",
    "encoder_sha256",
    "preprocessing",
    "column",
    "features_sha256",
)


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
        ("Model", f"{_network(run)}, embedding width {frames.embeddings.shape[1]}"),
        ("Split", f"{split}: {videos}, {len(frames.embeddings):,} frames"),
    )


def provenance(reader: RunEmbeddings) -> Lines:
    """Return the settings, model, features and versions that the page depends on."""
    run = reader.run
    origin = [(name, str(value)) for name, value in reader.origin().items() if name in ORIGIN]
    trained_with = " ".join(
        f"{name} {number}" for name, number in (run.training.get("versions") or {}).items()
    )
    return (
        (f"Settings that differ from the {run.label[0]}", _changed_settings(run)),
        *origin,
        ("trained with", trained_with or "unknown"),
        ("report created with", f"byov {__version__}"),
    )


def _network(run: RunRecord) -> str:
    """Describe the network. The setting `depth` applies only to the encoder backbone."""
    networks = {"frame": "frame head", "transformer": "transformer"}
    depth = pluralize(run.settings["depth"], "block") if "depth" in run.settings else "network"
    millions = sum(map(prod, tensor_shapes(run.folder / MODEL_NAME).values())) / 1e6
    return (
        f"{millions:.2f} million parameters, "
        f"{networks.get(str(run.settings.get('backbone')), depth)}"
    )


def _changed_settings(run: RunRecord) -> str:
    try:
        settings = settings_of(run)
        kept = {
            name: getattr(settings, name)
            for name in ("recipe", "size", "seed")
            if hasattr(settings, name)
        }
        usual = resolve_settings(settings.method, run.dataset, kept)
    except TrainError:
        return "not readable by this version of byov"
    return "; ".join(differences(usual, settings)) or "none"
