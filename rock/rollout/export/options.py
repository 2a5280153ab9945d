"""What to export and how: the choices, checked, in one place.

An export directory keeps its options; going on with it needs the same ones.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, model_validator

from rock.config import Strict, validated
from rock.modelservice.wire import TRAINED

ALL = "all"
Positive = Annotated[int, Field(ge=1)]


def _names(given: object) -> object:
    return tuple(given.split(",")) if isinstance(given, str) else given


Names = Annotated[tuple[str, ...], BeforeValidator(_names)]
"""Also as one text, with commas."""


class Rows(StrEnum):
    """What one sample is."""

    CHAIN = "chain"
    """One sequence per chain; the mask marks every sampled token."""
    TURN = "turn"
    """One sequence per answer: everything before it, and the answer marked."""


class Placement(StrEnum):
    """Where in the sequence the episode's reward stands."""

    LAST_TOKEN = "last_token"
    """On the chain's last sampled token; of its turns, only the last has it."""
    EVERY_SAMPLED = "every_sampled"
    PER_TURN = "per_turn"
    """On the last token of each answer."""


class Pairs(StrEnum):
    """Which pairs of a group become preferences."""

    BEST_WORST = "best_worst"
    ALL = "all"


class Advantage(StrEnum):
    """What stands in a per-token advantage where a format has one."""

    NONE = "none"
    GROUP_MEAN = "group_mean"
    """Reward minus the mean reward of the group's members that count in its baseline."""


class ExportOptions(Strict):
    """The defaults give every token that may be trained on, once."""

    rows: Rows = Rows.CHAIN
    chains: Names = TRAINED
    """Classes of chains to take: `main`, `subagent`, `compaction`, `auxiliary`, or `all`."""
    only_in_loss: bool = True
    """Leave out episodes whose outcome does not count in the loss."""
    partial_groups: bool = False
    """Also take groups that are not complete yet."""
    min_staleness: int | None = None
    max_staleness: int | None = None
    at_version: int | None = None
    """The trainer's policy version, from which staleness is counted; null: the session's newest."""
    max_tokens: Positive | None = None
    """Leave out longer sequences; padded formats pad to it. Null pads to the longest of a shard."""
    placement: Placement = Placement.LAST_TOKEN
    splits: Positive = 1
    """How many critics share each group's members."""
    streams: Names = ()
    """Per-token float streams to put beside the tokens."""
    messages: bool = False
    """Also write the conversation where a format has room for it."""
    min_reward: float | None = None
    """`openai-sft`: the lowest reward that is taught; null takes all."""
    pairs: Pairs = Pairs.BEST_WORST
    """`openai-dpo`."""
    min_margin: float = Field(default=0.0, ge=0)
    """`openai-dpo`: rewards of a pair differ by more than this."""
    advantage: Advantage = Advantage.NONE
    """`prime-rl`."""
    pad_token_id: int = Field(default=0, ge=0)
    """`verl`, `roll`."""
    shard_samples: Positive = 4096
    """A file is closed after the group that reaches this many samples,"""
    shard_tokens: Positive = 4_000_000
    """or this many tokens. Memory grows with it."""

    @model_validator(mode="after")
    def _staleness_in_order(self) -> ExportOptions:
        low, high = self.min_staleness, self.max_staleness
        if low is not None and high is not None and low > high:
            raise ValueError(f"min_staleness {low} is above max_staleness {high}")
        return self


def options_of(**given: Any) -> ExportOptions:
    """Checked options. Raises `ConfigError`, naming each wrong one."""
    return validated(ExportOptions, given, source="export options")


def default_directory(run: Path, format_name: str) -> Path:
    return run / "exports" / format_name
