"""The run file's `infra`: what happens when rock, or the machine, failed, and not the policy."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from rock.config import Strict
from rock.rollout.inputs.taskfiles import Seconds


class InfraConfig(Strict):
    """What happens when rock, not the policy, failed."""

    max_attempts: Annotated[int, Field(ge=1, le=100)] = Field(
        default=3, description="Attempts per episode, the first one included."
    )
    backoff_seconds: Annotated[float, Field(ge=0, le=600)] = Field(
        default=1.0, description="Wait before the second attempt; doubles, with jitter, up to 60 s."
    )
    retry_from: Literal["start", "setup"] = Field(
        default="start",
        description="Where a further attempt begins: at the start, or with the files as they were after "
        "the task's setup, which then does not run again.",
    )
    no_room_seconds: Seconds = Field(
        default=600.0,
        description="How long a machine may have no room for a single sandbox before the run gives up.",
    )
    max_failed_fraction: Annotated[float, Field(ge=0, le=1)] = Field(
        default=0.2,
        description="Share of episodes that may end so before the run counts as failed.",
    )
