"""What a sweep has come to, as tables: of each setting the mean over its seeds, beside what needs no training."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from byov.cluster.grids import PlannedRun
from byov.cluster.run_work import Folders
from byov.cluster.score_files import Rows
from byov.cluster.sweep import SweepResult, SweptRun, kept_run_rows
from byov.evaluate.embeddings import read_manifest
from byov.evaluate.evaluation import KIND_ORDER, Results, Scope, count_videos
from byov.evaluate.protocols import Protocol
from byov.evaluate.table import Row, mean_row


@dataclass(frozen=True)
class RowGroup:
    """The runs that differ in their seed alone, as far as they are finished."""

    first: PlannedRun
    planned: int
    trained: list[Rows]
    untrained: list[Rows]

    def mean(self, protocol: Protocol) -> Row:
        return _mean(self.trained, protocol, self._named(self.first.title))

    def untrained_mean(self, protocol: Protocol) -> Row:
        return _mean(self.untrained, protocol, self._named(f"Untrained: {self.first.title}"))

    def _named(self, title: str) -> str:
        return title if len(self.trained) == self.planned else f"{title}, {len(self.trained)} of {self.planned} runs"


def row_groups(swept: Sequence[SweptRun], result: SweepResult, folders: Folders) -> list[RowGroup]:
    """In the order of the grid; without those of which no run is finished."""
    finished = {run.name for run in result.runs if run.state == "finished"}
    groups: dict[str, list[SweptRun]] = {}
    for one in swept:
        groups.setdefault(_but_for_seed(one), []).append(one)
    found = []
    for group in groups.values():
        there = [one for one in group if one.run.name in finished]
        trained = _rows(there, folders, untrained=False)
        untrained = _rows([one for one in there if one.untrained], folders, untrained=True)
        if trained:
            found.append(RowGroup(group[0].run, len(group), trained, untrained))
    return found


def sweep_results(swept: Sequence[SweptRun], result: SweepResult, folders: Folders) -> list[Results]:
    """Return the results of each dataset."""
    found = []
    for dataset in dict.fromkeys(one.run.dataset for one in swept):
        of_dataset = [one for one in swept if one.run.dataset == dataset]
        scope = of_dataset[0].scope
        groups = row_groups(of_dataset, result, folders)
        rows = {
            protocol: _table_rows(groups, result.baselines.get(dataset, []), protocol) for protocol in scope.protocols
        }
        found.append(compared(dataset, scope, rows, folders))
    return found


def compared(dataset: str, scope: Scope, rows: Mapping[Protocol, list[Row]], folders: Folders) -> Results:
    manifest = read_manifest(folders.features, dataset)
    counts = {protocol: count_videos(manifest, scope.split, protocol) for protocol in scope.protocols}
    return Results(dataset, scope, dict(rows), counts)


def with_single_runs(
    results: Results, swept: Sequence[SweptRun], result: SweepResult, folders: Folders
) -> dict[str, Any]:
    """Return the JSON document of a dataset's results, including the rows that its means are over."""
    of_dataset = [one for one in swept if one.run.dataset == results.title]
    groups = [group for group in row_groups(of_dataset, result, folders) if len(group.trained) > 1]
    rows = {
        protocol: [*rows, *(run[protocol] for group in groups for run in group.trained)]
        for protocol, rows in results.rows.items()
    }
    return replace(results, rows=rows).to_dict()


def _table_rows(groups: Sequence[RowGroup], baselines: Sequence[Rows], protocol: Protocol) -> list[Row]:
    return [
        *baseline_rows(baselines, protocol),
        *untrained_rows(groups, protocol),
        *(group.mean(protocol) for group in groups),
    ]


def baseline_rows(baselines: Sequence[Rows], protocol: Protocol) -> list[Row]:
    """In the order of tables."""
    rows = [rows[protocol] for rows in baselines if protocol in rows]
    return sorted(rows, key=lambda row: KIND_ORDER.index(row.kind))


def untrained_rows(groups: Sequence[RowGroup], protocol: Protocol) -> list[Row]:
    """One row for settings that begin with the same models."""
    found: dict[str, list[RowGroup]] = {}
    for group in groups:
        if group.untrained:
            begun = [(rows[protocol].origin["model_sha256"], rows[protocol].scores) for rows in group.untrained]
            found.setdefault(repr(begun), []).append(group)
    return [_joined_name(same, protocol) for same in found.values()]


def _joined_name(same: Sequence[RowGroup], protocol: Protocol) -> Row:
    row = same[0].untrained_mean(protocol)
    return row if len(same) == 1 else replace(row, name=f"{row.name}, and {len(same) - 1} more that begin alike")


def _mean(runs: Sequence[Rows], protocol: Protocol, name: str) -> Row:
    rows = [run[protocol] for run in runs]
    return mean_row(rows, name) if len(rows) > 1 else replace(rows[0], name=name)


def _rows(swept: Sequence[SweptRun], folders: Folders, *, untrained: bool) -> list[Rows]:
    kept = (kept_run_rows(one, folders, untrained=untrained) for one in swept)
    return [rows for rows in kept if rows is not None]


def _but_for_seed(swept: SweptRun) -> str:
    run = swept.run
    return repr((run.dataset, run.encoder_folder, run.ratio, run.settings.model_dump() | {"seed": None}))
