"""What the loop must keep. All but the memory of a parked call are ratios within one run, or so wide
that a busy machine keeps them."""

from __future__ import annotations

from bar import Bar
from history import History
from parked import Parked
from side import Side

NGINX_RATIO = 6.0
AIM = 2.5
ADDED_P50_MS = 3.0
PARKED_BYTES = 25 * 1024
HISTORY_PER_SECOND = 300.0
FLAT_RATIO = 1.25
"""Flat, as far as a busy machine can tell."""


def side_bars(side: Side) -> list[Bar]:
    """Of the queue's compiled form; source is shown beside it, and must give no errors."""
    found: list[Bar] = []
    rows = {(row.target, row.agents): row for row in side.rows}
    for (target, agents), row in rows.items():
        if target not in ("rock-queue", "rock-compiled"):
            continue
        found.append(Bar(f"errors of {target} at {agents} agents", row.errors, 0))
        if target == "rock-queue":
            continue
        if agents == 1:
            found.append(Bar("added p50 at 1 agent, ms", row.added_p50_ms, ADDED_P50_MS))
        else:
            ratio = row.cpu_us_per_turn / rows["nginx", agents].cpu_us_per_turn
            name = f"CPU per turn / nginx's per request, {agents} agents (aim {AIM})"
            found.append(Bar(name, ratio, NGINX_RATIO))
    return found


def parked_bars(parked: Parked) -> list[Bar]:
    calls = parked.calls
    return [
        Bar(f"memory of each of {calls} parked calls, bytes", parked.bytes_each, PARKED_BYTES),
        Bar(f"of {calls} parked calls answered", parked.answered, calls, at_least=True),
    ]


def history_bars(history: History) -> list[Bar]:
    flat = history.late_cpu_us / history.early_cpu_us
    per_second = history.per_cpu_second
    return [
        Bar("errors in growing conversations", history.errors, 0),
        Bar("turns to 100k tokens per CPU second", per_second, HISTORY_PER_SECOND, at_least=True),
        Bar("turns 25-30 / turns 5-10, CPU besides reading", flat, FLAT_RATIO),
    ]
