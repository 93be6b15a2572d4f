"""Tests of what byov-train says about a trained model."""

import pytest

from byov.train.validation import explain_diagnostics, explain_selection

TRIVIAL = {"trivial/constant": 2.0, "trivial/view": 1.6, "trivial/video": 1.2}
CHANGED = {"cross/other": 0.86, "cross/reversed": 0.86, "cross/mean": 0.86}


def test_methods_without_diagnostics_have_nothing_to_say():
    assert explain_diagnostics({}) == []


@pytest.mark.parametrize(
    ("changed", "is_used"),
    [
        ({}, False),
        ({"cross/reversed": 1.1}, True),
        ({"cross/mean": 1.1}, False),
        ({"cross/other": 1.1}, False),
    ],
)
def test_the_use_of_the_other_view(changed, is_used):
    sentences = explain_diagnostics({"self": 0.7, "cross": 0.86} | CHANGED | changed | TRIVIAL)
    assert len(sentences) == 2
    assert ("uses the other view" in sentences[1]) == is_used
    assert ("does not use the other view" in sentences[1]) != is_used


def test_a_model_that_is_no_better_than_a_mean_frame_is_reported():
    sentences = explain_diagnostics({"self": 1.3, "cross": 0.9} | CHANGED | TRIVIAL)
    warned = [sentence for sentence in sentences if "learned no more" in sentence]
    assert len(warned) == 1
    assert warned[0].startswith("Self-view modeling")
    assert "--standardize dataset" in warned[0]
    assert len(explain_diagnostics({"self": 1.3} | TRIVIAL)) == 2, "without cross-view modeling"


@pytest.mark.parametrize(
    ("scores", "is_worse"),
    [({0: 0.58, 10: 0.57, 20: 0.33}, True), ({0: 0.58, 10: 0.57, 20: 0.6}, False), ({}, False)],
)
def test_a_model_that_scores_below_the_untrained_one_is_reported(scores, is_worse):
    records = [{"epoch": epoch, "both": score} for epoch, score in scores.items()] + [
        {"epoch": 21, "loss": 1.0}
    ]
    sentences = explain_selection(records, "both")
    assert len(sentences) == is_worse
    assert not is_worse or "epoch 10" in sentences[0]


@pytest.mark.parametrize(
    ("scores", "is_worse"),
    [
        ({0: 0.58, 10: 0.6, 20: 0.57}, True),
        ({0: 0.58, 10: 0.33, 20: 0.6}, False),
        ({0: 0.5}, False),
    ],
)
@pytest.mark.parametrize("metric", ["retrieval", "tau"])
def test_the_last_model_is_compared_with_the_untrained_one(scores, is_worse, metric):
    records = [{"epoch": epoch, metric: score} for epoch, score in scores.items()]
    sentences = explain_selection(records, "last")
    assert len(sentences) == is_worse
    assert not is_worse or "epoch 20" in sentences[0]
