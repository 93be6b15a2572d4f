"""Diagnostics of masked modeling: does the model beat trivial predictors, and does it use the other
view?
"""

from collections.abc import Mapping, Sequence

import torch

from byov.train.methods.base import Method
from byov.train.sampling import BatchSource

ITEMS = 16  # size of the batch
# Smallest relative increase of the loss with a reversed context that shows that it is used.
LEAST_CHANGE = 0.01
OBJECTIVES = {"self": "Self-view modeling", "cross": "Cross-view modeling"}
REMEDY = "Train longer, pass --standardize dataset, or try another --lr."


def diagnose(model: Method, batches: BatchSource) -> dict[str, float]:
    """Return `Method.diagnose` on a fixed batch of training clips; empty for most methods."""
    if type(model).diagnose is Method.diagnose:
        return {}
    device = next(model.parameters()).device
    clips = tuple(view.to(device) for view in batches.fixed_batch(ITEMS))
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
        "gives "
        f"{trivial['constant']:.4g}, of the view {trivial['view']:.4g}, of each clip "
        f"{trivial['video']:.4g}."
    ]
    sentences += [
        f"{OBJECTIVES[name]} has learned no more than the mean frame of each clip "
        f"({values[name]:.4g}, not below "
        f"{trivial['video']:.4g}). {REMEDY}"
        for name in objectives
        if values[name] >= trivial["video"]
    ]
    if "cross" in values:
        sentences.append(_describe_context(values))
    return sentences


def _describe_context(values: Mapping[str, float]) -> str:
    # Averaging also removes the order, but it is unlike any context seen in training, and another
    # video of the view may serve as well as the drawn one. Reversing a context changes nothing but
    # the order.
    is_used = values["cross/reversed"] > (1 + LEAST_CHANGE) * values["cross"]
    return (
        f"{OBJECTIVES['cross']} {'uses' if is_used else 'does not use'} the other view: its loss "
        "is "
        f"{values['cross']:.4g} with the other view, {values['cross/reversed']:.4g} with it "
        "reversed in time, "
        f"{values['cross/mean']:.4g} with its mean, and {values['cross/other']:.4g} with another "
        "video's."
    )


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
        "saved one "
        f"({trained[saved]:.4f}, epoch {saved}), so do not report this run as a trained model. "
        f"{REMEDY}"
    ]
