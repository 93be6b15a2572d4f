"""A row of scores by flat names, with the spread, and the reasons for those that are missing.

Names of scores: classification/<setting>, retrieval/map@<K>/<setting>, progression/val, progression/train,
kendalls_tau/<pairs>, few_shot/<share>/<setting>, actions/<setting>.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from statistics import fmean, stdev
from typing import Any, Literal, Self

from byov.evaluate.frames import Missing

Kind = Literal["random", "frozen", "time", "untrained", "run", "mean", "npz", "published"]


@dataclass(frozen=True)
class Score:
    """One score; None with the reason where there is none."""

    value: float | None
    missing: str | None = None
    deviation: float | None = None  # standard deviation over draws or runs
    draws: int | None = None  # of a mean over draws
    interval: tuple[float, float] | None = None  # 95%, by resampling videos
    pairs: int | None = None  # of a mean over pairs of videos: how many there are,
    pairs_with_tau: int | None = None  # and how many of them the mean is over
    remark: str | None = None  # what a reader must know of this score

    @classmethod
    def of(cls, value: float | Missing, **details: Any) -> Self:
        if isinstance(value, Missing):
            return cls(None, missing=value.reason, **details)
        return cls(float(value), **details)


@dataclass(frozen=True)
class Row:
    """One row of a table, with where its embeddings come from."""

    name: str
    kind: Kind
    scores: dict[str, Score]
    origin: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    time_column: bool = False  # progression saw AE2's time column

    def value(self, name: str) -> float | None:
        return self.scores[name].value if name in self.scores else None

    def with_intervals(self, intervals: Mapping[str, tuple[float, float]]) -> "Row":
        scores = {
            name: score if score.value is None else replace(score, interval=intervals.get(name))
            for name, score in self.scores.items()
        }
        return replace(self, scores=scores)

    def nested_scores(self) -> dict[str, Any]:
        """The values in the shape of the golden files; None where there is none."""
        nested = nested_scores(self.scores)
        if "progression" in nested:
            nested["progression"]["time_column"] = self.time_column
        return nested

    def details(self) -> dict[str, dict[str, Any]]:
        """What is known of a score beside its value: spread, interval, why it is missing."""
        known = {
            name: {key: value for key, value in asdict(score).items() if value is not None and key != "value"}
            for name, score in self.scores.items()
        }
        return {name: detail for name, detail in known.items() if detail}

    def as_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "kind": self.kind,
            "scores": self.nested_scores(),
            "details": self.details(),
            "origin": self.origin,
            "notes": list(self.notes),
        }


def nested_scores(scores: Mapping[str, Score]) -> dict[str, Any]:
    """{"retrieval/map@5/regular": ...} → {"retrieval": {"map@5": {"regular": ...}}}; a missing score is None.

    Kendall's tau over all pairs is a plain number, as AE2 gives it; by views it stands apart.
    """
    nested: dict[str, Any] = {}
    for name, score in scores.items():
        *groups, last = name.split("/")
        if groups == ["kendalls_tau"]:
            groups, last = ([], "kendalls_tau") if last == "all" else (["kendalls_tau_by_views"], last)
        inner = nested
        for group in groups:
            inner = inner.setdefault(group, {})
        inner[last] = score.value
    return nested


def mean_row(rows: Sequence[Row], name: str) -> Row:
    """Mean and sample standard deviation over rows; a score that one of them lacks is missing."""
    scores = {score: _mean([row.scores[score] for row in rows]) for score in rows[0].scores}
    return Row(name, "mean", scores, {"runs": [row.origin for row in rows]}, time_column=rows[0].time_column)


def _mean(scores: Sequence[Score]) -> Score:
    values = [score.value for score in scores if score.value is not None]
    if len(values) < len(scores):
        return next(score for score in scores if score.value is None)
    return Score(fmean(values), deviation=stdev(values) if len(values) > 1 else None, remark=_joined_remark(scores))


def _joined_remark(scores: Sequence[Score]) -> str | None:
    """Each remark once; those that differ in their number of pairs alone as one."""
    remarked = [score for score in scores if score.remark]
    counts = [score.pairs_with_tau for score in remarked if score.pairs_with_tau is not None]
    totals = {score.pairs for score in remarked}
    if len(counts) == len(remarked) and len(totals) == 1 and (pairs := totals.pop()) is not None:
        return some_pairs(min(counts), max(counts), pairs)
    return "; ".join(dict.fromkeys(score.remark for score in remarked if score.remark)) or None


def some_pairs(least: int, most: int, pairs: int) -> str:
    """The remark on means over some of the pairs of videos, from `least` to `most` of them."""
    counts = str(least) if least == most else f"{least} to {most}"
    return f"mean of {counts} of {pairs} pairs; the others have none"
