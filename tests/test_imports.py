"""Which room may import what: stages meet only at the cache, and only the commands know a terminal."""

import ast
import sys
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SHARED = {
    "byov.__version__",
    "byov.device",
    "byov.errors",
    "byov.folders",
    "byov.records",
    "byov.progress",
    "byov.text",
}  # of the folder byov/
TERMINAL = {"typer", "rich", "tqdm", "signal"}
EVERYWHERE = (set(sys.stdlib_module_names) - TERMINAL) | {"pydantic"} | SHARED
MAY_IMPORT = {
    "data": {"numpy", "av", "byov.data"},
    "cache": {"numpy", "h5py", "byov.cache"},
    "extract": {"numpy", "torch", "transformers", "huggingface_hub", "byov.data", "byov.cache", "byov.extract"},
    "train": {
        "numpy",
        "torch",
        "safetensors",
        "huggingface_hub",
        "wandb",
        "byov.cache",
        "byov.train",
        "byov.evaluate",
    },
    "evaluate": {"numpy", "scipy", "sklearn", "byov.cache", "byov.evaluate"},
    "byov": {"torch"},
}
PYTHON_INTERFACE = {ROOT / "byov/__init__.py": {"byov.apply", "byov.evaluate", "byov.extract"}}  # lazily
_STAGES = set.union(*MAY_IMPORT.values())
MAY_IMPORT["apply"] = {*_STAGES, "PIL", "byov.apply"}
MAY_IMPORT["report"] = {*_STAGES, "matplotlib", "PIL", "threadpoolctl", "byov.apply", "byov.report"}
MAY_IMPORT["cluster"] = {*MAY_IMPORT["report"], "ray", "byov.cluster"}
MAY_IMPORT["cli"] = {*MAY_IMPORT["report"], *TERMINAL, "byov.cluster", "byov.cli"}


def modules(folder: str) -> list[Path]:
    return sorted((ROOT / folder).rglob("*.py"))


def imported(path: Path) -> set[str]:
    """Top-level names of what a file imports; of byov, the room too."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            found = [node.module or "." * node.level]
            if node.module == "byov":
                found = [f"byov.{alias.name}" for alias in node.names]
        else:
            continue
        for module in found:
            names.add(".".join(module.split(".")[:2]) if module.startswith("byov.") else module.split(".")[0])
    return names


@pytest.mark.parametrize("folder", MAY_IMPORT)
def test_rooms_keep_to_their_import_lines(folder):
    assert modules(folder)
    for path in modules(folder):
        forbidden = imported(path) - MAY_IMPORT[folder] - EVERYWHERE - PYTHON_INTERFACE.get(path, set())
        assert not forbidden, f"{path.relative_to(ROOT)} imports {', '.join(sorted(forbidden))}"


def test_every_folder_of_code_has_its_import_line():
    folders = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    assert folders == set(MAY_IMPORT)


@pytest.mark.parametrize("folder", sorted(set(MAY_IMPORT) - {"cli"}))
def test_only_commands_print_and_exit(folder):
    programs = {ROOT / "data/demo/worker.py"}  # a process of its own, which answers its parent
    for path in set(modules(folder)) - programs:
        nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        names = {ast.unparse(node.func) for node in nodes if isinstance(node, ast.Call)}
        assert not names & {"print", "input", "exit", "sys.exit", "os._exit", "signal.signal"}, path.relative_to(ROOT)


def test_a_name_means_one_thing():
    """A class is one class, and a newcomer who has a module's name finds one file."""
    files = [path for folder in MAY_IMPORT for path in modules(folder)]
    stems = Counter(path.stem for path in files if path.stem != "__init__")
    classes = Counter(
        node.name
        for path in files
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef)
    )
    assert [name for name, count in (stems + classes).items() if count > 1] == []
