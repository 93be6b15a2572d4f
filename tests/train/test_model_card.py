import json

import pytest
import yaml

from byov.train.hub import card_text

RECORD = {
    "dataset": "break_eggs",
    "encoder": "openai/clip-vit-base-patch16",
    "column": "merged/0.3",
    "preprocessing": "squash 224",
    "recipe": "paper",
    "seed": 7,
    "validation": {"retrieval": 0.123456, "tau": -0.5},
}
HOSTILE = "x`\n\n# Owned\n---\nlicense: gpl\n---\n<script>alert(1)</script> | a | ```\n\x1b[31m\u202e\ud800"


def lines(record):
    return card_text(record, 13_100_000).splitlines()


def test_the_card_states_dataset_recipe_and_metrics():
    found = lines(RECORD)
    assert "- dataset: `break_eggs`" in found
    assert "- frame encoder: `openai/clip-vit-base-patch16`, features `merged/0.3`" in found
    assert "- recipe: `paper`, seed `7`" in found
    assert "- preprocessing: `squash 224`" in found
    assert "| `retrieval` | `0.1235` |" in found
    assert "| `tau` | `-0.5000` |" in found
    assert "13.100 million" in card_text(RECORD, 13_100_000)


def test_the_settings_can_be_read_back():
    text = card_text(RECORD, 1)
    assert json.loads(text.split("```json\n")[1].split("```")[0]) == RECORD["settings"]


def test_the_head_is_what_the_hub_reads():
    _, head, _ = card_text(RECORD, 1).split("---\n", 2)
    assert yaml.safe_load(head) == {"library_name": "byov", "license": "mit", "tags": ["ego-exo", "video", "byov"]}


@pytest.mark.parametrize("validation", [{}, None, [1], "good"])
def test_a_model_that_was_not_validated_says_so(validation):
    assert any(line.startswith("No scores") for line in lines(RECORD | {"validation": validation}))


def test_a_model_that_was_not_trained_has_a_card_too():
    assert "## Validation" not in lines({})
    assert "# BYOV frame encoder" in lines({})


@pytest.mark.parametrize("name", ["dataset", "encoder", "column", "recipe", "seed", "preprocessing"])
def test_no_value_breaks_out_of_its_line(name):
    card, usual = lines(RECORD | {name: HOSTILE}), lines(RECORD)
    assert len(card) == len(usual)
    (changed,) = [(new, old) for new, old in zip(card, usual, strict=True) if new != old]
    assert changed[0].count("`") == changed[1].count("`")
    assert changed[0].isprintable()


def test_no_metric_breaks_out_of_the_table():
    card = lines(RECORD | {"validation": {HOSTILE: HOSTILE, "tau": float("nan")}})
    assert len(card) == len(lines(RECORD))
    rows = [line for line in card if line.startswith("| `")]
    assert [row.count("|") for row in rows] == [3, 3]
    assert [row.count("`") for row in rows] == [4, 4]


def test_no_setting_breaks_out_of_the_code():
    settings = {"recipe": HOSTILE, HOSTILE: [HOSTILE]}
    text = card_text(RECORD | {"settings": settings}, 1)
    assert text.count("```") == 4
    assert text.isascii() or "\ud800" not in text
    text.encode()
