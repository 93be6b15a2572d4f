"""The paper's own experiments as grids: the files of experiments/, narrowed to what is in the cache."""

import logging
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from byov.cache.layout import encoder_folders, encoder_slug
from byov.cluster.run_grid import GridBlock, RunGrid, parse_grid
from byov.errors import SweepError

LOGGER = logging.getLogger(__name__)

EXPERIMENTS = Path(__file__).parent / "experiments"
SMALL = "small"
# For a look at all tables on a few cores: what the paper's model is not.
_SHORT = {"latent": 64, "epochs": 40, "batch_size": 4, "lr": 3e-4}
SMALL_SETTINGS: dict[str, dict[str, Any]] = {
    "byov": _SHORT | {"depth": 2, "decoder_depth": 1, "heads": 4},
    "carl": _SHORT | {"epochs": 20},  # whose clips are more than twice as long
}


@dataclass(frozen=True)
class PaperChoice:
    """What of the experiments is wanted, where it is not all as the paper has it."""

    datasets: tuple[str, ...] = ()  # in the place of the paper's
    encoder: str | None = None
    seeds: int | None = None
    small: bool = False


def paper_grid(name: str, features_dir: Path, choice: PaperChoice, *, of_encoders: bool = False) -> RunGrid | None:
    """The grid of a file of experiments/; None if the cache has nothing for it.

    of_encoders: it compares encoders, so that none stands for another.
    """
    path = EXPERIMENTS / f"{name}.toml"
    grid = parse_grid(tomllib.loads(path.read_text(encoding="utf-8")), path.name)
    blocks = [changed for block in grid.blocks for changed in _blocks(block, features_dir, choice, of_encoders)]
    if not blocks:
        LOGGER.info(f"{name}: left out, since the cache has no features for it")
        return None
    return replace(grid, name=SMALL if choice.small else grid.name, blocks=tuple(blocks))


def _blocks(block: GridBlock, features_dir: Path, choice: PaperChoice, of_encoders: bool) -> Iterator[GridBlock]:
    """A block for each dataset that is there."""
    theirs = block.values["dataset"]
    for dataset in choice.datasets or ([theirs] if isinstance(theirs, str) else theirs):
        there = _encoders(features_dir, dataset)
        encoder = block.values["encoder"]
        if not of_encoders:
            encoder = choice.encoder or (_only(there, dataset, encoder) if choice.datasets and there else encoder)
        if encoder_slug(encoder) not in there:
            continue
        values = dict(block.values) | {"dataset": dataset, "encoder": encoder}
        if choice.seeds is not None:
            values["seed"] = list(range(choice.seeds))
        yield _small(values) if choice.small else GridBlock(values)


def _only(there: Sequence[str], dataset: str, usual: str) -> str:
    """The paper's encoder, or the only one that there is."""
    if encoder_slug(usual) in there:
        return usual
    if len(there) > 1:
        raise SweepError(f"which encoder's features of {dataset}? --encoder {' | '.join(there)}")
    return there[0]


def _encoders(features_dir: Path, dataset: str) -> list[str]:
    there = encoder_folders(features_dir)
    return [folder.name for folder in there if folder.parent.name == dataset]


def _small(values: Mapping[str, Any]) -> GridBlock:
    """What the experiment itself is about stays as it is."""
    settings = SMALL_SETTINGS.get(values.get("method", "byov"), _SHORT)
    return GridBlock(settings | dict(values), settings)
