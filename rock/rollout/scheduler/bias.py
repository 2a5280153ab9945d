"""What redundancy did to the lengths of what is trained on.

Whoever takes the first n to finish prefers the short ones. Members that were stopped ran at least as
long as they did, so their durations are known from below only (censored); Kaplan and Meier's
product-limit estimator takes both kinds in, and its mean, up to the longest time seen, estimates what
all members would have taken. `shortened` = 1 - mean kept / that mean: 0 is no bias.

Formula: E. L. Kaplan, P. Meier, Nonparametric estimation from incomplete observations, JASA 53
(1958); the mean is the area under the survival curve up to the last observation, so with stopped
members at the end it is a lower bound, and so is `shortened`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec


class LengthBias(msgspec.Struct, frozen=True, kw_only=True):
    """Durations are seconds."""

    kept: int
    stopped: int
    kept_mean_seconds: float | None
    stopped_mean_seconds: float | None
    all_mean_seconds: float | None
    """Of all members had none been stopped, estimated."""
    shortened: float | None


def length_bias(kept: Sequence[float], stopped: Sequence[float]) -> LengthBias:
    """`kept`: durations of members that ended by themselves; `stopped`: of those that lost."""
    everyone = survival_mean(kept, stopped)
    mean = _mean(kept)
    return LengthBias(
        kept=len(kept),
        stopped=len(stopped),
        kept_mean_seconds=mean,
        stopped_mean_seconds=_mean(stopped),
        all_mean_seconds=everyone,
        shortened=1.0 - mean / everyone if mean is not None and everyone else None,
    )


def survival_mean(ended: Sequence[float], censored: Sequence[float]) -> float | None:
    """The product-limit mean, restricted to the longest duration seen; None without data."""
    events = sorted([(seconds, 0) for seconds in ended] + [(seconds, 1) for seconds in censored])
    if not events:
        return None
    area, alive, before = 0.0, 1.0, 0.0
    for place, (seconds, is_censored) in enumerate(events):
        area += alive * (seconds - before)
        before = seconds
        if not is_censored:
            alive *= 1.0 - 1.0 / (len(events) - place)
    return area


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None
