"""Built-in experiments: the benchmark, and the paper's tables and figures with the published
rows.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple

from byov.cache.layout import encoder_slug, ratio_key
from byov.errors import SweepError
from byov.evaluate.frames import SETTINGS, Score
from byov.evaluate.protocols import Protocol
from byov.evaluate.published import MEAN_F1, MEAN_MAP, published_rows
from byov.evaluate.readers import read_manifest
from byov.evaluate.results import MEANS, count_videos
from byov.evaluate.scope import dataset_options
from byov.evaluate.table import Column, Row, Table, sort_rows
from byov.evaluate.tasks import SETTING_NAMES, TASKS, EvaluationOptions, main_columns
from byov.report import style
from byov.report.style import LEGEND_ROW_INCHES, PAGE_INCHES, legend, phase_color
from byov.sweeps.grids import Folders, GridBlock, PlannedRun, RunGrid, plan_runs, read_grid
from byov.sweeps.sweep import SweepResult
from byov.sweeps.sweep_tables import RowGroup, row_groups, untrained_rows
from byov.text import pluralize
from byov.train.config import DEFAULT_METHOD

if TYPE_CHECKING:
    from matplotlib.artist import Artist

EXPERIMENTS = Path(__file__).parent / "experiments"
STANDARD: Protocol = "standard"
_PANELS = {"classification": "F1 (%)", "retrieval/map@10": "map@10 (%)"}

SMALL = "small"  # grid name for `--small`, which makes all tables feasible on a few cores
_SHORT = {"latent": 64, "epochs": 40, "batch_size": 4, "lr": 3e-4}
SMALL_SETTINGS: dict[str, dict[str, Any]] = {
    "byov": _SHORT | {"depth": 2, "decoder_depth": 1, "heads": 4},
    "carl": _SHORT | {"epochs": 20},  # fewer epochs, since CARL's clips are more than twice as long
}


def _component_columns(options: EvaluationOptions) -> tuple[Column, ...]:
    return (
        Column(MEAN_F1, "Mean of the settings", "F1", "mean"),
        Column(MEAN_MAP, "Mean of the settings", "map@10", "mean"),
        *(column for column in main_columns(options) if column.unit == "correlation"),
    )


def _few_shot_columns(options: EvaluationOptions) -> tuple[Column, ...]:
    columns = (*TASKS["few-shot"].columns(options), *TASKS["retrieval"].columns(options))
    return tuple(column for column in columns if column.score.endswith("/regular"))


def _cross_view_columns(options: EvaluationOptions) -> tuple[Column, ...]:
    return tuple(
        column
        for column in TASKS["retrieval"].columns(options)
        if not column.score.endswith("/regular")
    )


@dataclass(frozen=True)
class PaperTable:
    """Definition of a table in the paper."""

    subject: str  # first part of the title
    files: tuple[str, ...]  # grids in experiments/
    columns: Callable[[EvaluationOptions], tuple[Column, ...]] = main_columns
    hidden: tuple[str, ...] = ()  # published rows to leave out
    is_ablation: bool = False  # show the published rows of the ablation, and no baselines
    curve: tuple[str, str] | None = None  # setting on the x-axis of the figure, and the axis label


_ablation = partial(PaperTable, is_ablation=True)
_OTHER_BYOV = ("BYOV (ResNet-50)", "BYOV (ViT-L/14)")
_UNPAIRED = "TCN (unpaired multi-view)"
_BASELINES = (
    "ActorObserverNet",
    "TCN (single-view)",
    "TCN (multi-view)",
    _UNPAIRED,
    "CARL",
    "TCC",
    "GTA",
)
PAPER_TABLES: dict[str, PaperTable] = {
    "table-1": PaperTable(
        "Table 1", ("table-1",), hidden=(*_OTHER_BYOV, "CLIP features (ViT-L/14)", _UNPAIRED)
    ),
    "components": _ablation("Table 3, components", ("components",), _component_columns),
    "stm-ratio": _ablation(
        "Token selection ratio", ("stm-ratio",), curve=("ratio", "token selection ratio")
    ),
    "mask-self": _ablation(
        "Masking ratio in MSM", ("mask-self",), curve=("mask_self", "masking ratio in MSM")
    ),
    "mask-cross": _ablation(
        "Masking ratio in MCM", ("mask-cross",), curve=("mask_cross", "masking ratio in MCM")
    ),
    "latent": _ablation("Latent size", ("latent",)),
    "depth": _ablation("Depth of the encoder", ("depth",)),
    "few-shot": PaperTable(
        "Few-shot classification and regular retrieval",
        ("table-1", "unpaired"),
        _few_shot_columns,
        _OTHER_BYOV,
    ),
    "cross-view": PaperTable(
        "Cross-view retrieval", ("table-1", "unpaired"), _cross_view_columns, _OTHER_BYOV
    ),
    "backbones": PaperTable("Frame encoders", ("backbones",), hidden=_BASELINES),
    "charades-ego": PaperTable("Charades-Ego", ("charades-ego",), TASKS["actions"].columns),
}


class ScoreCurve(NamedTuple):
    """Scores as a function of a setting; curves with the same name share a color."""

    name: str
    settings: tuple[float, ...]
    scores: tuple[float, ...]
    deviations: tuple[float, ...]  # 0 where there is only one run
    published: bool = False


Panels = dict[str, list[ScoreCurve]]  # heading → curves


@dataclass(frozen=True)
class PaperResult:
    """Table for one dataset, with its JSON document and the panels of its figure."""

    name: str  # such as "stm-ratio-break_eggs"
    table: Table
    document: dict[str, Any]
    panels: Panels
    x_label: str


@dataclass(frozen=True)
class PaperChoice:
    """Overrides for an experiment, from the command line."""

    datasets: tuple[str, ...] = ()  # if not empty, used instead of the datasets of the experiment
    encoder: str | None = None
    seeds: int | None = None
    small: bool = False
    added: tuple[Path, ...] = ()  # grids whose runs join the tables that compare methods


def plan_paper(
    names: Sequence[str], features_dir: Path, choice: PaperChoice
) -> dict[str, list[RunGrid]]:
    """Map the named tables (default: all) to their grids, followed by the added grids; raise
    SweepError if a table does not exist.
    """
    for name in names:
        if name not in PAPER_TABLES:
            raise SweepError(f"no table {name!r}; choose from {', '.join(PAPER_TABLES)}")
    plan = {
        name: [shipped_grid(file, features_dir, choice) for file in PAPER_TABLES[name].files]
        for name in names or PAPER_TABLES
    }
    for path in choice.added:
        for name, grids in plan.items():
            if not PAPER_TABLES[name].is_ablation:
                grids.append(added_grid(read_grid(path), grids[0], choice))
    return plan


def shipped_grid(name: str, features_dir: Path, choice: PaperChoice) -> RunGrid:
    """Load a grid from experiments/ and apply the user's overrides."""
    grid = read_grid(EXPERIMENTS / f"{name}.toml")
    compares_encoders = len({block.values["encoder"][0] for block in grid.blocks}) > 1
    blocks = []
    for block in grid.blocks:
        (encoder,) = block.values["encoder"]
        (title,) = block.values["title"]
        for dataset in choice.datasets or block.values["dataset"]:
            values = {**block.values, "dataset": [dataset]}
            if not compares_encoders:
                values["encoder"] = [_choose_encoder(encoder, features_dir, dataset, choice)]
            if choice.seeds is not None:
                values["seed"] = list(range(choice.seeds))
            small = {}
            if choice.small:
                small = SMALL_SETTINGS.get(values.get("method", [DEFAULT_METHOD])[0], _SHORT)
                values["title"] = [f"{title} (small)"]
            # Settings of the experiment take precedence over those of `--small`.
            blocks.append(GridBlock({key: [value] for key, value in small.items()} | values, small))
    return replace(
        grid, source=f"{name}.toml", name=SMALL if choice.small else grid.name, blocks=tuple(blocks)
    )


def added_grid(grid: RunGrid, shipped: RunGrid, choice: PaperChoice) -> RunGrid:
    """Complete a user's grid with the datasets, encoder, seeds and scores of a table.

    Datasets that are not in the table are left out. The other settings, and the seeds unless
    `choice.seeds` is set, are those of the user's grid.
    """
    encoders = {block.values["dataset"][0]: block.values["encoder"] for block in shipped.blocks}
    blocks = []
    for block in grid.blocks:
        for dataset in (name for name in encoders if name in block.values.get("dataset", encoders)):
            values = {"encoder": encoders[dataset], "seed": shipped.blocks[0].values["seed"]}
            values |= {**block.values, "dataset": [dataset]}
            if choice.seeds is not None:
                values["seed"] = list(range(choice.seeds))
            blocks.append(replace(block, values=values))
    return replace(grid, blocks=tuple(blocks), evaluation=shipped.evaluation)


def _choose_encoder(default: str, features_dir: Path, dataset: str, choice: PaperChoice) -> str:
    """Return the requested encoder, the default, or the only cached one if a chosen dataset lacks
    the default.
    """
    cached = [
        path.name for path in (features_dir / dataset).glob("*/") if not path.name.startswith(".")
    ]
    if choice.encoder or not choice.datasets or not cached or encoder_slug(default) in cached:
        return choice.encoder or default
    if len(cached) > 1:
        raise SweepError(
            f"{dataset} has features of several encoders; choose one with --encoder "
            f"{' | '.join(sorted(cached))}"
        )
    return cached[0]


def paper_results(
    plan: Mapping[str, Sequence[RunGrid]], result: SweepResult, folders: Folders
) -> list[PaperResult]:
    """Return one result for each table and each dataset that has finished runs."""
    results = []
    for name, grids in plan.items():
        planned = plan_runs(grids, folders.features, allow_missing=True)
        runs = [run for run in planned if not run.missing]
        for dataset in dict.fromkeys(run.dataset for run in runs):
            dataset_runs = [run for run in runs if run.dataset == dataset]
            if groups := row_groups(dataset_runs, result, folders):
                subject = PAPER_TABLES[name].subject + (
                    ", small models" if grids[0].name == SMALL else ""
                )
                results.append(_paper_result(name, subject, dataset_runs, groups, result, folders))
    # Skip datasets without any of the table's scores.
    return [result for result in results if result.table.measured]


def _paper_result(
    name: str,
    subject: str,
    runs: list[PlannedRun],
    groups: list[RowGroup],
    result: SweepResult,
    folders: Folders,
) -> PaperResult:
    paper = PAPER_TABLES[name]
    dataset = runs[0].dataset
    measured = [_with_means(group).mean()[STANDARD] for group in groups]
    if paper.is_ablation:
        published = published_rows(dataset, name)
    else:
        published = [row for row in published_rows(dataset) if row.name not in paper.hidden]
        # "cls" and "merged/1.0" are shown in every table with frozen features.
        kept = {"cls", "merged/1.0", *(f"merged/{ratio_key(run.ratio)}" for run in runs)}
        frozen = [rows[STANDARD] for rows in sort_rows(result.baselines.get(dataset, []))]
        frozen = [row for row in frozen if row.origin.get("column", "cls") in kept]
        measured = [*frozen, *(rows[STANDARD] for rows in untrained_rows(groups)), *measured]
    counts = count_videos(read_manifest(folders.features, dataset), runs[0].scope)[STANDARD]
    size = f"{pluralize(counts['videos'], 'video')}, {pluralize(counts['frames'], 'frame')}"
    table = Table(
        f"{subject}: {dataset}, {runs[0].scope.split} split ({size})",
        paper.columns(dataset_options(dataset)),
        (*measured, *published),
        (MEANS,) if any(row.kind == "mean" for row in measured) else (),
    )
    setting, x_label = paper.curve or ("", "")
    panels = {
        heading: _curves(scores, setting, groups, published)
        for scores, heading in _PANELS.items()
        if setting
    }
    document = {
        "table": name,
        "dataset": dataset,
        "rows": [row.to_dict() for row in measured],
        "published": [row.to_dict() for row in published],
    }
    return PaperResult(f"{name}-{dataset}", table, document, panels, x_label)


def _curves(
    scores: str, setting: str, groups: Sequence[RowGroup], published: Sequence[Row]
) -> list[ScoreCurve]:
    """Build curves of our scores and the published ones, whose row names end with the value of the
    setting.
    """
    ours = {
        group.run.ratio
        if setting == "ratio"
        else float(group.run.config.flat()[setting]): group.mean()[STANDARD]
        for group in groups
    }
    theirs = {float(row.name.split()[-1]): row for row in published}
    curves = []
    for key in SETTINGS:
        for rows in filter(None, (ours, theirs)):
            points = {
                x: row.scores[f"{scores}/{key}"]
                for x, row in rows.items()
                if row.value(f"{scores}/{key}")
            }
            values = tuple(100 * (score.value or 0.0) for score in points.values())
            deviations = tuple(100 * (score.deviation or 0.0) for score in points.values())
            curves.append(
                ScoreCurve(SETTING_NAMES[key], tuple(points), values, deviations, rows is theirs)
            )
    return curves


def _with_means(group: RowGroup) -> RowGroup:
    """Add the means over the three evaluation settings, as reported in Table 3, to each run."""
    trained = []
    for row in (rows[STANDARD] for rows in group.trained):
        scores = dict(row.scores)
        for name, prefix in ((MEAN_F1, "classification"), (MEAN_MAP, "retrieval/map@10")):
            values = [
                value
                for setting in SETTINGS
                if (value := row.value(f"{prefix}/{setting}")) is not None
            ]
            if len(values) == len(SETTINGS):
                scores[name] = Score(fmean(values))
        trained.append({STANDARD: replace(row, scores=scores)})
    return replace(group, trained=trained)


@style.paper_style()
def write_score_curves(panels: Panels, setting: str, folder: Path, name: str) -> list[Path]:
    """Write <name>.png and <name>.pdf with scores as a function of a setting.

    Scores have error bars; published scores are dotted lines.
    """
    from matplotlib.figure import Figure  # takes a second

    figure = Figure(layout="constrained")
    entries: dict[str, Artist] = {}
    for index, (heading, curves) in enumerate(panels.items(), start=1):
        axes = figure.add_subplot(1, len(panels), index)
        order = list(dict.fromkeys(curve.name for curve in curves))
        for curve in curves:
            color = phase_color(order.index(curve.name))
            drawn = axes.errorbar(
                curve.settings,
                curve.scores,
                yerr=curve.deviations if any(curve.deviations) else None,
                color=color,
                linestyle=":" if curve.published else "-",
                marker="o",
                markerfacecolor="white" if curve.published else color,
                markersize=3,
                capsize=2,
                elinewidth=0.6,
            )
            entries.setdefault(
                f"{curve.name} (published)" if curve.published else curve.name, drawn.lines[0]
            )
        axes.set(xlabel=setting, ylabel=heading)
        style.tidy(axes)
    columns = style.legend_columns(list(entries))
    figure.set_size_inches(PAGE_INCHES, 2.1 + LEGEND_ROW_INCHES * math.ceil(len(entries) / columns))
    legend(
        figure,
        [(artist, name) for name, artist in entries.items()],
        inches=2.0,
        loc="outside lower center",
        ncols=columns,
    )
    return style.save_figure(figure, folder, name)
