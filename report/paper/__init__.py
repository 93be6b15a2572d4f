"""The report's figures for papers, as PNG and PDF."""

from pathlib import Path

NAMES = (
    *("curves", "tsne", "retrieval_ego2exo", "retrieval_exo2ego", "tokens_ego", "tokens_exo"),
    *("similarity", "failures"),
)
ENDINGS = (".png", ".pdf")


def figure_files(folder: Path) -> list[Path]:
    """All that can be written, whether it is there or not."""
    return [folder / f"{name}{ending}" for name in NAMES for ending in ENDINGS]
