"""Which figures stand in which column of which table: the paper's order."""

from collections.abc import Sequence
from dataclasses import dataclass

from byov.evaluate.frames import SETTINGS
from byov.evaluate.tasks import PAIRS, Settings, Task, share_text

SETTING_NAMES = {"regular": "Regular", "ego2exo": "Ego2Exo", "exo2ego": "Exo2Ego"}
MAIN_K = 10  # of the paper's Table 1


@dataclass(frozen=True)
class Column:
    figure: str
    group: str  # printed above the columns that share it
    heading: str
    short: str  # the group where there is little room
    percent: bool = True


@dataclass(frozen=True)
class Layout:
    """One table: what it shows, and its columns."""

    subject: str
    columns: tuple[Column, ...]


def layouts(tasks: Sequence[Task], settings: Settings) -> list[Layout]:
    """The paper's tables if all their tasks were scored, else one table for each task."""
    single = {
        "classification": Layout("Phase classification", _classification()),
        "retrieval": Layout("Frame retrieval", _retrieval(settings.ks, SETTINGS)),
        "progression": Layout("Phase progression", (_PROGRESSION,)),
        "tau": Layout("Kendall's tau, by the views of query and candidates", _tau()),
        "few-shot": Layout("Few-shot phase classification", _few_shot(settings, SETTINGS)),
        "actions": Layout("Action recognition by linear probe", _actions()),
    }
    if not {"classification", "retrieval", "progression", "tau"} <= set(tasks):
        return [single[task] for task in tasks]
    main_k = MAIN_K if MAIN_K in settings.ks else settings.ks[0]
    wide = (*_classification(), *_retrieval((main_k,), SETTINGS), _PROGRESSION, _TAU)
    beside = [single[task] for task in ("few-shot", "actions") if task in tasks]
    return [Layout("Phase tasks", wide), single["retrieval"], *beside, single["tau"]]


_PROGRESSION = Column("progression/val", "Phase progression", "R²", "progression", percent=False)
_TAU = Column("kendalls_tau/all", "Kendall's tau", "all pairs", "tau", percent=False)


def _classification() -> tuple[Column, ...]:
    return tuple(
        Column(f"classification/{setting}", "Classification (F1)", SETTING_NAMES[setting], "F1") for setting in SETTINGS
    )


def _retrieval(ks: Sequence[int], settings: Sequence[str]) -> tuple[Column, ...]:
    if len(ks) == 1:
        return tuple(
            Column(
                f"retrieval/map@{ks[0]}/{setting}", f"Retrieval (map@{ks[0]})", SETTING_NAMES[setting], f"map@{ks[0]}"
            )
            for setting in settings
        )
    return tuple(
        Column(
            f"retrieval/map@{k}/{setting}", f"{SETTING_NAMES[setting]} retrieval", f"map@{k}", SETTING_NAMES[setting]
        )
        for setting in settings
        for k in ks
    )


def _few_shot(settings: Settings, shown: Sequence[str]) -> tuple[Column, ...]:
    return tuple(
        Column(
            f"few_shot/{share_text(share)}/{setting}",
            f"{SETTING_NAMES[setting]} few-shot (F1)",
            share_text(share),
            f"{SETTING_NAMES[setting]} F1",
        )
        for setting in shown
        for share in settings.shares
    )


def _tau() -> tuple[Column, ...]:
    return tuple(
        Column(f"kendalls_tau/{pairs}", "Kendall's tau", "all pairs" if pairs == "all" else pairs, "tau", percent=False)
        for pairs in PAIRS
    )


def _actions() -> tuple[Column, ...]:
    return tuple(Column(f"actions/{setting}", "Actions (mAP)", SETTING_NAMES[setting], "mAP") for setting in SETTINGS)
