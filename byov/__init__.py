"""Bootstrap Your Own Views (BYOV): frame embeddings from unpaired ego and exo videos.

>>> import byov
>>> byov.extract_features("demo", encoder="random/tiny").failures
{}
>>> embeddings = byov.load_run("demo-byov").embeddings("test")
>>> len(embeddings["test_ego_00"]) == embeddings.videos["test_ego_00"].frames
True

See docs/python.md for this API and docs/architecture.md for the subpackages.
"""

import logging
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from byov.apply.align import AlignedVideos, align_videos
    from byov.apply.annotate import Annotation, Annotator
    from byov.apply.annotated_videos import AnnotatedVideo, AnnotatedVideos, list_videos
    from byov.apply.annotation_files import write_annotations
    from byov.apply.arrays import VideoArrays, load_features
    from byov.apply.export import export_run
    from byov.apply.lerobot_files import LeRobotVideos, list_episodes
    from byov.apply.moments import find_moment, write_moments
    from byov.apply.run import Run, load_run, train_run
    from byov.errors import ByovError, Interrupted
    from byov.evaluate.tasks import EvaluationOptions
    from byov.extract.encoders import load_encoder
    from byov.extract.extraction import extract_features, extract_plan, measure_speed
    from byov.extract.plan import ExtractedFeatures
    from byov.report.review import write_review
    from byov.report.write import write_report

    __version__: str

__all__ = [
    "AlignedVideos",
    "AnnotatedVideo",
    "AnnotatedVideos",
    "Annotation",
    "Annotator",
    "ByovError",
    "EvaluationOptions",
    "ExtractedFeatures",
    "Interrupted",
    "LeRobotVideos",
    "Run",
    "VideoArrays",
    "__version__",
    "align_videos",
    "export_run",
    "extract_features",
    "extract_plan",
    "find_moment",
    "list_episodes",
    "list_videos",
    "load_encoder",
    "load_features",
    "load_run",
    "measure_speed",
    "train_run",
    "write_annotations",
    "write_moments",
    "write_report",
    "write_review",
]

# To see log messages, add a handler to the "byov" logger.
logging.getLogger(__name__).addHandler(logging.NullHandler())

# These names are imported on first use, because importing torch, h5py and NumPy takes seconds.
_NAMES = {
    "byov.apply.align": ("AlignedVideos", "align_videos"),
    "byov.apply.annotate": ("Annotation", "Annotator"),
    "byov.apply.annotated_videos": ("AnnotatedVideo", "AnnotatedVideos", "list_videos"),
    "byov.apply.annotation_files": ("write_annotations",),
    "byov.apply.arrays": ("VideoArrays", "load_features"),
    "byov.apply.export": ("export_run",),
    "byov.apply.lerobot_files": ("LeRobotVideos", "list_episodes"),
    "byov.apply.moments": ("find_moment", "write_moments"),
    "byov.apply.run": ("Run", "load_run", "train_run"),
    "byov.errors": ("ByovError", "Interrupted"),
    "byov.evaluate.tasks": ("EvaluationOptions",),
    "byov.extract.encoders": ("load_encoder",),
    "byov.extract.extraction": ("extract_features", "extract_plan", "measure_speed"),
    "byov.extract.plan": ("ExtractedFeatures",),
    "byov.report.review": ("write_review",),
    "byov.report.write": ("write_report",),
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names}


if not TYPE_CHECKING:  # hidden from type checkers, which should report unknown names

    def __getattr__(name: str) -> Any:
        if name == "__version__":  # looked up on first use, because the lookup is slow
            value = import_module("importlib.metadata").version("byov-egoexo")
        elif name in _MODULES:
            value = getattr(import_module(_MODULES[name]), name)
        else:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
