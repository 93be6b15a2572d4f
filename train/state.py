"""How far a run has come, as its checkpoints carry it."""

from typing import Annotated, Any

from pydantic import Field, ValidationError

from byov.records import Record, problem

Number = Annotated[int, Field(ge=-(2**63), lt=2**63)] | float


class TrainingState(Record, frozen=False):
    """All that a run's future depends on, beside model and optimizer."""

    method: str = "byov"  # up to 0.2.0 it was not said
    step: int = 0
    loss_sums: dict[str, float] = Field(default_factory=dict)  # over the steps of the running epoch
    records: list[dict[str, Number]] = Field(default_factory=list)
    best: float | None = None
    best_metrics: dict[str, float] = Field(default_factory=dict)


def read_state(raw: Any, method: str, total_steps: int) -> TrainingState:
    """The state that a checkpoint holds; raises ValueError for what it cannot be."""
    try:
        state = TrainingState.model_validate(raw)
    except ValidationError as error:
        raise ValueError(problem(error)) from None
    if state.model_fields_set | {"method"} != set(TrainingState.model_fields):
        raise ValueError(f"it holds {', '.join(sorted(state.model_fields_set)) or 'nothing'}")
    if state.method != method:
        raise ValueError(f"it is of the method {state.method}, and the run of {method}")
    if not 0 < state.step <= total_steps:
        raise ValueError(f"it is of step {state.step}, and the run has {total_steps}")
    if not state.records or not all({"epoch", "step"} <= record.keys() for record in state.records):
        raise ValueError("its records are not of epochs")
    return state
