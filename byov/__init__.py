"""Bootstrap Your Own Views (BYOV): frame embeddings from unpaired ego and exo videos.

>>> import byov
>>> byov.extract_features("demo", encoder="random/tiny").failures
{}
>>> byov.load_run("demo-paper").embeddings("test")["pour_ego_015"].shape
(12, 32)

docs/python.md documents this API, docs/architecture.md the subpackages.
"""

import logging
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from byov.apply.run import Run, VideoArrays, load_features, load_run, train_run
    from byov.errors import ByovError, Interrupted
    from byov.evaluate.tasks import EvaluationOptions
    from byov.extract.extract_features import ExtractedFeatures, extract_features

    __version__: str

__all__ = [
    "ByovError",
    "EvaluationOptions",
    "ExtractedFeatures",
    "Interrupted",
    "Run",
    "VideoArrays",
    "__version__",
    "extract_features",
    "load_features",
    "load_run",
    "train_run",
]

# To see log messages, add a handler to the logger "byov".
logging.getLogger(__name__).addHandler(logging.NullHandler())

# Imported on first use, because importing torch, h5py and NumPy takes seconds.
_EXPORTS = {
    "byov.apply.run": ("Run", "VideoArrays", "load_features", "load_run", "train_run"),
    "byov.errors": ("ByovError", "Interrupted"),
    "byov.evaluate.tasks": ("EvaluationOptions",),
    "byov.extract.extract_features": ("ExtractedFeatures", "extract_features"),
}


if not TYPE_CHECKING:  # a type checker should report unknown names

    def __getattr__(name: str) -> Any:
        if name == "__version__":  # slow to look up
            globals()[name] = import_module("importlib.metadata").version("byov-egoexo")
            return globals()[name]
        for module, names in _EXPORTS.items():
            if name in names:
                globals()[name] = getattr(import_module(module), name)
                return globals()[name]
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
