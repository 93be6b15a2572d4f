"""Result tables of a sweep: baselines, and means over seeds and datasets."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from byov.evaluate.compare import Results, count_videos
from byov.evaluate.frames import Score
from byov.evaluate.readers import read_manifest
from byov.evaluate.table import (
    COUNTED_PROTOCOLS,
    Column,
    Row,
    Rows,
    Table,
    columns_ahead,
    first_row,
    mean_row,
    mean_rows,
    sort_rows,
)
from byov.sweeps.grids import Folders, PlannedRun
from byov.sweeps.sweep import SweepResult, finished_rows

# If more methods share an Untrained row, its name contains only the first title and a count.
LISTED_TITLES = 3
AHEAD_OF = {
    "frozen": "frozen",
    "standardized": "standardized",
    "time": "Time only",
    "untrained": "Untrained",
}
AHEAD = (
    "columns ahead: number of F1 and mAP columns, standard and trimmed, in which a row is higher "
    "than the best frozen "
    "features, the best standardized ones, Time only, and the same model at initialization"
)


@dataclass(frozen=True)
class RowGroup:
    """Finished runs that differ only in their seed."""

    run: PlannedRun  # one of the runs
    title: str
    trained: list[Rows]
    untrained: list[Rows]

    def mean(self) -> Rows:
        """Return the mean over the seeds."""
        return mean_rows(self.trained, self.title)


def row_groups(runs: Sequence[PlannedRun], result: SweepResult, folders: Folders) -> list[RowGroup]:
    """Group the finished runs that differ only in their seed, in the order of the grid."""
    finished = {status.name for status in result.runs if status.state == "finished"}
    groups: dict[str, list[PlannedRun]] = {}
    for run in runs:
        settings = run.settings.model_dump() | {"seed": None}
        groups.setdefault(repr((run.dataset, run.encoder_folder, run.ratio, settings)), []).append(
            run
        )
    found = []
    for group in groups.values():
        done = [run for run in group if run.name in finished]
        trained = [*filter(None, (finished_rows(run, folders) for run in done))]
        untrained = [finished_rows(run, folders, untrained=True) for run in done if run.untrained]
        if trained:
            missing = f", {len(trained)} of {len(group)} runs" if len(trained) < len(group) else ""
            found.append(
                RowGroup(group[0], group[0].title + missing, trained, [*filter(None, untrained)])
            )
    return found


def sweep_results(
    runs: Sequence[PlannedRun], result: SweepResult, folders: Folders
) -> list[tuple[Results, dict[str, Any]]]:
    """Return the results for each dataset with a JSON document, which also lists individual runs.

    If there are several datasets, the mean over them comes first.
    """
    found = []
    groups_of = []
    for dataset in dict.fromkeys(run.dataset for run in runs):
        of_dataset = [run for run in runs if run.dataset == dataset]
        groups = row_groups(of_dataset, result, folders)
        scope = of_dataset[0].scope
        counts = count_videos(read_manifest(folders.features, dataset), scope)
        results = _with_rows(
            Results(dataset, scope, {}, counts), result.baselines.get(dataset, []), groups
        )
        single = [rows for group in groups if len(group.trained) > 1 for rows in group.trained]
        everything = {
            key: [*rows, *(one[key] for one in single)] for key, rows in results.rows.items()
        }
        found.append((results, replace(results, rows=everything).to_dict()))
        groups_of.append(groups)
    scopes = [results.scope for results, _ in found]
    tasks = tuple(task for task in scopes[0].tasks if all(task in scope.tasks for scope in scopes))
    protocols = tuple(
        name for name in scopes[0].protocols if all(name in scope.protocols for scope in scopes)
    )
    if len(found) == 1 or not tasks:
        return found
    total = {
        name: dict(sum((Counter(one.counts[name]) for one, _ in found), Counter[str]()))
        for name in protocols
    }
    mean = Results(
        f"Mean of {len(found)} datasets",
        replace(scopes[0], tasks=tasks, protocols=protocols),
        {},
        total,
    )
    baselines = _means_over_datasets(
        [result.baselines.get(one.title, []) for one, _ in found], lambda row: row.name
    )
    mean = _with_rows(mean, baselines, _groups_over_datasets(groups_of))
    return [(mean, mean.to_dict()), *found]


def sweep_tables(found: Sequence[Results]) -> list[Table]:
    """Return the tables of all results; the main tables come first and include the columns-ahead
    counts.
    """
    main = []
    others = []
    for results in found:
        rows = [row for of_protocol in results.rows.values() for row in of_protocol]
        counted = [
            of_protocol for name, of_protocol in results.rows.items() if name in COUNTED_PROTOCOLS
        ]
        total = sum(
            max((columns_ahead(row, row)[1] for row in of_protocol), default=0)
            for of_protocol in counted
        )
        ahead = [
            Column(
                f"ahead/{name}",
                f"Columns ahead, of {total}:",
                heading,
                "ahead of",
                note=AHEAD,
                is_count=True,
            )
            for name, heading in AHEAD_OF.items()
            if total and any(f"ahead/{name}" in row.scores for row in rows)
        ]
        for table in results.tables():
            if table.is_main:
                main.append(replace(table, columns=(*table.columns, *ahead)))
            else:
                others.append(table)
    return main + others


def _with_rows(results: Results, baselines: Sequence[Rows], groups: Sequence[RowGroup]) -> Results:
    """Add the rows of baselines and groups, with the number of columns in which each is ahead of
    the others.
    """
    baselines = sort_rows(baselines)
    frozen = [rows for rows in baselines if first_row(rows).kind == "frozen"]
    references = {
        "frozen": [rows for rows in frozen if not first_row(rows).origin.get("standardized")],
        "standardized": [rows for rows in frozen if first_row(rows).origin.get("standardized")],
        "time": [rows for rows in baselines if first_row(rows).kind == "time"],
    }
    rows = [_with_counts(one, references) for one in [*baselines, *untrained_rows(groups)]]
    for group in groups:
        initial = [mean_rows(group.untrained, "")] if group.untrained else []
        rows.append(_with_counts(group.mean(), references | {"untrained": initial}))
    in_table = {
        name: [one[name] for one in rows if name in one] for name in results.scope.protocols
    }
    return replace(results, rows=in_table)


def _with_counts(rows: Rows, references: Mapping[str, Sequence[Rows]]) -> Rows:
    counts = {}
    for name, others in references.items():
        if others and rows not in others:
            counted = [protocol for protocol in COUNTED_PROTOCOLS if protocol in rows]
            ahead = [
                columns_ahead(rows[key], *(other[key] for other in others if key in other))
                for key in counted
            ]
            counts[f"ahead/{name}"] = Score(sum(columns for columns, _ in ahead))
    return {protocol: replace(row, scores=row.scores | counts) for protocol, row in rows.items()}


def untrained_rows(groups: Sequence[RowGroup]) -> list[Rows]:
    """Return the rows of untrained models.

    Models with equal scores (the same initialization) share a row.
    """
    found: dict[str, list[RowGroup]] = {}
    for group in groups:
        if group.untrained:
            scores = [[row.scores for row in rows.values()] for rows in group.untrained]
            found.setdefault(repr(scores), []).append(group)
    rows = []
    for same in found.values():
        titles = ", ".join(group.title for group in same)
        if len(same) > LISTED_TITLES:
            titles = f"{same[0].title}, and {len(same) - 1} more with the same initialization"
        rows.append(mean_rows(same[0].untrained, f"Untrained: {titles}"))
    return rows


def _groups_over_datasets(groups_of: Sequence[Sequence[RowGroup]]) -> list[RowGroup]:
    """Average the groups with the same title over datasets, seed by seed."""
    same: dict[tuple[str, int], list[RowGroup]] = {}
    for groups in groups_of:
        seen: Counter[str] = Counter()  # a grid may use a title twice
        for group in groups:
            same.setdefault((group.run.title, seen[group.run.title]), []).append(group)
            seen[group.run.title] += 1
    found = []
    for (title, _), groups in same.items():
        trained, untrained = (
            _means_over_datasets(rows, lambda row: row.origin["seed"])
            for rows in ([group.trained for group in groups], [group.untrained for group in groups])
        )
        missing = (
            f", {len(groups)} of {len(groups_of)} datasets" if len(groups) < len(groups_of) else ""
        )
        if trained:
            found.append(RowGroup(groups[0].run, title + missing, trained, untrained))
    return found


def _means_over_datasets(
    rows_of: Sequence[Sequence[Rows]], key: Callable[[Row], Any]
) -> list[Rows]:
    """Average rows with the same key over datasets, without standard deviations, which are over
    seeds.
    """
    by_key = [{key(first_row(rows)): rows for rows in of_dataset} for of_dataset in rows_of]
    found = []
    for value, first in by_key[0].items():
        if not all(value in of_dataset for of_dataset in by_key):
            continue
        means: Rows = {}
        for protocol, row in first.items():
            same = [
                of_dataset[value][protocol]
                for of_dataset in by_key
                if protocol in of_dataset[value]
            ]
            scores = {
                name: replace(mean, deviation=None)
                for name, mean in mean_row(same, row.name).scores.items()
            }
            shared = [
                name
                for name in row.origin
                if all(one.origin.get(name) == row.origin[name] for one in same)
            ]
            origin = {name: row.origin[name] for name in shared}
            means[protocol] = replace(row, scores=scores, origin=origin, notes=())
        found.append(means)
    return found
