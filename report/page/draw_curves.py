"""Training curves, and what each means."""

from byov.report.content import Curves
from byov.report.page.charts import chart
from byov.report.page.html import Html, element, joined
from byov.report.paper.plots import draw_curves

MEANINGS = {
    "loss": "the weighted sum that is minimized",
    "self": "masked self-view modeling: hidden frames are rebuilt from the rest of their own video",
    "cross": "masked cross-view modeling: hidden frames are rebuilt with the help of a video of the other view",
    "cycle": "beyond the paper: the way to a video of the other view and back should end at the same frame",
    "retrieval": "map@10 across views on whole videos, the mean of both directions",
    "trimmed": "the same on sub-clips",
    "both": "the mean of retrieval and trimmed",
    "tau": "Kendall's tau over all pairs of videos",
}


def curves_html(curves: Curves) -> Html:
    figure = draw_curves(curves)
    if figure is None:
        return element("p", "Not shown: the run has recorded no finite values.", class_="unavailable")
    named = dict.fromkeys(curve.name for curve in (*curves.losses, *curves.validation))
    notes = [element("p", element("b", name), f": {MEANINGS[name]}") for name in named if name in MEANINGS]
    return joined(
        element("figure", chart(figure, f"{', '.join(named)} by epoch"), class_="wide", tabindex=0),
        element("p", _caption(curves), class_="caption"),
        element("div", *notes, class_="notes"),
    )


def _caption(curves: Curves) -> str:
    scale = ", on a logarithmic scale" if curves.wide_losses else ""
    start = f"Losses of the training, by epoch{scale}; they should fall and level off."
    if not curves.validation:
        return f"{start} There was no validation split: the last model was kept."
    if curves.kept_epoch is None:
        return f"{start} The validation scores did not choose the model."
    return (
        f"{start} The line marks the epoch whose model was kept. Look whether the validation scores still rise or have "
        "begun to fall there; with few validation videos they are noisy."
    )
