"""The rows that the paper prints, to stand below what is measured here. Numbers are facts; its slips are marked.

Park et al., "Bootstrap Your Own Views", CVPR 2025: Table 1, the appendix's tables of backbones, few-shot classification
and cross-view retrieval, and the table of Charades-Ego. Methods other than BYOV are quoted there from the AE2 paper.
"""

from byov.evaluate.frames import SETTINGS
from byov.evaluate.progression import TIME_COLUMN_DATASETS
from byov.evaluate.table import Row, Score

PAPER = "Park et al., CVPR 2025"
# F1 and map@10 (regular, ego2exo, exo2ego); progression, Kendall's tau; F1 on 10% and 50%; map@5; map@15.
# F1 on 100% is the regular F1. In percent, but for progression and tau. A dash: not printed, or a slip (see below).
_GROUPS = (
    tuple(f"classification/{setting}" for setting in SETTINGS),
    tuple(f"retrieval/map@10/{setting}" for setting in SETTINGS),
    ("progression/val", "kendalls_tau/all"),
    ("few_shot/10%/regular", "few_shot/50%/regular"),
    tuple(f"retrieval/map@5/{setting}" for setting in SETTINGS),
    tuple(f"retrieval/map@15/{setting}" for setting in SETTINGS),
)
_PHASES = {
    "break_eggs": """
Random features  ;19.18 18.93 19.45;47.13 41.74 37.19; -.0572  .0018;19.18 19.18;48.26 42.51 38.08;45.75 40.51 37.10
ImageNet features;50.24 21.48 32.25;50.49 33.09 37.80; -.1446  .0188;46.15 48.80;49.98 33.32 38.99;50.08 32.78 36.71
CLIP ViT-B/16    ;51.66 27.97 26.24;44.46 35.85 35.70;  .0402  .0168;46.46 49.18;44.89 35.80 34.91;43.44 34.92 35.96
CLIP ViT-L/14    ;54.24 41.56 38.31;38.14 38.96 34.99;  .1672  .0483;47.36 51.80;38.47 39.30 35.23;37.72 38.14 33.98
ActorObserverNet ;36.14 36.40 31.00;50.47 42.70 41.29; -.0517  .0024;31.40 35.63;50.92 43.57 42.00;49.72 41.56 40.48
TCN (single-view);56.90 18.60 35.61;53.42 32.63 34.91;  .0051  .1206;52.30 54.90;52.82 31.12 34.67;53.60 33.73 35.31
TCN (multi-view) ;59.91 48.65 56.91;58.83 47.04 52.68;  .2669  .2886;56.88 59.25;59.11 46.38 52.50;58.44 46.96 52.43
TCN (unpaired)   ;56.79     -     -;57.78 54.64 57.87;      -      -;56.13 56.65;58.18 55.34 58.79;57.21 53.75 57.07
CARL             ;43.43 28.35 29.22;46.04 37.38 39.94; -.0837 -.0091;39.18 41.92;47.14 37.89 40.37;44.99 36.57 39.38
TCC              ;59.84 54.17 52.28;58.75 61.11 62.03;  .2880  .5191;57.54 59.18;59.33 62.11 62.39;57.99 60.33 61.25
GTA              ;56.86 52.33 58.35;61.55 56.25 53.93;  .3462  .4626;56.89 56.77;62.79 57.11 54.47;60.38 55.10 53.22
AE2              ;66.23 57.41 71.72;65.85 64.59 62.15;  .5109  .6316;63.95 64.86;66.86 65.70 62.48;64.73 63.76 61.80
BYOV (ResNet-50) ;72.57 67.91 70.74;68.42 63.27 63.85;  .7751  .7463;    -     -;    -     -     -;    -     -     -
BYOV (ViT-B/16)  ;74.30 75.01 71.28;67.17 70.65 69.02;  .8533  .9451;71.84 73.92;67.28 72.76 71.79;66.40 70.27 68.94
BYOV (ViT-L/14)  ;72.41 70.11 72.92;75.59 67.73 67.55;  .8272  .8940;    -     -;    -     -     -;    -     -     -
""",
    "pour_milk": """
Random features  ;36.84 33.96 41.97;52.48 50.56 51.98; -.0477  .0050;    -     -;    - 51.46 52.78;    - 48.93 50.82
ImageNet features;41.59 39.93 45.52;54.09 27.31 43.21;-2.6681  .0115;    -     -;    - 25.72 41.50;    - 28.57 43.06
CLIP ViT-B/16    ;43.24 49.21 30.94;52.16 46.39 40.34;-4.0754  .0046;39.44 38.90;53.29 46.37 41.28;51.55 46.86 39.86
CLIP ViT-L/14    ;46.65 46.79 17.77;46.20 44.32 53.75; -.4735  .0503;42.68 39.91;46.20 43.71 55.55;53.75 44.20 53.10
TCN (single-view);47.39 43.44 42.28;57.00 46.48 47.20; -.3238 -.0197;43.60 46.83;56.98 47.00 47.94;56.46 45.42 46.59
CARL             ;48.79 52.41 43.01;55.01 52.99 51.51; -.1639  .0443;48.73 48.78;55.29 54.35 51.14;54.23 51.99 51.00
TCC              ;77.91 72.29 81.07;80.97 75.30 80.27;  .6665  .7614;78.69 77.97;81.22 75.54 80.44;80.46 75.02 80.18
GTA              ;81.11 74.94 81.51;80.12 72.78 75.40;  .7086  .8022;79.82 80.96;80.65 72.55 75.16;79.68 72.96 75.48
AE2              ;85.17 84.73 82.77;84.90 78.48 83.41;  .7634  .9062;85.17 85.12;85.25 78.21 83.88;84.55 78.78 83.05
BYOV (ResNet-50) ;86.84 83.83 87.00;87.17 79.27 79.87;  .8082  .9152;    -     -;    -     -     -;    -     -     -
BYOV (ViT-B/16)  ;86.46 85.09 86.61;89.42 87.73 85.06;  .8992  .9466;86.12 86.44;90.99 85.15 85.48;88.98 87.80 85.00
BYOV (ViT-L/14)  ;86.76 85.54 86.58;87.35 82.51 82.61;  .8407  .9448;    -     -;    -     -     -;    -     -     -
""",
    "pour_liquid": """
Random features  ;45.26 47.45 44.33;49.83 55.44 55.75; -.1303 -.0072;    -     -;    - 55.78 56.31;    - 54.77 54.56
ImageNet features;53.13 22.44 44.61;51.49 52.17 30.44;-1.6329 -.0053;    -     -;    - 51.44 30.18;    - 52.38 30.40
CLIP ViT-B/16    ;60.60 36.97 48.43;43.63 47.58 37.02; -.3139 -.0048;57.21 35.46;42.34 42.08 35.14;44.03 49.78 36.71
CLIP ViT-L/14    ;54.38  6.83 51.69;50.01 31.82 54.61; -.2066 -.0052;51.72 28.30;48.56 32.33 54.01;50.52 31.59 54.64
TCN (single-view);54.02 32.77 51.24;48.83 55.28 31.15; -.5283  .0103;54.62 55.08;48.50 53.60 29.16;49.03 55.46 31.95
CARL             ;56.98 47.46 52.68;55.29 59.37 36.80; -.1176  .0085;51.68 55.67;55.03 59.59 34.73;54.93 59.19 38.10
TCC              ;52.53 43.85 42.86;62.33 56.08 57.89;  .1163  .1103;52.37 51.70;62.93 55.98 58.11;61.44 56.13 57.15
GTA              ;56.92 42.97 59.96;62.79 58.52 53.32; -.2370  .1005;55.91 56.87;62.83 57.03 51.71;62.12 59.00 53.54
AE2              ;66.56 57.15 65.60;65.54 65.79 57.35;  .1380  .0934;65.88 66.53;66.55 66.23 57.42;64.66 65.00 57.03
BYOV (ResNet-50) ;78.63 73.67 76.53;71.47 66.74 71.17;  .3982  .2883;    -     -;    -     -     -;    -     -     -
BYOV (ViT-B/16)  ;79.48 71.83 76.23;71.06 75.03 70.03;  .4483  .3052;79.10 79.28;73.89 79.06 76.21;67.83 72.73 69.44
BYOV (ViT-L/14)  ;79.48 71.49 76.61;70.36 76.48 73.38;  .4534  .3084;    -     -;    -     -     -;    -     -     -
""",
    "tennis_forehand": """
Random features  ;30.31 33.42 28.10;66.47 58.98 59.87; -.0425  .0177;    -     -;    - 61.24 63.42;    - 56.94 57.57
ImageNet features;69.15 42.03 58.61;76.96 66.90 60.31; -.4143  .0734;    -     -;    - 69.34 61.61;    - 64.95 58.55
CLIP ViT-B/16    ;67.81 43.41 44.22;74.54 59.57 52.02; -.4996  .0618;70.37 48.01;76.45 60.63 52.25;73.15 58.46 52.12
CLIP ViT-L/14    ;64.40 47.53 47.50;74.26 67.19 58.73; -.4126  .0302;68.44 42.95;75.61 69.02 61.83;73.14 65.44 57.05
TCN (single-view);68.87 48.86 36.48;73.76 55.08 56.65; -.0602  .0737;65.78 69.19;74.05 54.12 56.70;73.10 55.05 55.84
CARL             ;59.69 35.19 47.83;69.43 54.83 63.19; -.1310  .0542;58.89 59.38;72.94 52.18 65.94;67.14 55.39 60.83
TCC              ;78.41 53.29 32.87;80.24 55.84 63.19;  .2155  .1040;67.71 77.07;82.78 57.87 48.62;78.59 53.81 46.11
GTA              ;83.63 82.91 81.80;85.20 78.00 79.14;  .4691  .4901;80.31 83.04;86.59 78.93 79.95;84.33 77.01 78.52
AE2              ;85.87 84.71 85.68;86.83 81.46 82.07;  .5060  .6171;85.24 85.72;87.94 82.58 82.82;86.05 80.75 81.69
BYOV (ResNet-50) ;89.34 94.83 84.96;89.83 86.71 82.68;  .7588  .7599;    -     -;    -     -     -;    -     -     -
BYOV (ViT-B/16)  ;89.12 94.47 85.73;90.61 88.34 88.94;  .7881  .7852;88.78 89.01;90.89 88.55 90.64;90.87 87.98 87.26
BYOV (ViT-L/14)  ;89.56 94.48 86.51;91.21 87.04 88.33;  .7653  .8101;    -     -;    -     -     -;    -     -     -
""",
}
_ACTIONS = {  # regular, ego2exo, exo2ego
    "charades_ego": {
        "Random features": (7.2, 7.1, 7.2),
        "CLIP ViT-B/16": (13.7, 8.3, 10.7),
        "BYOV (ViT-B/16)": (31.8, 26.5, 27.3),
    }
}
_FULL_NAMES = {
    "CLIP ViT-B/16": "CLIP features (ViT-B/16)",
    "CLIP ViT-L/14": "CLIP features (ViT-L/14)",
    "TCN (unpaired)": "TCN (unpaired multi-view)",
}
_NOT_FEW_SHOT = (
    "the paper's few-shot table repeats six figures of its Table 1 in this row, which are no few-shot figures: left out"
)
# (dataset, method, score) → what the paper's own tables show to be wrong.
SLIPS = {
    ("break_eggs", "Random features", "retrieval/map@10/exo2ego"): "37.19 in Table 1, 38.19 in the cross-view table",
    ("break_eggs", "CLIP ViT-L/14", "retrieval/map@10/ego2exo"): (
        "38.96 in the table of backbones, 38.94 in the cross-view table"
    ),
    ("tennis_forehand", "TCC", "retrieval/map@10/exo2ego"): (
        "63.19 in Table 1, which is CARL's figure; 47.27 in the cross-view table"
    ),
    ("pour_milk", "CLIP ViT-L/14", "retrieval/map@15/regular"): (
        "above map@5 and map@10, and the same as exo2ego map@10: perhaps a slip of the paper"
    ),
    **{
        (dataset, method, f"few_shot/{share}/regular"): _NOT_FEW_SHOT
        for dataset in ("pour_milk", "pour_liquid", "tennis_forehand")
        for method in ("Random features", "ImageNet features")
        for share in ("10%", "50%", "100%")
    },
    **{
        (dataset, method, f"retrieval/map@{k}/regular"): _NOT_FEW_SHOT
        for dataset in ("pour_milk", "pour_liquid", "tennis_forehand")
        for method in ("Random features", "ImageNet features")
        for k in (5, 15)
    },
}


def published_rows(dataset: str) -> list[Row]:
    """What the paper prints for a dataset; nothing for datasets that it does not have."""
    if dataset in _ACTIONS:
        return [
            _row(dataset, method, dict(zip((f"actions/{setting}" for setting in SETTINGS), printed, strict=True)))
            for method, printed in _ACTIONS[dataset].items()
        ]
    return [_phase_row(dataset, line) for line in _PHASES.get(dataset, "").strip().splitlines()]


def _phase_row(dataset: str, line: str) -> Row:
    method, *groups = (part.strip() for part in line.split(";"))
    printed = {
        name: float(text)
        for names, group in zip(_GROUPS, groups, strict=True)
        for name, text in zip(names, group.split(), strict=True)
        if text != "-"
    }
    if "few_shot/10%/regular" in printed:
        printed["few_shot/100%/regular"] = printed["classification/regular"]
    return _row(dataset, method, printed)


def _row(dataset: str, method: str, printed: dict[str, float]) -> Row:
    slips = {score: slip for (*row, score), slip in SLIPS.items() if row == [dataset, method]}
    scores = {name: Score(as_share(name, value), remark=slips.get(name)) for name, value in printed.items()} | {
        name: Score(None, missing=slip) for name, slip in slips.items() if name not in printed
    }
    return Row(
        _FULL_NAMES.get(method, method),
        "published",
        scores,
        {"paper": PAPER, "dataset": dataset},
        time_column=dataset in TIME_COLUMN_DATASETS,
    )


def as_share(name: str, printed: float) -> float:
    """The paper prints percent, but for progression and tau."""
    return printed if name.startswith(("progression", "kendalls_tau")) else round(printed / 100, 6)


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
