"""The run file's `pool`: sandboxes made ahead of the episodes that will claim them.

What waits in a pool was never used, so what an episode gets is what it would have got made for it. A used
sandbox is not put back: see `rock.sandbox.pool`.
"""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from rock.config import Strict
from rock.rollout.inputs.taskfiles import Seconds
from rock.sandbox.pool import PoolPolicy


class PoolConfig(Strict):
    """Sandboxes made ahead, as `rock.sandbox.pool.PoolPolicy` has it."""

    ready_min: Annotated[int, Field(ge=0, le=10_000)] = Field(
        default=2, description="So many wait for each kind of sandbox in use."
    )
    ready_max: Annotated[int, Field(ge=1, le=10_000)] = Field(
        default=8, description="While more are wanted than wait, so many are kept."
    )
    making_at_once: Annotated[int, Field(ge=1, le=1000)] = Field(
        default=2, description="Sandboxes made ahead at the same time."
    )
    refill_seconds: Annotated[float, Field(ge=0)] = Field(
        default=0.0, description="At least so long between two beginnings."
    )
    age_seconds: Seconds = Field(default=1800.0, description="After so long one is replaced.")
    idle_seconds: Seconds = Field(
        default=300.0, description="A kind that is not wanted for so long is given up."
    )

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.ready_min > self.ready_max:
            raise ValueError("ready_min: expected at most ready_max")
        return self

    def policy(self) -> PoolPolicy:
        return PoolPolicy(**self.model_dump())
