"""Result tables of a sweep: means over seeds, next to the baselines."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from byov.cluster.grids import PlannedRun
from byov.cluster.run_task import Folders, Rows, finished_rows
from byov.cluster.sweep import SweepResult
from byov.evaluate.embeddings import read_manifest
from byov.evaluate.evaluation import KIND_ORDER, Results, count_videos
from byov.evaluate.protocols import Protocol
from byov.evaluate.table import Row, mean_row


@dataclass(frozen=True)
class RowGroup:
    """Finished runs that differ only in their seed."""

    run: PlannedRun  # one of them
    planned: int  # number of seeds in the grid
    trained: list[Rows]
    untrained: list[Rows]

    def mean(self, protocol: Protocol, *, untrained: bool = False) -> Row:
        """Return the mean over the seeds, of the trained models or of those at initialization."""
        name = f"Untrained: {self.run.title}" if untrained else self.run.title
        if len(self.trained) < self.planned:
            name += f", {len(self.trained)} of {self.planned} runs"
        rows = [run[protocol] for run in (self.untrained if untrained else self.trained)]
        return mean_row(rows, name) if len(rows) > 1 else replace(rows[0], name=name)


def row_groups(runs: Sequence[PlannedRun], result: SweepResult, folders: Folders) -> list[RowGroup]:
    """Group the finished runs, in the order of the grid."""
    finished = {status.name for status in result.runs if status.state == "finished"}
    groups: dict[str, list[PlannedRun]] = {}
    for run in runs:
        settings = run.settings.model_dump() | {"seed": None}
        groups.setdefault(repr((run.dataset, run.encoder_folder, run.ratio, settings)), []).append(run)
    found = []
    for group in groups.values():
        done = [run for run in group if run.name in finished]
        trained = [finished_rows(run, folders) for run in done]
        untrained = [finished_rows(run, folders, untrained=True) for run in done if run.untrained]
        if any(trained):
            found.append(RowGroup(group[0], len(group), [*filter(None, trained)], [*filter(None, untrained)]))
    return found


def sweep_results(
    runs: Sequence[PlannedRun], result: SweepResult, folders: Folders
) -> list[tuple[Results, dict[str, Any]]]:
    """Return the results of each dataset and their JSON document, which also lists individual runs."""
    found = []
    for dataset in dict.fromkeys(run.dataset for run in runs):
        of_dataset = [run for run in runs if run.dataset == dataset]
        groups, scope = row_groups(of_dataset, result, folders), of_dataset[0].scope
        rows, everything, counts = {}, {}, {}
        for protocol in scope.protocols:
            rows[protocol] = [
                *baseline_rows(result.baselines.get(dataset, []), protocol),
                *untrained_rows(groups, protocol),
                *(group.mean(protocol) for group in groups),
            ]
            single = [run[protocol] for group in groups if len(group.trained) > 1 for run in group.trained]
            everything[protocol] = rows[protocol] + single
            counts[protocol] = count_videos(read_manifest(folders.features, dataset), scope.split, protocol)
        results = Results(dataset, scope, rows, counts)
        found.append((results, replace(results, rows=everything).to_dict()))
    return found


def baseline_rows(baselines: Sequence[Rows], protocol: Protocol) -> list[Row]:
    """Return the rows of frozen features and Time only, in table order."""
    rows = [rows[protocol] for rows in baselines if protocol in rows]
    return sorted(rows, key=lambda row: KIND_ORDER.index(row.kind))


def untrained_rows(groups: Sequence[RowGroup], protocol: Protocol) -> list[Row]:
    """Return the rows of untrained models; settings with the same initialization share a row."""
    found: dict[str, list[RowGroup]] = {}
    for group in groups:
        if group.untrained:
            models = [(rows[protocol].origin["model_sha256"], rows[protocol].scores) for rows in group.untrained]
            found.setdefault(repr(models), []).append(group)
    rows = []
    for same in found.values():
        row = same[0].mean(protocol, untrained=True)
        more = f", and {len(same) - 1} more with the same initialization" if len(same) > 1 else ""
        rows.append(replace(row, name=row.name + more))
    return rows
