"""A rendered stand-in for a real dataset: ego and exo videos of somebody pouring a drink, most of them unpaired."""

from byov.data.demo.script import PHASES
from byov.data.demo.write import DEFAULT_VIDEOS, write_demo

__all__ = ["DEFAULT_VIDEOS", "PHASES", "write_demo"]
