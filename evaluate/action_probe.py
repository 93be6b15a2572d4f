"""Action recognition of whole videos by a linear probe, as for Charades-Ego.

The classifier is ridge regression to 0/1 for each class on standardised embeddings: linear, solved in closed form (the
same answer every time), all classes at once, also those without a training video; its penalty comes from the training
videos by leave-one-out. Average precision needs no probabilities, only an order.
"""

import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import RidgeCV
from sklearn.metrics import average_precision_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from byov.evaluate.frames import SETTINGS, VIEWS, Frames, Missing, Score, absent

PENALTIES = np.logspace(-1, 5, 13)


def video_embeddings(frames: Frames) -> NDArray[np.float64]:
    """(V, D) the mean of each video's frames."""
    return np.stack(
        [
            frames.embeddings[start : start + length].mean(axis=0, dtype=np.float64)
            for start, length in zip(frames.starts, frames.lengths, strict=True)
        ]
    )


def action_map(
    train_embeddings: NDArray[np.floating],
    train_actions: NDArray[np.bool_],
    train_is_ego: NDArray[np.bool_],
    test_embeddings: NDArray[np.floating],
    test_actions: NDArray[np.bool_],
    test_is_ego: NDArray[np.bool_],
) -> dict[str, Score]:
    """Mean average precision by setting, over the classes that have a positive among the test videos of the setting.

    Embeddings (V, D), actions (V, C), is_ego (V,).
    """
    scores: dict[str, Score] = {}
    for setting in SETTINGS:
        learned, scored = VIEWS[setting]
        lacking = absent(train_is_ego, learned, "training") or absent(test_is_ego, scored, "test")
        known = np.ones_like(train_is_ego) if learned is None else train_is_ego == learned
        asked = np.ones_like(test_is_ego) if scored is None else test_is_ego == scored
        scores[setting] = lacking or _map(
            train_embeddings[known], train_actions[known], test_embeddings[asked], test_actions[asked]
        )
    return scores


def _map(
    train_embeddings: NDArray[np.floating],
    train_actions: NDArray[np.bool_],
    test_embeddings: NDArray[np.floating],
    test_actions: NDArray[np.bool_],
) -> Score:
    if len(train_embeddings) < 2:
        return Missing("only one training video")
    classes = test_actions.any(axis=0)
    if not classes.any():
        return Missing("no test video has an action")
    probe = make_pipeline(StandardScaler(), RidgeCV(PENALTIES))
    probe.fit(train_embeddings.astype(np.float64), train_actions[:, classes].astype(np.float64))
    scores = probe.predict(test_embeddings.astype(np.float64)).reshape(len(test_embeddings), -1)
    return float(average_precision_score(test_actions[:, classes], scores, average="macro"))
