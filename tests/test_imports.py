"""Stages meet only at the cache: which folder may import what."""

import ast
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
EVERYWHERE = {"typer", "tqdm", "rich"} | set(sys.stdlib_module_names)
MAY_IMPORT = {
    "data": {"numpy", "av", "byov.data"},
    "cache": {"numpy", "h5py", "byov.cache"},
    "extract": {"numpy", "torch", "transformers", "huggingface_hub", "byov.data", "byov.cache", "byov.extract"},
    "train": {"numpy", "torch", "safetensors", "huggingface_hub", "tensorboard", "byov.cache", "byov.train"},
    "evaluate": {"numpy", "scipy", "sklearn", "byov.cache", "byov.evaluate"},
}
MAY_IMPORT["pipeline"] = {*set.union(*MAY_IMPORT.values()), "matplotlib", "PIL", "byov.pipeline"}


def imported(path: Path) -> set[str]:
    """Top-level names of what a file imports; of byov, the folder too."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            modules = [node.module or "." * node.level]
        else:
            continue
        for module in modules:
            names.add(".".join(module.split(".")[:2]) if module.startswith("byov.") else module.split(".")[0])
    return names


@pytest.mark.parametrize("folder", MAY_IMPORT)
def test_folders_keep_to_their_import_lines(folder):
    files = sorted((ROOT / folder).rglob("*.py"))
    assert files
    for path in files:
        forbidden = imported(path) - MAY_IMPORT[folder] - EVERYWHERE
        assert not forbidden, f"{path.relative_to(ROOT)} imports {', '.join(sorted(forbidden))}"


def test_every_folder_of_code_has_its_import_line():
    folders = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    assert folders == set(MAY_IMPORT)
