"""The evaluator's tables of a run and of those it is compared with."""

from collections.abc import Sequence
from pathlib import Path
from typing import get_args

from byov.cache.manifest import Manifest
from byov.cache.runs import RunRecord
from byov.evaluate.evaluation import compare, frozen_columns, readers_to_compare, scope_of_all, scope_of_runs
from byov.evaluate.protocols import ScoredSplit
from byov.evaluate.table import Table
from byov.evaluate.tasks import NEED_TRAINING, EvaluationOptions
from byov.progress import NO_PROGRESS, Progress
from byov.report.content import Unavailable


def score(
    runs_dir: Path,
    features_dir: Path,
    manifest: Manifest,
    runs: Sequence[RunRecord],
    split: str,
    progress: Progress = NO_PROGRESS,
) -> tuple[Table, ...] | Unavailable:
    """As byov-eval --task all: every row under both protocols, where the runs have sub-clips."""
    scored_split: ScoredSplit | None = next((one for one in get_args(ScoredSplit) if one == split), None)
    if scored_split is None:
        return Unavailable(f"{manifest.dataset} has neither test nor val videos: there is nothing to score")
    scope = scope_of_all(manifest, scored_split, EvaluationOptions())
    has_training = any(video.frames for video in manifest.videos if video.split == "train")
    if NEED_TRAINING & set(scope.tasks) and not has_training:
        return Unavailable(f"{manifest.dataset} has no train videos, and {', '.join(scope.tasks)} learn from them")
    scope = scope_of_runs(scope, runs_dir, features_dir, runs, explicit=False)
    frozen = frozen_columns(features_dir, manifest.dataset, [run.column for run in runs])
    readers = readers_to_compare(runs_dir, features_dir, manifest.dataset, runs, baselines=frozen)
    return tuple(compare(manifest, readers, scope, progress).tables())
