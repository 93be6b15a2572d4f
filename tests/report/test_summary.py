"""Tests of the sentences at the top of a report, of the pair it opens on, and of its charts."""

from itertools import product

import numpy as np
import pytest

from byov.cache.hdf5 import read_array
from byov.cache.manifest import VideoEntry
from byov.evaluate.frames import Score
from byov.evaluate.protocols import Segment
from byov.evaluate.readers import RunEmbeddings
from byov.evaluate.results import Results
from byov.evaluate.scope import Scope
from byov.evaluate.table import Row
from byov.evaluate.tasks import TASKS, EvaluationOptions, main_columns
from byov.report.moments import choose_opening, find_moments
from byov.report.summary import (
    MomentErrors,
    compared_sentences,
    score_chart,
    summary_sentence,
    worse_sentences,
)


def make_segment(name, view, labels):
    return Segment(VideoEntry(name, view, "test", len(labels), 10.0, tuple(labels), None))


def pts(segments):
    return [np.arange(len(segment)) / 10 for segment in segments]


# Errors in seconds


def test_the_sentence_has_the_errors_of_a_naive_search(collected, shared_project):
    folders = (
        (shared_project.run / "embeddings", "embedding"),
        (shared_project.features_dir / "tea" / "random--tiny", "merged/0.3"),
    )
    videos = collected.videos
    means = []
    for search in (*folders, None):
        errors = []
        for query, other in product(videos, videos):
            if query.view == other.view:
                continue
            for phase in (1, 2):
                if phase not in query.labels or phase not in other.labels:
                    continue
                frame = query.labels.index(phase)
                if not frame or not other.labels.index(phase):
                    continue
                if search is None:
                    times = np.linspace(0, 1, other.frames, dtype=np.float32)
                    found = np.abs(times - np.float32(frame / (query.frames - 1))).argmin()
                else:
                    folder, column = search
                    rows = [
                        read_array(folder / f"{video.name}.h5", column).astype(float)
                        for video in (query, other)
                    ]
                    found = ((rows[1] - rows[0][frame]) ** 2).sum(axis=1).argmin()
                errors.append(abs(found - other.labels.index(phase)) / 10)
        means.append(np.mean(errors))
    own, frozen, clock = means
    sentence = collected.summary.sentence
    assert f"by {own:.2f} s on average" in sentence or f"within {own:.2f} s on average" in sentence
    assert f"a clock is off by {clock:.2f} s" in sentence
    assert f"the frozen features by {frozen:.2f} s" in sentence
    assert f"{len(errors)} searches" in collected.summary.basis


def test_moments_are_starts_of_phases_that_both_videos_show():
    segments = [
        make_segment("a", "ego", [0, 0, 1, 1, 2]),
        make_segment("b", "exo", [0, 1, -1, 2, 2]),  # the start of phase 2 is unknown
        make_segment("c", "exo", [1, 1, 1, 2, 2]),  # it starts with phase 1
    ]
    moments = find_moments(segments, pts(segments))
    assert moments.pairs == ((0, 1), (0, 2), (1, 0), (2, 0))
    assert [moments.shared(*pair) for pair in moments.pairs] == [
        [(2, 1)],
        [(4, 3)],
        [(1, 2)],
        [(3, 4)],
    ]
    rows = [
        np.array(frames)[:, None]
        for frames in ([0, 1, 2, 3, 4.0], [2, 3, 4, 5, 6.0], [0, 1, 2, 4, 5.0])
    ]
    # Frame 2 of a is nearest to frame 0 of b, and so on.
    assert moments.errors(rows) == pytest.approx([0.1, 0.0, 0.1, 0.0])
    unordered = find_moments(segments, pts(segments), ordered=False)
    assert unordered.errors(rows) == []
    one_view = find_moments(segments[1:], pts(segments[1:]))
    assert one_view.pairs == ((0, 1), (1, 0))


@pytest.mark.parametrize(
    ("own", "clock", "frozen", "expected"),
    [
        (0.41, 1.14, 2.22, "by 1.14 s, the frozen features by 2.22 s."),
        (1.1, 1.14, 2.22, "by 2.22 s. It is about as good as a clock."),
        (3.0, 1.14, 2.22, "It is worse than a clock and the frozen features."),
        (1.14, 1.14, 0.5, "It is worse than the frozen features and about as good as a clock."),
        (0.0, 0.0, None, "a clock is off by 0.00 s. It is about as good as a clock."),
    ],
)
def test_the_sentence_follows_from_the_errors(own, clock, frozen, expected):
    sentence = summary_sentence(MomentErrors({"first": own}, clock, frozen))
    verb, preposition = ("finds", "within") if own == 0.41 else ("misses", "by")
    assert sentence.startswith(
        f"Given a frame from one camera, first {verb} the same moment in a video from the other "
        f"camera {preposition} {own:.2f} s on average; a clock is off by {clock:.2f} s"
    )
    assert sentence.endswith(expected)


def test_the_results_of_compared_runs_are_stated():
    errors = MomentErrors(
        {"first": 0.4, "second": 1.1, "third": 0.3}, 1.14, 2.2, across_views=False
    )
    assert compared_sentences(errors) == (
        "For comparison, second is off by 1.10 s, about as good as a clock.",
        "For comparison, third is off by 0.30 s.",
    )
    assert "Given a frame of one video, first finds the same moment in another video" in (
        summary_sentence(errors)
    )


# Scores


def make_results(values):
    """Make results from the F1 (also used for all other scores) of each row and protocol."""
    options = EvaluationOptions()
    kinds = {"Time only": "time", "features": "frozen"}
    rows = {
        protocol: [
            Row(
                name,
                kinds.get(name, "run"),
                {
                    column.score: Score(1 - value if column.lower_is_better else value)
                    for column in main_columns(options, protocol)
                },
                {} if name in kinds else {"run": name.partition(":")[0]},
            )
            for name, value in by_name.items()
        ]
        for protocol, by_name in values.items()
    }
    return Results("tea", Scope("test", tuple(values), tuple(TASKS), options), rows, {})


def test_rows_that_are_behind_a_baseline_are_named():
    ahead = {"features": 0.4, "Time only": 0.6, "first: BYOV": 0.7, "second: TCC": 0.7}
    online = {"features": 0.5, "Time only": 0.6, "first: BYOV": 0.5, "second: TCC": 0.4}
    assert worse_sentences(make_results({"standard": ahead}), ["first: BYOV"]) == ()
    results = make_results({"standard": ahead, "online": online})
    first, second = worse_sentences(results, ["first: BYOV", "second: TCC"])
    worst = "(worst: Progress error (%), mean, online: 50.00 against 40.00)"
    assert first == f"first is behind a clock in 7 of 7 scores online {worst}."
    assert second.startswith("second is behind a clock in 7 of 7 scores online (worst: ")
    assert " and behind the frozen features in 7 of 7 scores online (worst: " in second
    low = dict.fromkeys(ahead, 0.7) | {"first: BYOV": 0.2}
    both = worse_sentences(make_results({"standard": low, "trimmed": low}), ["first: BYOV"])
    assert "a clock in 6 of 6 scores on whole videos and 7 of 7 on sub-clips" in both[0]


def test_correlations_are_not_counted():
    """Time alone reaches the maximum of Kendall's tau."""
    results = make_results({"standard": {"Time only": 0.6, "first": 0.7}})
    clock, own = results.rows["standard"]
    clock.scores["kendalls_tau/all"] = Score(1.0)
    own.scores["kendalls_tau/all"] = Score(0.9)
    assert worse_sentences(results, ["first"]) == ()


def test_the_chart_averages_both_directions():
    results = make_results({"standard": {"features": 0.4, "Time only": 0.6, "first: BYOV": 0.7}})
    own = results.rows["standard"][-1]
    own.scores["retrieval/map@10/ego2exo"] = Score(0.5)
    own.scores["classification/exo2ego"] = Score(None, missing="no ego videos")
    chart = score_chart(results, ["first: BYOV"], "features")
    assert chart.rows == ("first", "clock", "frozen features")
    scores = {(group.metric, group.setting): group.scores for group in chart.groups}
    assert scores["map@10", "cross-view"] == pytest.approx((0.6, 0.6, 0.4))
    assert scores["map@10", "regular"] == (0.7, 0.6, 0.4)
    assert scores["F1", "cross-view"] == (None, 0.6, 0.4)


def test_predicted_progress_is_that_of_the_evaluator(collected, shared_project):
    reader = RunEmbeddings(shared_project.runs_dir, shared_project.features_dir, "first")
    train = reader.frames("train")
    test = reader.frames("test")
    for video, predicted in zip(collected.videos, collected.predictions, strict=True):
        rows = read_array(shared_project.run / "embeddings" / f"{video.name}.h5", "embedding")
        distances = np.linalg.norm(rows[:, None].astype(float) - train.embeddings, axis=2)
        nearest = np.argsort(distances, axis=1)[:, :10]
        np.testing.assert_allclose(
            predicted.runs[0], train.reference_progress[nearest].mean(axis=1), atol=0.02
        )
        assert len(predicted.reference) == len(predicted.clock) == video.frames
    whole = np.concatenate([predicted.reference for predicted in collected.predictions])
    assert sorted(whole) == pytest.approx(sorted(test.reference_progress))


# The opening pair


def test_the_page_opens_on_the_pair_with_the_largest_gain():
    segments = [
        make_segment("a", "ego", [0] * 5 + [1] * 5),
        make_segment("b", "exo", [0] * 5 + [1] * 5),  # a clock is right
        make_segment("c", "exo", [0] * 1 + [1] * 9),
    ]
    moments = find_moments(segments, pts(segments))
    progress = [np.array(segment.video.labels, float) for segment in segments]
    embeddings = [
        labels[:, None] + 0.01 * np.arange(10)[:, None] * labels[:, None] for labels in progress
    ]
    opening = choose_opening(segments, moments, embeddings)
    assert (opening.video, opening.other) == (0, 2)
    assert opening.clock_error == pytest.approx(0.4)
    assert opening.aligned_error < opening.clock_error
    assert 1 <= opening.frame <= 4, "the clock's frame is in another phase"


def test_the_opening_without_labels_or_with_one_view():
    segments = [make_segment(name, view, [-1] * 4) for name, view in (("a", "exo"), ("b", "exo"))]
    rows = [np.zeros((4, 2)), np.zeros((4, 2))]
    opening = choose_opening(segments, find_moments(segments, pts(segments)), rows)
    assert (opening.video, opening.frame, opening.other, opening.clock_error) == (0, 0, 1, None)
    alone = choose_opening(segments[:1], find_moments(segments[:1], pts(segments[:1])), rows[:1])
    assert (alone.video, alone.other) == (0, 0)
