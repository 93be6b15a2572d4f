"""The paper's tables from a sweep, in its layout: our rows, and where the dataset is the paper's its own below them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from byov.cache.layout import ratio_key
from byov.cluster.grids import PaperChoice, RunGrid, paper_grid
from byov.cluster.run_work import Folders
from byov.cluster.score_files import Rows
from byov.cluster.sweep import SweepResult, SweptRun, swept_runs
from byov.cluster.sweep_tables import RowGroup, baseline_rows, row_groups, untrained_rows
from byov.errors import SweepError
from byov.evaluate.embeddings import read_manifest
from byov.evaluate.evaluation import MEANS, count_videos, options_for
from byov.evaluate.frames import SETTINGS
from byov.evaluate.protocols import Protocol
from byov.evaluate.published import MEAN_F1, MEAN_MAP, published_ablation, published_rows
from byov.evaluate.table import Column, Row, Score, Table
from byov.evaluate.tasks import SETTING_NAMES, TASKS, EvaluationOptions, main_columns
from byov.report.score_panels import ScoreCurve, ScorePanel
from byov.text import pluralize

STANDARD: Protocol = "standard"
PLAIN_COLUMNS = ("cls", "merged/1.0")
_OPTIONS = EvaluationOptions()
_MAIN = main_columns(_OPTIONS)
_CORRELATIONS = tuple(column for column in _MAIN if not column.percent)
_COMPONENTS = (
    Column(MEAN_F1, "Mean of the settings", "F1", "mean"),
    Column(MEAN_MAP, "Mean of the settings", "map@10", "mean"),
    *_CORRELATIONS,
)
_FEW_SHOT = (
    *(Column(f"few_shot/{share}/regular", "Few-shot (F1)", share, "F1") for share in ("10%", "50%", "100%")),
    *(Column(f"retrieval/map@{k}/regular", "Regular retrieval", f"map@{k}", "Regular") for k in (5, 10, 15)),
)
_CROSS_VIEW = tuple(
    Column(f"retrieval/map@{k}/{setting}", f"{SETTING_NAMES[setting]} retrieval", f"map@{k}", SETTING_NAMES[setting])
    for setting in SETTINGS[1:]
    for k in (5, 10, 15)
)
_ACTIONS = TASKS["actions"].columns(_OPTIONS)
_OTHER_ENCODERS = ("BYOV (ResNet-50)", "BYOV (ViT-L/14)", "CLIP features (ViT-L/14)")
_UNPAIRED = "TCN (unpaired multi-view)"


@dataclass(frozen=True)
class PaperTable:
    """One table: its runs, its columns, what the paper prints in it."""

    subject: str
    files: tuple[str, ...]  # of experiments/
    columns: tuple[Column, ...]
    published: Callable[[str], list[Row]]  # by dataset
    frozen: bool = False  # with frozen features, time alone and untrained models
    along: tuple[str, str] | None = None  # a setting, and what a figure calls it, if there is a figure of it
    of_encoders: bool = False


def _published_but(*names: str) -> Callable[[str], list[Row]]:
    return lambda dataset: [row for row in published_rows(dataset) if row.name not in names]


def _published_encoders(dataset: str) -> list[Row]:
    kept = ("Random", "ImageNet", "CLIP", "AE2", "BYOV")
    return [row for row in published_rows(dataset) if row.name.startswith(kept)]


def _ablation(name: str, subject: str, along: tuple[str, str] | None = None) -> PaperTable:
    columns = _COMPONENTS if name == "components" else _MAIN
    return PaperTable(subject, (name,), columns, lambda dataset: published_ablation(name, dataset), along=along)


PAPER_TABLES: dict[str, PaperTable] = {
    "table-1": PaperTable("Table 1", ("table-1",), _MAIN, _published_but(*_OTHER_ENCODERS, _UNPAIRED), frozen=True),
    "components": _ablation("components", "Table 3, components"),
    "stm-ratio": _ablation("stm-ratio", "Token selection ratio", ("ratio", "token selection ratio")),
    "mask-self": _ablation("mask-self", "Masking ratio in MSM", ("mask_self", "masking ratio in MSM")),
    "mask-cross": _ablation("mask-cross", "Masking ratio in MCM", ("mask_cross", "masking ratio in MCM")),
    "latent": _ablation("latent", "Latent space"),
    "depth": _ablation("depth", "Depth of the encoder"),
    "few-shot": PaperTable(
        "Few-shot classification and regular retrieval",
        ("table-1", "unpaired"),
        _FEW_SHOT,
        _published_but(*_OTHER_ENCODERS[:2]),
        frozen=True,
    ),
    "cross-view": PaperTable(
        "Cross-view retrieval",
        ("table-1", "unpaired"),
        _CROSS_VIEW,
        _published_but(*_OTHER_ENCODERS[:2]),
        frozen=True,
    ),
    "backbones": PaperTable(
        "Frame encoders", ("backbones",), _MAIN, _published_encoders, frozen=True, of_encoders=True
    ),
    "charades-ego": PaperTable("Charades-Ego", ("charades-ego",), _ACTIONS, published_rows, frozen=True),
}


@dataclass(frozen=True)
class PaperPlan:
    """Tables that the cache has features for, with the grids of each."""

    grids: dict[str, list[RunGrid]]

    @property
    def all_grids(self) -> list[RunGrid]:
        return [grid for grids in self.grids.values() for grid in grids]


@dataclass(frozen=True)
class DrawnTable:
    """A table of one dataset: as it is printed, for machines, and as a figure if it has one."""

    name: str  # "stm-ratio-break_eggs"
    table: Table
    document: dict[str, Any]
    panels: tuple[ScorePanel, ...] = ()
    along: str = ""


def plan_paper(names: Sequence[str], features_dir: Path, choice: PaperChoice) -> PaperPlan:
    """names: of tables; all if there are none."""
    for name in names:
        if name not in PAPER_TABLES:
            raise SweepError(f"no table {name!r}; choose from {', '.join(PAPER_TABLES)}")
    grids = {}
    for name in names or PAPER_TABLES:
        table = PAPER_TABLES[name]
        found = [paper_grid(file, features_dir, choice, of_encoders=table.of_encoders) for file in table.files]
        grids[name] = [grid for grid in found if grid is not None]
    there = {name: found for name, found in grids.items() if found}
    if not there:
        raise SweepError(
            f"{features_dir} has no features for these tables; extract the paper's datasets, or choose one that is "
            "there with --dataset, and its encoder with --encoder"
        )
    return PaperPlan(there)


def draw_paper(plan: PaperPlan, result: SweepResult, folders: Folders) -> list[DrawnTable]:
    """Each table for each of its datasets that has a finished run."""
    drawn = []
    for name, grids in plan.grids.items():
        swept = swept_runs(grids, folders.features)
        for dataset in dict.fromkeys(one.run.dataset for one in swept):
            of_dataset = [one for one in swept if one.run.dataset == dataset]
            groups = [_with_means(group) for group in row_groups(of_dataset, result, folders)]
            if groups:
                drawn.append(_drawn(name, dataset, of_dataset, groups, result.baselines.get(dataset, []), folders))
    return [one for one in drawn if one.table.measured]  # a dataset may have none of the scores


def _drawn(
    name: str,
    dataset: str,
    swept: Sequence[SweptRun],
    groups: Sequence[RowGroup],
    baselines: Sequence[Rows],
    folders: Folders,
) -> DrawnTable:
    table, split = PAPER_TABLES[name], swept[0].scope.split
    measured = [group.mean(STANDARD) for group in groups]
    if table.frozen:
        kept = {*PLAIN_COLUMNS, *(f"merged/{ratio_key(one.run.ratio)}" for one in swept)}
        beside = [row for row in baseline_rows(baselines, STANDARD) if row.origin.get("column", "cls") in kept]
        measured = [*beside, *untrained_rows(groups, STANDARD), *measured]
    published = table.published(dataset)
    counts = count_videos(read_manifest(folders.features, dataset), split, STANDARD)
    videos, frames = pluralize(counts["videos"], "video"), pluralize(counts["frames"], "frame")
    title = f"{table.subject}: {dataset}, {split} split ({videos}, {frames})"
    # Footnotes and notes depend on the dataset.
    described = {
        column.score: column
        for task in TASKS.values()
        for column in task.columns(options_for(dataset, EvaluationOptions()))
    }
    columns = [
        replace(column, footnote=described[column.score].footnote, note=described[column.score].note)
        if column.score in described
        else column
        for column in table.columns
    ]
    notes = [MEANS] if any(row.kind == "mean" for row in measured) else []
    drawn = Table(title, tuple(columns), (*measured, *published), tuple(notes))
    document = {
        "table": name,
        "dataset": dataset,
        "rows": [row.to_dict() for row in measured],
        "published": [row.to_dict() for row in published],
    }
    if table.along is None:
        return DrawnTable(f"{name}-{dataset}", drawn, document)
    setting, along = table.along
    panels = tuple(_panel(scores, heading, setting, groups, published) for scores, heading in _PANELS)
    return DrawnTable(f"{name}-{dataset}", drawn, document, panels, along)


_PANELS = (("classification", "F1 (%)"), ("retrieval/map@10", "map@10 (%)"))


def _panel(scores: str, heading: str, setting: str, groups: Sequence[RowGroup], published: Sequence[Row]) -> ScorePanel:
    """Ours, and the published figures, of which the row's title ends in the place."""
    places = [_place(group, setting) for group in groups]
    ours = [group.mean(STANDARD) for group in groups]
    theirs = [float(row.name.split()[-1]) for row in published]
    curves = []
    for key in SETTINGS:
        curves.append(_curve(f"{scores}/{key}", SETTING_NAMES[key], places, ours, published=False))
        if published:
            curves.append(_curve(f"{scores}/{key}", SETTING_NAMES[key], theirs, published, published=True))
    return ScorePanel(heading, tuple(curves))


def _curve(score: str, name: str, places: Sequence[float], rows: Sequence[Row], *, published: bool) -> ScoreCurve:
    found = [
        (place, row.scores[score]) for place, row in zip(places, rows, strict=True) if row.value(score) is not None
    ]
    return ScoreCurve(
        name,
        tuple(place for place, _ in found),
        tuple(100 * (one.value or 0.0) for _, one in found),
        tuple(100 * (one.deviation or 0.0) for _, one in found),
        published,
    )


def _place(group: RowGroup, setting: str) -> float:
    return group.first.ratio if setting == "ratio" else float(getattr(group.first.settings, setting))


def _with_means(group: RowGroup) -> RowGroup:
    """With the means over the three settings that Table 3 has, of each run."""
    trained = [{protocol: _with_mean_scores(row) for protocol, row in rows.items()} for rows in group.trained]
    return replace(group, trained=trained)


def _with_mean_scores(row: Row) -> Row:
    added = {}
    for name, prefix in ((MEAN_F1, "classification"), (MEAN_MAP, "retrieval/map@10")):
        values = [row.value(f"{prefix}/{setting}") for setting in SETTINGS]
        given = [value for value in values if value is not None]
        if len(given) == len(values):
            added[name] = Score(fmean(given))
    return replace(row, scores=row.scores | added)
