"""Results of a comparison: rows with means over seeds, tables, and the contents of results.json."""

import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from typing import Any

from byov import __version__
from byov.cache.digests import SCHEMA_VERSION
from byov.cache.layout import PREFIXES_PER_VIDEO
from byov.cache.manifest import Manifest
from byov.evaluate.classification import svm_solver
from byov.evaluate.protocols import TRIMMED_CLIPS, Protocol, segments
from byov.evaluate.published import published_rows
from byov.evaluate.scope import Scope
from byov.evaluate.table import Row, Rows, Table, ahead_columns, first_row, mean_rows, sort_rows
from byov.evaluate.tasks import table_columns
from byov.text import pluralize

SAME_BUT_FOR_SEED = ("recipe", "settings", "encoder", "column", "features_sha256", "trained_on")
MEANS = "mean ± sample standard deviation over runs"
PROTOCOL_NOTES = {
    "trimmed": (
        "trimmed: each video is replaced by two sub-clips of 30 to 60% of its length, embedded "
        "separately; Time only is relative to the sub-clip; sub-clips of one video are not matched "
        "with each other"
    ),
    "online": (
        f"online: {PREFIXES_PER_VIDEO} frames of each video, each embedded from the frames up to "
        "it; classifiers and progress predictors use whole training videos, and Time only is the "
        "elapsed time / their mean duration; features with merged tokens (STM) compare "
        "neighboring frames and are available one frame late"
    ),
}
STANDARDIZED = (
    "standardized: zero mean and unit deviation per dimension, over the video, sub-clip or "
    "frames so far"
)


@dataclass(frozen=True)
class Results:
    """Scored rows for one dataset or embedding file."""

    title: str  # name of the dataset or file
    scope: Scope
    rows: dict[Protocol, list[Row]]  # in table order
    counts: dict[Protocol, dict[str, int]]  # numbers of videos, ego videos, exo videos and frames
    left_out: tuple[str, ...] = ()  # videos that were never extracted
    unlisted: tuple[Rows, ...] = ()  # further rows, saved in results.json but not in tables

    def published(self, protocol: Protocol) -> list[Row]:
        """Return the paper's rows, which exist only for whole videos of the test split."""
        return (
            published_rows(self.title)
            if self.scope.split == "test" and protocol == "standard"
            else []
        )

    def tables(self) -> list[Table]:
        """Return the tables for all protocols and scored tasks, main tables first."""
        tables = []
        for protocol, rows in self.rows.items():
            counts = self.counts[protocol]
            videos = pluralize(counts["videos"], "sub-clip" if protocol == "trimmed" else "video")
            frames = pluralize(counts["frames"], "frame")
            all_rows = (*rows, *self.published(protocol))
            shown = table_columns(self.scope.tasks, self.scope.options, protocol)
            notes = self._notes(protocol)
            for index, (subject, columns) in enumerate(shown.items()):
                title = (
                    f"{self.title}, {self.scope.split} split, {protocol} protocol: {subject} "
                    f"({videos}, {counts['ego']} ego and {counts['exo']} exo, {frames})"
                )
                if index == 0:
                    columns += ahead_columns(self.rows)
                tables.append(Table(title, columns, all_rows, notes, is_main=index == 0))
        return sorted(tables, key=lambda table: not table.is_main)

    def to_dict(self) -> dict[str, Any]:
        """Return the contents of results.json."""
        return {
            "schema_version": SCHEMA_VERSION,
            "dataset": self.title,
            "split": self.scope.split,
            "tasks": list(self.scope.tasks),
            **self._conditions(),
            "left_out": self.left_out,
            "protocols": {
                protocol: {
                    **self.counts[protocol],
                    "rows": [
                        row.to_dict()
                        for row in (*rows, *(more[protocol] for more in self.unlisted))
                    ],
                }
                for protocol, rows in self.rows.items()
            },
            "published": [row.to_dict() for row in self.published("standard")],
        }

    def file_to_dict(self) -> dict[str, Any]:
        """Return the contents of results.json for an embedding file, with its scores at the top
        level.
        """
        row, time = self.rows["standard"]
        return {
            **row.nested_scores(),
            "time_only": time.nested_scores(),
            "details": row.details(),
            "notes": list(row.notes),
            "origin": row.origin,
            "split": self.scope.split,
            **self.counts["standard"],
            **self._conditions(),
        }

    def _conditions(self) -> dict[str, Any]:
        return {
            "settings": asdict(self.scope.options),
            "trimmed_clips": TRIMMED_CLIPS,
            "online_prefixes": PREFIXES_PER_VIDEO,
            "versions": versions(),
        }

    def _notes(self, protocol: Protocol) -> tuple[str, ...]:
        rows = self.rows[protocol]
        samples = self.scope.options.bootstrap
        applies = {
            STANDARDIZED: any(row.origin.get("standardized") for row in rows),
            MEANS: any(row.kind == "mean" for row in rows),
            f"[ , ]: 95% confidence interval from {samples} bootstrap samples of the scored "
            "videos": samples > 0,
            "the val split is for model selection; report scores on the test split": (
                self.scope.split == "val"
            ),
            PROTOCOL_NOTES.get(protocol, ""): protocol in PROTOCOL_NOTES,
        }
        return (
            *(note for row in rows for note in row.notes),
            *(note for note, is_shown in applies.items() if is_shown),
        )


def count_videos(manifest: Manifest, scope: Scope) -> dict[Protocol, dict[str, int]]:
    """Count the scored videos or sub-clips (in total and per view) and their frames, for each
    protocol.
    """
    counts: dict[Protocol, dict[str, int]] = {}
    for protocol in scope.protocols:
        scored = segments(manifest, scope.split, protocol)
        views = [segment.video.view for segment in scored]
        counts[protocol] = {
            "videos": len(scored),
            "ego": views.count("ego"),
            "exo": views.count("exo"),
            "frames": sum(map(len, scored)),
        }
    return counts


def with_means(rows: Sequence[Rows]) -> list[Rows]:
    """Sort rows by kind, drop duplicate untrained models, and add means over runs that differ only
    in the seed.
    """
    groups: dict[str, list[Rows]] = {}
    untrained = set()
    for row in sort_rows(rows):
        first = first_row(row)
        if first.kind == "untrained":
            model = repr((first.origin["model_sha256"], [each.scores for each in row.values()]))
            if model in untrained:
                continue
            untrained.add(model)
        settings = (
            [first.origin.get(key) for key in SAME_BUT_FOR_SEED]
            if first.kind in ("untrained", "run")
            else first.name
        )
        groups.setdefault(repr((first.kind, settings)), []).append(row)
    with_mean = []
    for group in groups.values():
        first = first_row(group[0])
        if len(group) == 1 or first.kind != "untrained":
            with_mean += group
        if len(group) > 1:
            name = "Untrained, mean of " if first.kind == "untrained" else "Mean of "
            name += ", ".join(first_row(row).origin["run"] for row in group)
            title = first.origin["title"]
            with_mean.append(mean_rows(group, f"{name}: {title}" if title else name))
    return with_mean


def versions() -> dict[str, str]:
    """Return the versions of all packages that can affect the last digits of a score, including the
    SVM solver.
    """
    return {
        "python": platform.python_version(),
        "byov": __version__,
        **{name: version(name) for name in ("numpy", "scipy", "scikit-learn")},
        "svm": f"{svm_solver()} {version(svm_solver())}",
    }
