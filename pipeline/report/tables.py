"""The evaluator's tables of a run and of those it is compared with."""

from collections.abc import Sequence
from pathlib import Path
from typing import get_args

from byov.cache.command import note
from byov.cache.manifest import Manifest
from byov.cache.runs import RunRecord
from byov.evaluate.comparison import Scope, entries, frozen_columns, measure, scope_of_runs
from byov.evaluate.evaluation import settings_for, tasks_of
from byov.evaluate.protocols import PROTOCOLS, ScoredSplit
from byov.evaluate.report import scored_of_dataset, tables
from byov.evaluate.table import Table
from byov.evaluate.tasks import NEED_TRAINING, Settings
from byov.pipeline.report.content import Unavailable


def score(
    runs_dir: Path, features_dir: Path, manifest: Manifest, runs: Sequence[RunRecord], split: str
) -> tuple[Table, ...] | Unavailable:
    """As byov-eval --task all: every row under both protocols, where the runs have sub-clips."""
    scored_split: ScoredSplit | None = next((one for one in get_args(ScoredSplit) if one == split), None)
    if scored_split is None:
        return Unavailable(f"{manifest.dataset} has neither test nor val videos: there is nothing to score")
    tasks = tasks_of(manifest)
    if NEED_TRAINING & set(tasks) and not any(video.frames for video in manifest.videos if video.split == "train"):
        return Unavailable(f"{manifest.dataset} has no train videos, and {', '.join(tasks)} learn from them")
    protocols = PROTOCOLS[:1] if tasks == ("actions",) else PROTOCOLS
    scope = Scope(scored_split, protocols, tasks, settings_for(manifest.dataset, Settings()))
    scope = scope_of_runs(scope, runs_dir, features_dir, runs, explicit=False)
    frozen = frozen_columns(features_dir, manifest.dataset, [run.column for run in runs])
    wanted = entries(runs_dir, features_dir, manifest.dataset, [run.name for run in runs], frozen=frozen)
    rows = measure(wanted, scope)
    scored = scored_of_dataset(manifest, scope)
    if scored.left_out:
        note(f"{len(scored.left_out)} videos were never extracted and are left out: {', '.join(scored.left_out[:3])}")
    return tuple(tables(scored, scope, rows))
