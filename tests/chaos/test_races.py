"""Start two commands at the same time in the same folders.

Each must finish or report an error, and a later command must find intact files and equal scores.
"""

import os

import pytest
from tests.chaos.conftest import EVALUATE, EXTRACT, TINY_OPTIONS

REPEATS = 3 if "CHAOS" in os.environ else 1
TRAIN = ("train", "--dataset", "mine", "--run", "new", *TINY_OPTIONS)
RESUME = ("train", "--run", "first", "--resume", "--epochs", 4)
EMBED = ("train", "--run", "first", "--embed-only")
AGAIN = (*EXTRACT, "--overwrite")
PAIRS = [
    (AGAIN, AGAIN),
    (AGAIN, TRAIN),
    (AGAIN, EVALUATE),
    (AGAIN, EMBED),
    (AGAIN, ("cache", "verify")),
    (TRAIN, TRAIN),
    (TRAIN, ("runs", "delete", "new", "--yes")),
    (RESUME, RESUME),
    (RESUME, EMBED),
    (RESUME, EVALUATE),
    (RESUME, ("runs", "delete", "first", "--yes")),
    (RESUME, ("runs", "prune", "first", "--yes")),
    (EMBED, EVALUATE),
    (EVALUATE, EVALUATE),
]


@pytest.mark.slow
@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: " & ".join(words[0] for words in pair))
def test_two_commands_at_the_same_time(start_command, project, restore, byov, record, pair):
    folders = {"BYOV_FEATURES": str(project / "features"), "BYOV_RUNS": str(project / "runs")}
    failed = []
    for _ in range(REPEATS):
        started = [
            start_command((f"byov-{name}", *words), environment=folders) for name, *words in pair
        ]
        ran = [command.finish() for command in started]
        unexpected = [each for each in ran if each.code not in (0, 1, 2)]
        # Delete the run that one command may have left without another.
        byov("runs", "delete", "new", "--yes")
        verified = byov("cache", "verify")
        if (project / "runs/first").exists() and byov(*EVALUATE).code:
            byov(*EMBED)
            verified = byov("cache", "verify") if byov(*EVALUATE).code == 0 else verified
        failed += [(unexpected, verified)] if unexpected or verified.code else []
        restore()
    record("two commands at the same time", REPEATS, failed)
    assert not failed
