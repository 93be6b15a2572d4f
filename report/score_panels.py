"""Scores along a setting: what a figure of a sweep shows. Apart from what draws it, which takes a second to import."""

from dataclasses import dataclass


@dataclass(frozen=True)
class ScoreCurve:
    """Scores at places along the setting; curves of one name have one color."""

    name: str
    places: tuple[float, ...]
    values: tuple[float, ...]
    deviations: tuple[float, ...]  # 0 where there is none
    published: bool = False


@dataclass(frozen=True)
class ScorePanel:
    heading: str
    curves: tuple[ScoreCurve, ...]
