"""Summary of a report in plain sentences, and its small charts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from byov.cache.layout import Protocol
from byov.evaluate.frames import Frames
from byov.evaluate.readers import EmbeddingReader, TimeOnly
from byov.evaluate.results import Results
from byov.evaluate.table import Kind, Row
from byov.evaluate.tasks import main_columns
from byov.evaluate.transfer import ReferenceFrames
from byov.report.content import PredictedProgress, ScoreBars, ScoreChart

SIMILAR = 0.1  # errors that differ by less than this fraction count as equal
CLOCK = "a clock"
FROZEN = "the frozen features"
BASELINES: dict[str, tuple[Kind, ...]] = {CLOCK: ("time",), FROZEN: ("frozen", "random")}
PLACES: dict[Protocol, str] = {
    "standard": "on whole videos",
    "trimmed": "on sub-clips",
    "online": "online",
}
SETTINGS = {"regular": ("regular",), "cross-view": ("ego2exo", "exo2ego")}
METRICS = {"F1": "classification", "map@10": "retrieval/map@10"}


@dataclass(frozen=True)
class MomentErrors:
    """Mean errors in seconds of the moments found by each run and baseline."""

    runs: Mapping[str, float]  # this run first
    clock: float
    frozen: float | None = None  # None if the features cannot be read
    across_views: bool = True

    @property
    def baselines(self) -> dict[str, float]:
        return {CLOCK: self.clock} | ({} if self.frozen is None else {FROZEN: self.frozen})


def summary_sentence(errors: MomentErrors) -> str:
    """State how far off the run and the baselines are, and which of them the run does not beat."""
    (name, own), *_ = errors.runs.items()
    if errors.across_views:
        query = "a frame from one camera"
        target = "a video from the other camera"
    else:
        query = "a frame of one video"
        target = "another video"
    others = f"; a clock is off by {errors.clock:.2f} s"
    if errors.frozen is not None:
        others += f", the frozen features by {errors.frozen:.2f} s"
    not_beaten = _not_beaten(own, errors.baselines)
    verb = "misses" if not_beaten else "finds"
    distance = f"{'by' if not_beaten else 'within'} {own:.2f} s on average"
    sentence = f"Given {query}, {name} {verb} the same moment in {target} {distance}{others}."
    return f"{sentence} It is {not_beaten}." if not_beaten else sentence


def compared_sentences(errors: MomentErrors) -> tuple[str, ...]:
    """State the errors of the compared runs."""
    sentences = []
    for name, error in [*errors.runs.items()][1:]:
        not_beaten = _not_beaten(error, errors.baselines)
        text = f"For comparison, {name} is off by {error:.2f} s"
        sentences.append(f"{text}, {not_beaten}." if not_beaten else f"{text}.")
    return tuple(sentences)


def _not_beaten(error: float, baselines: Mapping[str, float]) -> str:
    """Return text such as "worse than a clock and about as good as the frozen features"."""
    worse = [name for name, other in baselines.items() if error > (1 + SIMILAR) * other]
    equal = [
        name
        for name, other in baselines.items()
        if (1 - SIMILAR) * other <= error <= (1 + SIMILAR) * other
    ]
    parts = [f"worse than {' and '.join(worse)}"] * bool(worse)
    parts += [f"about as good as {' and '.join(equal)}"] * bool(equal)
    return " and ".join(parts)


def worse_sentences(results: Results, names: Sequence[str]) -> tuple[str, ...]:
    """State in how many columns of the main tables the named rows are behind Time only and the
    frozen features, and by how much at worst; one sentence for each row that is behind.

    Correlations are left out, because time alone reaches their maximum.
    """
    sentences = []
    for name in names:
        found = [_behind(results, name, baseline) for baseline in BASELINES]
        if any(found):
            listed = " and behind ".join(filter(None, found))
            sentences.append(f"{_short_name(results, name)} is behind {listed}.")
    return tuple(sentences)


def _behind(results: Results, name: str, baseline: str) -> str:
    """Return text such as "a clock in 2 of 7 scores online (worst: ...)", or "" if the row is never
    behind.
    """
    gaps = list[tuple[float, str]]()
    places = list[str]()
    for protocol, rows in results.rows.items():
        own = next(row for row in rows if row.name == name)
        others = [row for row in rows if row.kind in BASELINES[baseline]]
        compared = 0
        before = len(gaps)
        for column in main_columns(results.scope.options, protocol):
            value = own.value(column.score)
            known = [other for row in others if (other := row.value(column.score)) is not None]
            if value is None or not known or column.unit == "correlation":
                continue
            compared += 1
            best = min(known) if column.lower_is_better else max(known)
            gap = (value - best if column.lower_is_better else best - value) / max(best, 1e-9)
            if gap > 0:
                numbers = f"{column.format(value)} against {column.format(best)}"
                title = f"{column.group}, {column.heading}"
                gaps.append((gap, f"{title}, {PLACES[protocol]}: {numbers}"))
        if len(gaps) > before:
            scores = " scores" * (not places)
            places.append(f"{len(gaps) - before} of {compared}{scores} {PLACES[protocol]}")
    if not gaps:
        return ""
    *first, last = places
    listed = f"{', '.join(first)} and {last}" if first else last
    return f"{baseline} in {listed} (worst: {max(gaps)[1]})"


def score_chart(results: Results, names: Sequence[str], frozen: str) -> ScoreChart | None:
    """Collect the F1 and map@10 of the named rows, the clock and one row of frozen features; the
    cross-view score is the mean of both directions. Return None without phase scores.
    """
    shown = [*names, TimeOnly.name, frozen]
    groups = []
    for metric, prefix in METRICS.items():
        for protocol, rows in results.rows.items():
            by_name = {row.name: row for row in rows}
            for setting, scores in SETTINGS.items():
                values = tuple(
                    _mean(by_name.get(name), [f"{prefix}/{score}" for score in scores])
                    for name in shown
                )
                groups.append(ScoreBars(metric, protocol, setting, values))
    if all(value is None for group in groups for value in group.scores):
        return None
    titles = [_short_name(results, name) for name in names]
    return ScoreChart((*titles, "clock", "frozen features"), tuple(groups))


def _short_name(results: Results, name: str) -> str:
    rows: Mapping[Protocol, Sequence[Row]] = results.rows
    return next(
        str(row.origin.get("run", name)) for row in next(iter(rows.values())) if row.name == name
    )


def _mean(row: Row | None, scores: Sequence[str]) -> float | None:
    values = [] if row is None else [row.value(score) for score in scores]
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known and len(known) == len(scores) else None


def predict_progress(
    runs: Sequence[tuple[EmbeddingReader, Frames]], clock: tuple[EmbeddingReader, Frames]
) -> tuple[PredictedProgress | None, ...]:
    """Predict the progress of all frames of the shown videos from the nearest training frames.

    Args:
        runs: Reader of each run, and its frames of the shown videos.
        clock: The same for Time only.

    Returns:
        Predictions for each video, None for videos without labels; () if there are no labels.
    """
    reader, test = clock
    train = reader.frames("train")
    if train.labels is None or not test.has_labels.any() or test.reference_progress is None:
        return ()
    predicted = []
    for reader, frames in (clock, *runs):
        train = reader.frames("train").labeled
        if train.reference_progress is not None:
            reference = ReferenceFrames(train.embeddings, train.reference_progress)
            predicted.append(
                np.split(reference.predict_progress(frames.embeddings), test.starts[1:])
            )
    references = np.split(test.reference_progress, test.starts[1:])
    return tuple(
        PredictedProgress(reference, of_clock, tuple(of_runs)) if is_labeled else None
        for is_labeled, reference, of_clock, *of_runs in zip(
            test.has_labels.tolist(), references, *predicted, strict=True
        )
    )
