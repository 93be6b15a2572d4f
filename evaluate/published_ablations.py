"""The paper's ablations, all of Break Eggs with CLIP ViT-B/16, as rows to stand below what is measured here.

Park et al., CVPR 2025: Table 3, and the supplement's tables of ratios and of the latent space. In percent, but for
progression and tau. Table 3 prints means over the three settings.
"""

from byov.evaluate.frames import SETTINGS
from byov.evaluate.published import PAPER, as_share
from byov.evaluate.scores import Row, Score

DATASET = "break_eggs"
MEAN_F1, MEAN_MAP = "classification/mean", "retrieval/map@10/mean"
_CORRELATIONS = ("progression/val", "kendalls_tau/all")
_MAIN = (
    *(f"classification/{setting}" for setting in SETTINGS),
    *(f"retrieval/map@10/{setting}" for setting in SETTINGS),
    *_CORRELATIONS,
)
_MEANS = (MEAN_F1, MEAN_MAP, *_CORRELATIONS)
_BYOV = "74.30 75.01 71.28 67.17 70.65 69.02 .8533 .9451"
_TABLES = {
    "components": (
        _MEANS,
        {
            "BYOV": "73.53 68.95 .8533 .9451",
            "- Token selection": "71.84 67.55 .8224 .9016",
            "- Causal mask": "72.29 68.10 .6420 .7091",
            "- MSM": "62.12 60.34 .4362 .4906",
            "- MCM": "57.43 55.83 .6724 .7086",
        },
    ),
    "stm-ratio": (
        _MAIN,
        {
            "STM 0.1": "41.45 21.13 20.03 56.05 46.06 46.85 .1858 .0157",
            "STM 0.2": "70.97 69.60 66.27 65.05 71.13 64.52 .6597 .7978",
            "STM 0.3": _BYOV,
            "STM 0.4": "72.39 72.59 69.19 68.20 73.79 67.44 .8299 .8963",
            "STM 0.5": "71.56 69.05 68.79 68.20 72.79 67.20 .8299 .8926",
            "STM 1.0": "71.34 72.58 65.07 67.44 69.32 67.87 .7894 .8957",
        },
    ),
    "mask-self": (
        _MAIN,
        {
            "MSM 0.1": "70.71 69.51 66.20 67.67 66.10 63.89 .5228 .6724",
            "MSM 0.2": "71.22 70.38 69.81 67.67 68.27 65.83 .8134 .9126",
            "MSM 0.3": "72.28 73.21 70.22 67.28 70.21 68.15 .8330 .9337",
            "MSM 0.4": _BYOV,
            "MSM 0.5": "72.87 73.71 70.87 67.28 71.21 70.15 .8398 .9410",
            "MSM 1.0": "66.65 69.97 68.24 65.01 67.48 66.86 .6916 .7818",
        },
    ),
    "mask-cross": (
        _MAIN,
        {
            "MCM 0.0": "67.23 66.65 67.10 60.38 58.44 56.97 .7019 .8040",
            "MCM 0.2": "71.40 69.06 70.19 64.98 62.09 61.27 .8269 .9112",
            "MCM 0.4": "73.23 73.81 71.17 68.84 65.94 68.22 .8133 .9247",
            "MCM 0.6": "73.33 74.54 71.32 67.21 70.65 69.02 .8480 .9440",
            "MCM 0.8": _BYOV,
            "MCM 1.0": "71.09 70.01 70.47 65.34 66.50 68.63 .7435 .8354",
        },
    ),
    "latent": (
        _MAIN,
        {
            "latent 64": "71.55 71.34 69.36 65.87 64.09 68.16 .8362 .8943",
            "latent 128": "70.84 72.74 69.71 67.07 66.70 68.45 .8407 .9240",
            "latent 256": _BYOV,
            "latent 512": "70.89 70.19 68.72 68.70 73.29 74.45 .8107 .9240",
        },
    ),
}


def published_ablation(table: str, dataset: str) -> list[Row]:
    """What the paper prints in one of these tables; nothing for other tables and datasets."""
    if dataset != DATASET or table not in _TABLES:
        return []
    names, rows = _TABLES[table]
    return [
        Row(title, "published", dict(zip(names, map(_score, names, text.split()), strict=True)), {"paper": PAPER})
        for title, text in rows.items()
    ]


def _score(name: str, printed: str) -> Score:
    return Score(as_share(name, float(printed)))
