"""The paper's results, quoted in published.csv.

Park et al., "Bootstrap Your Own Views", CVPR 2025: Table 1, the appendix's tables of backbones, few-shot classification
and cross-view retrieval, the table of Charades-Ego (all "methods"), and the ablations. Methods other than BYOV are
quoted there from the AE2 paper. Values are percent except progression and tau; an empty field was not printed.
"""

import csv
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from byov.evaluate.frames import Score
from byov.evaluate.progression import TIME_COLUMN_DATASETS
from byov.evaluate.table import Row

PAPER = "Park et al., CVPR 2025"
MEAN_F1, MEAN_MAP = "classification/mean", "retrieval/map@10/mean"
_NOT_FEW_SHOT = "the paper's few-shot table repeats six values of its Table 1 here, which are not few-shot results"
# (dataset, method, score): contradictions between the paper's tables.
_CONTRADICTIONS = {
    ("break_eggs", "Random features", "retrieval/map@10/exo2ego"): "37.19 in Table 1, 38.19 in the cross-view table",
    ("break_eggs", "CLIP features (ViT-L/14)", "retrieval/map@10/ego2exo"): (
        "38.96 in the table of backbones, 38.94 in the cross-view table"
    ),
    ("tennis_forehand", "TCC", "retrieval/map@10/exo2ego"): (
        "63.19 in Table 1, which is CARL's value; 47.27 in the cross-view table"
    ),
    ("pour_milk", "CLIP features (ViT-L/14)", "retrieval/map@15/regular"): (
        "above map@5 and map@10, and equal to exo2ego map@10: possibly an error of the paper"
    ),
    **{
        (dataset, method, score): _NOT_FEW_SHOT
        for dataset in ("pour_milk", "pour_liquid", "tennis_forehand")
        for method in ("Random features", "ImageNet features")
        for score in (
            *(f"few_shot/{fraction}/regular" for fraction in ("10%", "50%", "100%")),
            *(f"retrieval/map@{k}/regular" for k in (5, 15)),
        )
    },
}


def published_rows(dataset: str, table: str = "methods") -> list[Row]:
    """Return the paper's rows for a dataset, of its methods or of an ablation ("stm-ratio", ...); empty without any."""
    rows = []
    for line in _lines():
        if (line["table"], line["dataset"]) != (table, dataset):
            continue
        method = line["method"]
        scores = {name: _score(dataset, method, name, text) for name, text in line.items() if text and "/" in name}
        if "few_shot/10%/regular" in scores:
            scores["few_shot/100%/regular"] = scores["classification/regular"]
        for (*row, name), reason in _CONTRADICTIONS.items():
            if table == "methods" and row == [dataset, method] and name not in scores:
                scores[name] = Score(None, missing=reason)
        origin = {"paper": PAPER, "dataset": dataset}
        rows.append(Row(method, "published", scores, origin, time_column=dataset in TIME_COLUMN_DATASETS))
    return rows


def _score(dataset: str, method: str, name: str, text: str) -> Score:
    is_correlation = name.startswith(("progression", "kendalls_tau"))
    value = float(text) if is_correlation else round(float(text) / 100, 6)
    return Score(value, remark=_CONTRADICTIONS.get((dataset, method, name)))


@cache
def _lines() -> list[Mapping[str, str]]:
    with Path(__file__).with_name("published.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))
