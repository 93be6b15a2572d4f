"""Results of a sweep: baselines, and means over seeds and datasets."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from byov.evaluate.frames import Score
from byov.evaluate.protocols import Protocol
from byov.evaluate.readers import read_manifest
from byov.evaluate.results import Results, count_videos
from byov.evaluate.scope import Scope
from byov.evaluate.table import (
    COUNTED_PROTOCOLS,
    Row,
    Rows,
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


@dataclass(frozen=True)
class RowGroup:
    """Finished runs that differ only in their seed."""

    run: PlannedRun  # one of the runs
    title: str
    trained: list[Rows]
    untrained: list[Rows]

    def mean(self) -> Rows:
        return mean_rows(self.trained, self.title)


def row_groups(runs: Sequence[PlannedRun], result: SweepResult, folders: Folders) -> list[RowGroup]:
    """Group the finished runs that differ only in their seed, in the order of the grid."""
    finished = {status.name for status in result.runs if status.state == "finished"}
    same_but_for_seed: dict[str, list[PlannedRun]] = {}
    for run in runs:
        settings = run.config.flat() | {"seed": None}
        key = repr((run.dataset, run.encoder_folder, run.ratio, settings))
        same_but_for_seed.setdefault(key, []).append(run)
    groups = []
    for planned in same_but_for_seed.values():
        done = [run for run in planned if run.name in finished]
        trained = [*filter(None, (finished_rows(run, folders) for run in done))]
        untrained = [finished_rows(run, folders, untrained=True) for run in done if run.untrained]
        missing = f", {len(trained)} of {len(planned)} runs" * (len(trained) < len(planned))
        if trained:
            groups.append(
                RowGroup(
                    planned[0], planned[0].title + missing, trained, [*filter(None, untrained)]
                )
            )
    return groups


def sweep_results(
    runs: Sequence[PlannedRun], result: SweepResult, folders: Folders
) -> list[Results]:
    """Return the results for each dataset. If there are several, the mean over them comes first."""
    by_dataset = []
    groups_of_datasets = []
    for dataset in dict.fromkeys(run.dataset for run in runs):
        planned = [run for run in runs if run.dataset == dataset]
        groups = row_groups(planned, result, folders)
        scope = planned[0].scope
        counts = count_videos(read_manifest(folders.features, dataset), scope)
        rows = _table_rows(scope, result.baselines.get(dataset, []), groups)
        single = (rows for group in groups if len(group.trained) > 1 for rows in group.trained)
        by_dataset.append(Results(dataset, scope, rows, counts, unlisted=tuple(single)))
        groups_of_datasets.append(groups)
    scopes = [results.scope for results in by_dataset]
    scope = replace(
        scopes[0],
        tasks=tuple(name for name in scopes[0].tasks if all(name in s.tasks for s in scopes)),
        protocols=tuple(
            name for name in scopes[0].protocols if all(name in s.protocols for s in scopes)
        ),
    )
    if len(by_dataset) == 1 or not scope.tasks:
        return by_dataset
    counts = {
        name: dict(sum((Counter(each.counts[name]) for each in by_dataset), Counter[str]()))
        for name in scope.protocols
    }
    baselines = _means_over_datasets([result.baselines.get(each.title, []) for each in by_dataset])
    rows = _table_rows(scope, baselines, _groups_over_datasets(groups_of_datasets))
    return [Results(f"Mean of {len(by_dataset)} datasets", scope, rows, counts), *by_dataset]


def _table_rows(
    scope: Scope, baselines: Sequence[Rows], groups: Sequence[RowGroup]
) -> dict[Protocol, list[Row]]:
    """Return the rows of baselines and groups, with the number of columns in which each is ahead of
    the others.
    """
    baselines = sort_rows(baselines)
    frozen = [rows for rows in baselines if first_row(rows).kind == "frozen"]
    references = {
        "frozen": [rows for rows in frozen if not first_row(rows).origin.get("standardized")],
        "standardized": [rows for rows in frozen if first_row(rows).origin.get("standardized")],
        "time": [rows for rows in baselines if first_row(rows).kind == "time"],
    }
    counted = [_with_counts(rows, references) for rows in [*baselines, *untrained_rows(groups)]]
    for group in groups:
        initial = [mean_rows(group.untrained, "")] if group.untrained else []
        counted.append(_with_counts(group.mean(), references | {"untrained": initial}))
    return {
        protocol: [rows[protocol] for rows in counted if protocol in rows]
        for protocol in scope.protocols
    }


def _with_counts(rows: Rows, references: Mapping[str, Sequence[Rows]]) -> Rows:
    """Add the scores of the columns "ahead of"."""
    counts = {}
    for name, others in references.items():
        if others and rows not in others:
            counts[f"ahead/{name}"] = Score(
                sum(
                    columns_ahead(rows[key], *(other[key] for other in others if key in other))[0]
                    for key in COUNTED_PROTOCOLS
                    if key in rows
                )
            )
    return {protocol: replace(row, scores=row.scores | counts) for protocol, row in rows.items()}


def untrained_rows(groups: Sequence[RowGroup]) -> list[Rows]:
    """Return the rows of untrained models.

    Models with equal scores (the same initialization) share a row.
    """
    same_scores: dict[str, list[RowGroup]] = {}
    for group in groups:
        if group.untrained:
            scores = [[row.scores for row in rows.values()] for rows in group.untrained]
            same_scores.setdefault(repr(scores), []).append(group)
    rows = []
    for same in same_scores.values():
        titles = ", ".join(group.title for group in same)
        if len(same) > LISTED_TITLES:
            titles = f"{same[0].title}, and {len(same) - 1} more with the same initialization"
        rows.append(mean_rows(same[0].untrained, f"Untrained: {titles}"))
    return rows


def _groups_over_datasets(groups_of_datasets: Sequence[Sequence[RowGroup]]) -> list[RowGroup]:
    """Average the groups with the same title over datasets, seed by seed."""
    same_title: dict[tuple[str, int], list[RowGroup]] = {}
    for groups in groups_of_datasets:
        times_used: Counter[str] = Counter()  # a grid may use a title twice
        for group in groups:
            same_title.setdefault((group.run.title, times_used[group.run.title]), []).append(group)
            times_used[group.run.title] += 1
    averaged = []
    for (title, _), same in same_title.items():
        trained = _means_over_datasets([group.trained for group in same])
        untrained = _means_over_datasets([group.untrained for group in same])
        if len(same) < len(groups_of_datasets):
            title += f", {len(same)} of {len(groups_of_datasets)} datasets"
        if trained:
            averaged.append(RowGroup(same[0].run, title, trained, untrained))
    return averaged


def _means_over_datasets(rows_of_datasets: Sequence[Sequence[Rows]]) -> list[Rows]:
    """Average runs with the same seed, or baselines with the same name, over datasets, without
    standard deviations, which are over seeds.
    """
    by_key = [
        {first_row(rows).origin.get("seed", first_row(rows).name): rows for rows in dataset}
        for dataset in rows_of_datasets
    ]
    averaged = []
    for value, first in by_key[0].items():
        if not all(value in dataset for dataset in by_key):
            continue
        means: Rows = {}
        for protocol, row in first.items():
            same = [dataset[value][protocol] for dataset in by_key if protocol in dataset[value]]
            scores = {
                name: replace(mean, deviation=None)
                for name, mean in mean_row(same, row.name).scores.items()
            }
            origin = {
                name: shared
                for name, shared in row.origin.items()
                if all(other.origin.get(name) == shared for other in same)
            }
            means[protocol] = replace(row, scores=scores, origin=origin, notes=())
        averaged.append(means)
    return averaged
