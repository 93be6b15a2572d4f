"""What commands say of runs that are not trained to their end."""

from collections.abc import Iterable

from byov.cache.runs import RunRecord, unfinished
from byov.cli.command import note


def say_unfinished(runs: Iterable[RunRecord]) -> None:
    for run in runs:
        said = unfinished(run)
        if said is not None:
            note(said)
