"""Shares, which are written as shares everywhere: 0.3, not 30."""

from byov.cli.app import UsageMistake

LEAST_PERCENT = 5  # below, a number above 1 is as likely a slip of another kind


def refuse_percent(option: str, share: float, *, prefix: str = "") -> None:
    """Raise unless the share is above 0 and at most 1. prefix: what the option's value has before it."""
    if 0 < share <= 1:
        return
    advice = f"did you mean {prefix}{share / 100:g}?" if LEAST_PERCENT <= share <= 100 else f"like {prefix}0.3"
    raise UsageMistake(f"{option} {prefix}{share:g}: a ratio is a share of the tokens, above 0 and at most 1; {advice}")
