"""Validation metrics, computed with the functions of the evaluator, and diagnostics of masked
modeling: does the model beat trivial predictors, and does it use the other view?
"""

import logging
from collections.abc import Mapping, Sequence
from statistics import fmean

import numpy as np
import torch

from byov.cache.layout import trimmed_clips
from byov.errors import Diverged
from byov.evaluate.frames import Frames, Missing
from byov.evaluate.kendalls_tau import tau_for_selection
from byov.evaluate.retrieval import mean_average_precision
from byov.records import UNLABELED
from byov.train.feature_store import CachedVideo, FeatureStore, TrainingData
from byov.train.methods.base import Method
from byov.train.sampling import BatchSource

LOGGER = logging.getLogger(__name__)
CROSS_VIEW = ("ego2exo", "exo2ego")
K = 10  # map@10, as in the paper's main table
OBJECTIVES = {"self": "Self-view modeling", "cross": "Cross-view modeling"}
REMEDY = "Train longer, pass --standardize dataset, or try another --lr."


def selection_metric(data: TrainingData, select: str) -> str:
    """Return the model-selection metric, falling back to one that the val split supports."""
    val = data.split("val")
    labeled_views = {video.view for video in val if video.labels is not None}
    if select == "last" or (val and select == "tau") or len(labeled_views) == 2:
        return select
    possible = "tau" if val else "last"
    LOGGER.info(
        f"--select {select} needs val videos of both views with phase labels; using --select "
        f"{possible}"
    )
    return possible


def validate(
    model: Method, dataset: str, videos: Sequence[CachedVideo], store: FeatureStore
) -> dict[str, float]:
    """Embed the val videos, whole and as sub-clips, and score the embeddings.

    Returns a dict mapping metric names to values; metrics that the val split does not support are
    omitted.
    """
    model.eval()
    whole = _embed(model, store, [(video, 0, video.frames) for video in videos])
    trimmed = _embed(
        model,
        store,
        [
            (video, *clip)
            for video in videos
            for clip in trimmed_clips(dataset, video.view, video.id, video.frames)
        ],
    )
    model.train()
    standard = cross_view_map(whole)
    means = {
        name: fmean(scores.values())
        for name, scores in (("retrieval", standard), ("trimmed", cross_view_map(trimmed)))
        if scores
    }
    metrics = {f"map@{K}_{direction}": score for direction, score in standard.items()} | means
    tau = tau_for_selection(whole, stride=5)  # every 5th frame, as in AE2's evaluator
    if not isinstance(tau, Missing):
        metrics["tau"] = tau
    return metrics | ({"both": fmean(means.values())} if means else {})


def _embed(
    model: Method, store: FeatureStore, clips: Sequence[tuple[CachedVideo, int, int]]
) -> Frames:
    """Embed clips, each given as a video with a half-open interval of frames."""
    embeddings = []
    labels = []
    for video, start, stop in clips:
        embedding = model.embed(store.read(video)[start:stop]).cpu()
        if not embedding.isfinite().all():
            raise Diverged(
                f"The embeddings of {video.id} are not finite. Start another run with a lower --lr."
            )
        embeddings.append(embedding.numpy())
        labels.append((video.labels or (UNLABELED,) * video.frames)[start:stop])
    return Frames(
        np.concatenate(embeddings),
        np.concatenate(labels),
        np.array([len(embedding) for embedding in embeddings]),
        np.array([video.view == "ego" for video, _, _ in clips]),
    )


def cross_view_map(frames: Frames) -> dict[str, float]:
    """Return map@10 for ego-to-exo and exo-to-ego retrieval; empty if labels or one of the views
    are missing.
    """
    if frames.labels is None or frames.labels.max() == UNLABELED:
        return {}
    scores = mean_average_precision(frames.labeled_frames, (K,), CROSS_VIEW)
    means = {direction: scores[direction][K] for direction in CROSS_VIEW}
    return {
        direction: score for direction, score in means.items() if not isinstance(score, Missing)
    }


def diagnose(model: Method, batches: BatchSource) -> dict[str, float]:
    """Return `Method.diagnose` on a fixed batch of training clips; empty for most methods."""
    if type(model).diagnose is Method.diagnose:
        return {}
    device = next(model.parameters()).device
    clips = tuple(view.to(device) for view in batches.fixed_batch(items=16))
    was_training = model.training
    model.eval()
    values = model.diagnose(clips, torch.Generator().manual_seed(0))
    model.train(was_training)
    return values


def explain_diagnostics(values: Mapping[str, float]) -> list[str]:
    """Describe the result of `Method.diagnose` in sentences, and what to do if the model has not
    learned anything.
    """
    objectives = [name for name in OBJECTIVES if name in values]
    if not objectives:
        return []
    losses = ", ".join(f"{name}-view {values[name]:.4g}" for name in objectives)
    trivial = {name: values[f"trivial/{name}"] for name in ("constant", "view", "video")}
    sentences = [
        f"Reconstruction loss on training clips: {losses}. Predicting the mean frame of all clips "
        f"gives {trivial['constant']:.4g}, of the view {trivial['view']:.4g}, of each clip "
        f"{trivial['video']:.4g}."
    ]
    sentences += [
        f"{OBJECTIVES[name]} has learned no more than the mean frame of each clip "
        f"({values[name]:.4g}, not below {trivial['video']:.4g}). {REMEDY}"
        for name in objectives
        if values[name] >= trivial["video"]
    ]
    if "cross" in values:
        # Averaging also removes the order, but it is unlike any context seen in training, and
        # another video of the view may serve as well as the drawn one. Reversing a context changes
        # nothing but the order. An increase by 1% shows that the order is used.
        is_used = values["cross/reversed"] > 1.01 * values["cross"]
        sentences.append(
            f"{OBJECTIVES['cross']} {'uses' if is_used else 'does not use'} the other view: its "
            f"loss is {values['cross']:.4g} with the other view, {values['cross/reversed']:.4g} "
            f"with it reversed in time, {values['cross/mean']:.4g} with its mean, and "
            f"{values['cross/other']:.4g} with another video's."
        )
    return sentences


def explain_selection(records: Sequence[Mapping[str, float]], select: str) -> list[str]:
    """Say so if the saved model does not score higher on the val split than the untrained one.

    `records` contains the lines of metrics.jsonl, `select` the metric that selects the saved model.
    If the last model is saved, cross-view retrieval decides or, without labels, Kendall's tau.
    """
    metrics = ("retrieval", "tau") if select == "last" else (select,)
    metric = next((name for name in metrics if name in records[0]), None)
    if metric is None:  # the untrained model was not validated
        return []
    scores = {int(record["epoch"]): record[metric] for record in records if metric in record}
    trained = {epoch: score for epoch, score in scores.items() if epoch}
    if not trained:
        return []
    saved = max(trained) if select == "last" else max(trained, key=lambda epoch: trained[epoch])
    if trained[saved] > scores[0]:
        return []
    return [
        f"The untrained model scores higher on the val split ({metric} {scores[0]:.4f}) than the "
        f"saved one ({trained[saved]:.4f}, epoch {saved}), so do not report this run as a trained "
        f"model. {REMEDY}"
    ]
