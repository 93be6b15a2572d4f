"""Action recognition of whole videos by a linear probe, as for Charades-Ego.

The classifier is ridge regression to 0/1 for each class on standardized embeddings: linear, solved in closed form (the
same answer every time), all classes at once, also those without a training video; its penalty comes from the training
videos by leave-one-out over all classes. The test videos only decide which classes are scored. Average precision needs
no probabilities, only an order.
"""

import numpy as np
from numpy.typing import NDArray

from byov.evaluate.frames import SETTINGS, VIEWS, Frames, Missing, absent
from byov.evaluate.scores import Score
from byov.evaluate.task import Column, EvaluationOptions, EvaluationTask, TaskData, columns_by_setting

# scikit-learn is imported where it is needed: it takes a second.

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
) -> dict[str, float | Missing]:
    """Mean average precision by setting, over the classes that have a positive among the test videos of the setting.

    Embeddings (V, D), actions (V, C), is_ego (V,).
    """
    scores: dict[str, float | Missing] = {}
    for setting in SETTINGS:
        train_view, test_view = VIEWS[setting]
        lacking = absent(train_is_ego, train_view, "training") or absent(test_is_ego, test_view, "test")
        fitted = np.ones_like(train_is_ego) if train_view is None else train_is_ego == train_view
        scored = np.ones_like(test_is_ego) if test_view is None else test_is_ego == test_view
        scores[setting] = lacking or _map(
            train_embeddings[fitted], train_actions[fitted], test_embeddings[scored], test_actions[scored]
        )
    return scores


def _map(
    train_embeddings: NDArray[np.floating],
    train_actions: NDArray[np.bool_],
    test_embeddings: NDArray[np.floating],
    test_actions: NDArray[np.bool_],
) -> float | Missing:
    from sklearn.linear_model import RidgeCV
    from sklearn.metrics import average_precision_score
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    if len(train_embeddings) < 2:
        return Missing("only one training video")
    classes = test_actions.any(axis=0)
    if not classes.any():
        return Missing("no test video has an action")
    probe = make_pipeline(StandardScaler(), RidgeCV(PENALTIES))
    probe.fit(train_embeddings.astype(np.float64), train_actions.astype(np.float64))
    predicted = probe.predict(test_embeddings.astype(np.float64)).reshape(test_actions.shape)
    return float(average_precision_score(test_actions[:, classes], predicted[:, classes], average="macro"))


def _score(data: TaskData, _: EvaluationOptions) -> dict[str, Score]:
    train, test = data.training, data.test
    scores: dict[str, float | Missing]
    if data.recordings is not None:
        scores = dict.fromkeys(SETTINGS, Missing("actions are known of whole videos only"))
    elif data.train_actions is None or data.test_actions is None:
        scores = dict.fromkeys(SETTINGS, Missing("no actions of the videos are known"))
    else:
        scores = action_map(
            video_embeddings(train),
            data.train_actions,
            train.is_ego,
            video_embeddings(test),
            data.test_actions,
            test.is_ego,
        )
    return {f"actions/{setting}": Score.of(scores[setting]) for setting in SETTINGS}


def _columns(_: EvaluationOptions) -> tuple[Column, ...]:
    return columns_by_setting("actions", "Actions (mAP)", "mAP")


TASK = EvaluationTask(
    name="actions",
    prefix="actions",
    subject="Action recognition by linear probe",
    score=_score,
    columns=_columns,
    needs_actions=True,
    needs_training=True,
)
