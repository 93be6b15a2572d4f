"""Video-level action recognition with a linear probe, as on Charades-Ego."""

import numpy as np
from numpy.typing import NDArray

from byov.evaluate.frames import SETTINGS, Frames, Missing, missing_view

PENALTIES = np.logspace(-1, 5, 13)


def video_means(frames: Frames) -> NDArray[np.float64]:
    """Return (V, D) mean embeddings, one per video."""
    videos = np.split(frames.embeddings, frames.starts[1:])
    return np.stack([rows.mean(axis=0, dtype=np.float64) for rows in videos])


def action_map(train: Frames, test: Frames) -> dict[str, float | Missing]:
    """Compute the mean average precision of a linear probe on mean video embeddings.

    The probe is ridge regression from standardized embeddings to 0/1 targets. The penalty is chosen
    by leave-one-out cross-validation on the training videos. Classes without a positive test video
    are excluded from the mean.

    Args:
        train: Training videos with `actions`.
        test: Test videos with `actions`.

    Returns:
        Dict mapping each setting to its mAP.
    """
    scores: dict[str, float | Missing] = {}
    for setting in SETTINGS:
        train_view, test_view = SETTINGS[setting]
        missing = missing_view(train.is_ego, train_view, "training") or missing_view(
            test.is_ego, test_view, "test"
        )
        scores[setting] = missing or _probe_map(train.of_view(train_view), test.of_view(test_view))
    return scores


def _probe_map(train: Frames, test: Frames) -> float | Missing:
    from sklearn.linear_model import RidgeCV
    from sklearn.metrics import average_precision_score
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    if train.actions is None or test.actions is None:
        return Missing("no action labels for these videos")
    if len(train.lengths) < 2:
        return Missing("only one training video")
    classes = test.actions.any(axis=0)
    if not classes.any():
        return Missing("no test video has an action label")
    probe = make_pipeline(StandardScaler(), RidgeCV(PENALTIES))
    probe.fit(video_means(train), train.actions.astype(np.float64))
    predicted = probe.predict(video_means(test)).reshape(test.actions.shape)
    return float(
        average_precision_score(test.actions[:, classes], predicted[:, classes], average="macro")
    )
