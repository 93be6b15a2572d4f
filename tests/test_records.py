from typing import Literal

import pytest
from pydantic import Field, ValidationError

from byov.records import Record, problem


class Inner(Record):
    fps: float = Field(gt=0)


class Outer(Record):
    name: str
    kind: Literal["ego", "exo"] = "ego"
    fraction: float = Field(0.5, ge=0, le=1)
    inner: tuple[Inner, ...] = ()
    crop: tuple[float, float] = (0.5, 1.0)
    code: str = Field("a", pattern="^[a-z]$")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "no 'name'"),
        ({"name": 3}, "name is 3; it must be a valid string"),
        ({"name": "a", "kind": "top"}, "kind is 'top'; it must be 'ego' or 'exo'"),
        ({"name": "a", "fraction": 1.5}, "fraction is 1.5; it must be at most 1"),
        ({"name": "a", "fraction": True}, "fraction is True; it must be a valid number"),
        ({"name": "a", "fraction": float("nan")}, "fraction is nan; it must be a finite number"),
        ({"name": "a", "color": 1}, "'color' is unknown"),
        (
            {"name": "a", "inner": ({"fps": 25.0}, {"fps": 0.0})},
            "inner.1.fps is 0.0; it must be above 0",
        ),
        ({"name": "a", "inner": ({},)}, "no 'fps' in inner.0"),
        (
            {"name": "a", "crop": (0.5, 0.7, 1.0)},
            "crop is (0.5, 0.7, 1.0); it must have at most 2 items, not 3",
        ),
        ({"name": "a", "crop": (0.5,)}, "crop is (0.5,); it must have at least 2 items"),
        ({"name": "a", "crop": 0.5}, "crop is 0.5; it must be a valid tuple"),
        ({"name": "a", "code": "A"}, "code is 'A'; it must match pattern '^[a-z]$'"),
        ({"name": ["x" * 200]}, f"name is ['{'x' * 75}...; it must be a valid string"),
    ],
)
def test_problem_is_described_in_one_line(values, message):
    with pytest.raises(ValidationError) as caught:
        Outer.model_validate(values)
    assert problem(caught.value) == message


def test_records_cannot_be_changed():
    with pytest.raises(ValidationError, match="frozen"):
        Outer(name="a").name = "b"
