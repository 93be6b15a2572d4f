"""Tests of import rules: stages share only the cache, and only cli/ uses the terminal."""

import ast
import sys
from collections import Counter
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TERMINAL = {"typer", "rich", "tqdm", "signal"}
SHARED_NAMES = (
    "__version__",
    "device",
    "errors",
    "files",
    "folders",
    "plugins",
    "progress",
    "records",
    "text",
    "workers",
)
SHARED = {f"byov.{name}" for name in SHARED_NAMES}
EVERYWHERE = (set(sys.stdlib_module_names) - TERMINAL) | {"pydantic", "filelock"} | SHARED
STAGES = {
    "data": {"numpy", "av", "metaworld", "mujoco", "pyarrow", "byov.data"},
    "cache": {"numpy", "h5py", "filelock", "byov.cache"},
    "extract": {
        "numpy",
        "torch",
        "transformers",
        "huggingface_hub",
        "byov.data",
        "byov.cache",
        "byov.extract",
    },
    "train": {"numpy", "torch", "safetensors", "huggingface_hub", "wandb"}
    | {"byov.cache", "byov.train", "byov.evaluate"},
    "evaluate": {
        "numpy",
        "scipy",
        "sklearn",
        "sklearnex",
        "daal4py",
        "byov.cache",
        "byov.evaluate",
    },
}
APPLY = set.union(*STAGES.values()) | {"byov", "PIL", "onnxruntime", "byov.apply"}
REPORT = APPLY | {"matplotlib", "jinja2", "threadpoolctl", "byov.report"}
MAY_IMPORT = STAGES | {
    "byov": {"torch", "ray"},
    "apply": APPLY,
    "report": REPORT,
    "sweeps": REPORT | {"byov.sweeps"},
    "cli": REPORT | TERMINAL | {"byov", "byov.sweeps", "byov.cli"},
}
# Imported on first use.
PUBLIC_API = {
    ROOT / "byov/__init__.py": {"byov.apply", "byov.evaluate", "byov.extract", "byov.report"}
}


def modules(folder: str) -> list[Path]:
    return sorted((ROOT / folder).rglob("*.py"))


def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imported(path: Path) -> set[str]:
    """Return the top-level packages that a file imports; for byov, the subpackages."""
    names = set()
    for node in ast.walk(parse(path)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= (
                {f"byov.{alias.name}" for alias in node.names}
                if node.module == "byov"
                else {node.module or "."}
            )
    return {".".join(name.split(".")[: 2 if name.startswith("byov.") else 1]) for name in names}


@pytest.mark.parametrize("folder", MAY_IMPORT)
def test_folder_imports_only_what_it_may(folder):
    assert modules(folder)
    for path in modules(folder):
        forbidden = imported(path) - MAY_IMPORT[folder] - EVERYWHERE - PUBLIC_API.get(path, set())
        assert not forbidden, f"{path.relative_to(ROOT)} imports {', '.join(sorted(forbidden))}"


def test_modules_import_downward_only():
    """Check that module-level imports, in train/ also those for type checking, have no cycle."""
    paths = {module_name(path): path for folder in MAY_IMPORT for path in modules(folder)}
    imports = {}
    for name, path in paths.items():
        statements = list(parse(path).body)
        if path.is_relative_to(ROOT / "train"):
            statements += [node for block in statements for node in getattr(block, "body", ())]
        targets = set()
        for node in statements:
            if isinstance(node, ast.ImportFrom):
                targets |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
            elif isinstance(node, ast.Import):
                targets |= {alias.name for alias in node.names}
        imports[name] = (targets & paths.keys()) - {name}
    TopologicalSorter(imports).prepare()  # raises CycleError


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    names = [part for part in ("byov", *parts[parts[0] == "byov" :]) if part != "__init__"]
    return ".".join(names)


def test_every_source_folder_has_an_import_rule():
    assert {path.parent.name for path in ROOT.glob("*/__init__.py")} == set(MAY_IMPORT)


@pytest.mark.parametrize("folder", sorted(set(MAY_IMPORT) - {"cli"}))
def test_only_commands_print_and_exit(folder):
    exits_with_its_parent = ROOT / "byov/workers.py"
    for path in set(modules(folder)) - {exits_with_its_parent}:
        calls = {
            ast.unparse(node.func) for node in ast.walk(parse(path)) if isinstance(node, ast.Call)
        }
        assert not calls & {"print", "input", "exit", "sys.exit", "os._exit", "signal.signal"}, (
            path.relative_to(ROOT)
        )


def test_class_names_are_unique():
    classes = Counter(
        node.name
        for folder in MAY_IMPORT
        for path in modules(folder)
        for node in parse(path).body
        if isinstance(node, ast.ClassDef)
    )
    assert [name for name, count in classes.items() if count > 1] == []
