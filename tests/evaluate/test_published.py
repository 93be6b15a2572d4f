import pytest

from byov.evaluate.published import published_rows

COUNTS = {
    "break_eggs": 15,
    "pour_milk": 12,
    "pour_liquid": 12,
    "tennis_forehand": 12,
    "charades_ego": 3,
    "demo": 0,
}


def row(dataset, method):
    return next(row for row in published_rows(dataset) if row.name == method)


@pytest.mark.parametrize(("dataset", "count"), COUNTS.items())
def test_all_rows_of_the_paper_are_there(dataset, count):
    rows = published_rows(dataset)
    assert len(rows) == count
    assert {row.kind for row in rows} <= {"published"}
    assert all(
        score.value is None or -5 < score.value <= 1
        for row in rows
        for score in row.scores.values()
    )


def test_scores_have_their_names():
    assert row("break_eggs", "BYOV (ViT-B/16)").nested_scores() == {
        "classification": {"regular": 0.743, "ego2exo": 0.7501, "exo2ego": 0.7128},
        "retrieval": {
            "map@10": {"regular": 0.6717, "ego2exo": 0.7065, "exo2ego": 0.6902},
            "map@5": {"regular": 0.6728, "ego2exo": 0.7276, "exo2ego": 0.7179},
            "map@15": {"regular": 0.664, "ego2exo": 0.7027, "exo2ego": 0.6894},
        },
        "progression": {"val": 0.8533, "time_column": False},
        "kendalls_tau": 0.9451,
        "few_shot": {
            "10%": {"regular": 0.7184},
            "50%": {"regular": 0.7392},
            "100%": {"regular": 0.743},
        },
    }
    assert row("pour_milk", "CLIP features (ViT-B/16)").value("progression/val") == -4.0754
    assert row("pour_liquid", "AE2").time_column
    actions = row("charades_ego", "BYOV (ViT-B/16)").nested_scores()["actions"]
    assert actions == {"regular": 0.318, "ego2exo": 0.265, "exo2ego": 0.273}
    assert "few_shot/10%/regular" not in row("break_eggs", "BYOV (ViT-L/14)").scores
    assert "progression/val" not in row("break_eggs", "TCN (unpaired multi-view)").scores


def test_ablations():
    rows = {row.name: row for row in published_rows("break_eggs", "mask-cross")}
    assert len(rows) == 6
    assert rows["MCM 0.8"].scores == {
        name: score
        for name, score in row("break_eggs", "BYOV (ViT-B/16)").scores.items()
        if name in rows["MCM 0.8"].scores
    }
    assert published_rows("break_eggs", "components")[0].value("classification/mean") == 0.7353
    assert published_rows("pour_milk", "mask-cross") == published_rows("break_eggs", "depth") == []


def test_contradictions_in_the_paper_are_footnoted_or_left_out():
    found = row("tennis_forehand", "TCC").scores["retrieval/map@10/exo2ego"]
    assert (found.value, "47.27" in found.remark) == (0.6319, True)
    wrong = row("pour_milk", "Random features")
    for score in ("few_shot/10%/regular", "few_shot/100%/regular", "retrieval/map@5/regular"):
        assert wrong.scores[score].value is None
        assert "few-shot" in wrong.scores[score].missing
    assert wrong.value("retrieval/map@5/ego2exo") is not None
