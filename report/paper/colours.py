"""Colours of the figures in print: those of the page's light style (page.css), after Okabe and Ito's palette."""

PHASES = ("#0072b2", "#dd8a00", "#00966e", "#b9518f", "#4a9fd8", "#c04a00", "#8f8200", "#70757c")
UNLABELLED = "#c9ccd1"  # a frame without a phase
QUERY = "#1769c2"  # around a frame that asks
RETRIEVED = "#c8322b"  # around a frame that was found


def phase_colour(index: int) -> str:
    """Of the phase of that index; from the ninth phase on they repeat."""
    return PHASES[index % len(PHASES)]
