import json

import pytest
import torch
import yaml

from byov.train.hub import card_text
from byov.train.methods.byov import Byov, ByovSettings

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


@pytest.fixture
def card(make_method):
    """card(record): the text for a model that was trained so."""
    return lambda record: card_text(make_method(training=record))


@pytest.fixture
def lines(card):
    return lambda record: card(record).splitlines()


def test_the_card_states_dataset_recipe_and_metrics(lines):
    found = lines(RECORD)
    assert "- dataset: `break_eggs`" in found
    assert "- frame encoder: `openai/clip-vit-base-patch16`, features `merged/0.3`" in found
    assert "- recipe: `paper`, seed `7`" in found
    assert "- preprocessing: `squash 224`" in found
    assert "| `retrieval` | `0.1235` |" in found
    assert "| `tau` | `-0.5000` |" in found


def test_the_card_states_the_method_and_the_size(make_method):
    with torch.device("meta"):
        paper = Byov(768, ByovSettings())
    assert "A model of 13.100 million parameters, trained by the method `byov`" in card_text(paper)
    other = card_text(make_method("timeline", training=RECORD | {"recipe": "timeline"}))
    assert "trained by the method `timeline`" in other
    assert "- method: `timeline`, seed `7`" in other


def test_the_settings_can_be_read_back(make_method):
    model = make_method(training=RECORD)
    assert json.loads(card_text(model).split("```json\n")[1].split("```")[0]) == model.config["settings"]


def test_the_head_is_what_the_hub_reads(card):
    _, head, _ = card(RECORD).split("---\n", 2)
    assert yaml.safe_load(head) == {"library_name": "byov", "license": "mit", "tags": ["ego-exo", "video", "byov"]}


@pytest.mark.parametrize("validation", [{}, None, [1], "good"])
def test_a_model_that_was_not_validated_says_so(lines, validation):
    assert any(line.startswith("No scores") for line in lines(RECORD | {"validation": validation}))


def test_a_model_that_was_not_trained_has_a_card_too(lines):
    assert "## Validation" not in lines({})
    assert "# BYOV frame encoder" in lines({})


@pytest.mark.parametrize("name", ["dataset", "encoder", "column", "recipe", "seed", "preprocessing"])
def test_no_value_breaks_out_of_its_line(lines, name):
    found, usual = lines(RECORD | {name: HOSTILE}), lines(RECORD)
    assert len(found) == len(usual)
    (changed,) = [(new, old) for new, old in zip(found, usual, strict=True) if new != old]
    assert changed[0].count("`") == changed[1].count("`")
    assert changed[0].isprintable()


def test_no_metric_breaks_out_of_the_table(lines):
    found = lines(RECORD | {"validation": {HOSTILE: HOSTILE, "tau": float("nan")}})
    assert len(found) == len(lines(RECORD))
    rows = [line for line in found if line.startswith("| `")]
    assert [row.count("|") for row in rows] == [3, 3]
    assert [row.count("`") for row in rows] == [4, 4]


def test_a_hostile_record_leaves_the_code_blocks_alone(card):
    text = card({name: HOSTILE for name in RECORD if name != "validation"} | {"validation": {HOSTILE: HOSTILE}})
    assert text.count("```") == 4
    text.encode()
