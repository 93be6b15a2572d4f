"""Results from the paper (published.csv) and contradictions between its tables
(published_remarks.csv).

Park et al., "Bootstrap Your Own Views", CVPR 2025: Table 1, the tables on Charades-Ego and, in the
appendix, on backbones, few-shot classification and cross-view retrieval (all "methods"), and the
ablations. The paper quotes methods other than BYOV from the AE2 paper. Values are percentages
except for progression and tau; empty if not reported.
"""

import csv
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from byov.evaluate.frames import Score
from byov.evaluate.progression import TIME_COLUMN_DATASETS
from byov.evaluate.table import Row

CORRELATIONS = ("progression", "kendalls_tau")  # in published.csv, other scores are percentages
MEAN_F1 = "classification/mean"
MEAN_MAP = "retrieval/map@10/mean"


def published_rows(dataset: str, table: str = "methods") -> list[Row]:
    """Return the paper's rows for a dataset, from its comparison of methods or an ablation
    ("stm-ratio", ...).
    """
    rows = []
    for line in _lines("published.csv"):
        if (line["table"], line["dataset"]) != (table, dataset):
            continue
        remarks = {
            remark["score"]: remark["remark"]
            for remark in _lines("published_remarks.csv")
            if (remark["dataset"], remark["method"]) == (dataset, line["method"])
        }
        scores = {
            name: Score(
                float(text) if name.startswith(CORRELATIONS) else round(float(text) / 100, 6),
                remark=remarks.get(name),
            )
            for name, text in line.items()
            if text and "/" in name
        }
        if "few_shot/10%/regular" in scores:
            scores["few_shot/100%/regular"] = scores["classification/regular"]
        scores |= {
            name: Score(None, missing=remark)
            for name, remark in remarks.items()
            if name not in scores
        }
        rows.append(
            Row(
                line["method"],
                "published",
                scores,
                {"paper": "Park et al., CVPR 2025", "dataset": dataset},
                time_column=dataset in TIME_COLUMN_DATASETS,
            )
        )
    return rows


@cache
def _lines(file_name: str) -> list[Mapping[str, str]]:
    with Path(__file__).with_name(file_name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))
