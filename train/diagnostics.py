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


class Diagnostics:
    """Function that returns `Method.diagnose` on a fixed batch of training clips; empty for most
    methods.
    """

    def __init__(self, batches: BatchSource, device: torch.device) -> None:
        self._batches = batches
        self._device = device

    def __call__(self, model: Method) -> dict[str, float]:
        if type(model).diagnose is Method.diagnose:
            return {}
        clips = tuple(view.to(self._device) for view in self._batches.fixed_batch(ITEMS))
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
    """Say so if no validated model scores higher on the val split than the untrained one.

    `records` contains the lines of metrics.jsonl, `select` the metric that selects the saved model.
    """
    scores = {int(record["epoch"]): record[select] for record in records if select in record}
    trained = {epoch: score for epoch, score in scores.items() if epoch}
    if 0 not in scores or not trained or max(trained.values()) > scores[0]:
        return []
    best = max(trained, key=lambda epoch: trained[epoch])
    return [
        f"The untrained model scores higher on the val split ({select} {scores[0]:.4f}) than the "
        "saved one "
        f"({trained[best]:.4f}, epoch {best}), so do not report this run as a trained model. "
        f"{REMEDY}"
    ]
