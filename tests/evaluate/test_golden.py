"""Compare the metrics and their naive versions with AE2's published evaluator."""

import json

import pytest

from byov.evaluate.classification import phase_f1
from byov.evaluate.kendalls_tau import kendalls_tau
from byov.evaluate.progression import phase_progression
from byov.evaluate.retrieval import mean_average_precision


def test_metrics_match_ae2(golden):
    train = golden[0]
    test = golden[1]
    expected = json.loads(golden[2])
    assert phase_f1(train, test) == pytest.approx(expected["classification"], abs=1e-4)
    scores = mean_average_precision(test, (5, 10, 15))
    for k in (5, 10, 15):
        found = {setting: by_k[k] for setting, by_k in scores.items()}
        assert found == pytest.approx(expected["retrieval"][f"map@{k}"], abs=1e-6)
    time_column = expected["progression"]["time_column"]
    for scored, name in ((train, "train"), (test, "val")):
        score = phase_progression(train, scored, time_column=time_column)
        assert score == pytest.approx(expected["progression"][name], abs=1e-6)
    assert kendalls_tau(test)["all"].value == pytest.approx(expected["kendalls_tau"], abs=1e-6)


def test_naive_metrics_match_ae2(golden, naive):
    train = golden[0]
    test = golden[1]
    expected = json.loads(golden[2])
    assert naive.phase_f1(train, test) == pytest.approx(expected["classification"], abs=1e-4)
    assert naive.retrieval_at(test, "ego2exo", 5) == pytest.approx(
        expected["retrieval"]["map@5"]["ego2exo"], abs=1e-6
    )
    progression = naive.phase_progression(
        train, test, time_column=expected["progression"]["time_column"]
    )
    assert progression == pytest.approx(expected["progression"]["val"], abs=1e-6)
    assert naive.kendalls_tau(test) == pytest.approx(expected["kendalls_tau"], abs=1e-6)
