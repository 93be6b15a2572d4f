"""What goes wrong: the worst videos beside what they are matched to, and whether one frame is alike to all others."""

from byov.report.content import Content, Failures, FrameRef, WorstVideo
from byov.report.frame_text import phase_of, seconds_text
from byov.report.page.charts import chart
from byov.report.page.html import Html, element, joined
from byov.report.page.stills import verdict
from byov.report.page.tiles import frame_address, linked_tile, picture_row
from byov.report.paper.pictures import draw_softmax


def failures_html(content: Content, failures: Failures) -> Html:
    worst = (
        "The videos with the lowest Kendall's tau, the mean over their pairs with all other videos; the worst first. "
        "Below each frame its nearest in the video where their order is kept least: a good match would run through "
        "that video as the upper row runs through its own. A click moves the player to the pair."
    )
    label = "Softmax similarity of the reference frame to all frames of its video"
    return joined(
        *(_worst(content, failures, video) for video in failures.worst),
        element("p", worst, class_="caption"),
        element("h3", "Is one frame alike to all others?"),
        element("figure", chart(draw_softmax(content, failures), label), class_="wide", tabindex=0),
        element("p", _caption(content, failures), class_="caption"),
    )


def _worst(content: Content, failures: Failures, worst: WorstVideo) -> Html:
    video, partner = content.videos[worst.video], content.videos[worst.partner]
    pairs = [
        _pair(content, FrameRef(worst.video, frame), FrameRef(worst.partner, matched), failures.reference)
        for frame, matched in zip(worst.frames, worst.matched, strict=True)
    ]
    return joined(
        element("h3", f"{video.name}: tau {worst.tau:.4f}"),
        element("p", f"Above: {video.name}. Below: the nearest frames of {partner.name}, tau {worst.partner_tau:.4f}."),
        picture_row(pairs, f"Frames of {video.name} above the nearest of {partner.name}"),
    )


def _pair(content: Content, shown: FrameRef, matched: FrameRef, reference: FrameRef) -> Html:
    """A frame above its nearest; the reference frame is marked."""
    video, partner = content.videos[shown.video], content.videos[matched.video]
    address = frame_address(content.videos, shown.video, shown.frame, matched.video)
    same = verdict(phase_of(video, shown.frame), phase_of(partner, matched.frame))
    marked, time = shown == reference, seconds_text(video, shown.frame)
    return element(
        "div",
        element(
            "figure",
            linked_tile(content.videos, shown.video, shown.frame, address),
            element("figcaption", element("span", element("b", "Reference: ") if marked else None, time)),
            class_="still reference" if marked else "still",
        ),
        element(
            "figure",
            linked_tile(content.videos, matched.video, matched.frame, address),
            element("figcaption", element("span", seconds_text(partner, matched.frame)), same),
            class_="still",
        ),
        class_="above",
    )


def _caption(content: Content, failures: Failures) -> str:
    video = content.videos[failures.reference.video]
    return (
        f"How alike frame {failures.reference.frame} of {video.name}, marked above, is to every frame of its "
        "video: a softmax over the products of their embeddings. How to read it: a peak around the reference means "
        "that the embedding tells moments apart; a flat line along 1/T means that it attends to everything alike, "
        "which the paper finds in its failures."
    )
