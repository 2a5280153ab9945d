"""A report as a table for people: what `report.txt` holds and `rock run` prints."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rock.rollout.records.outcome import TABLE, Cause, OutcomeClass
from rock.rollout.report.report import Report, Summary
from rock.rollout.scheduler.bias import LengthBias

COLUMNS: Sequence[tuple[str, Callable[[Summary], str]]] = (
    ("task", lambda s: s.name),
    ("episodes", lambda s: str(s.episodes)),
    ("valid", lambda s: f"{s.valid}/{s.episodes}"),
    ("solved", lambda s: str(s.solved)),
    ("mean reward", lambda s: _number(s.mean_reward, 3)),
    ("95 %", lambda s: f"{s.interval.low:.2f}-{s.interval.high:.2f}" if s.interval else "-"),
    ("turns", lambda s: _number(s.turns_mean, 1)),
    ("tokens", lambda s: "-" if s.completion_tokens is None else str(s.completion_tokens)),
    ("p50 s", lambda s: _number(s.seconds_p50, 2)),
    ("p95 s", lambda s: _number(s.seconds_p95, 2)),
    ("other endings", lambda s: endings(s)),
)


def endings(summary: Summary) -> str:
    """The outcome classes besides solved and failed, with counts."""
    shown = {k: v for k, v in summary.classes.items() if k not in ("solved", "failed")}
    return ", ".join(f"{name} {count}" for name, count in shown.items()) or "-"


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _bias_line(bias: LengthBias) -> str:
    seconds = f"{_number(bias.kept_mean_seconds, 2)} s of {_number(bias.all_mean_seconds, 2)} s"
    return (
        f"redundant episodes: {bias.stopped} stopped; those kept took {seconds} on average "
        f"(shorter by {_number(None if bias.shortened is None else 100 * bias.shortened, 0)} %)"
    )


def rows(figures: Report) -> list[list[str]]:
    """The table's cells: a heading, one row per task, the total."""
    heading = [name for name, _ in COLUMNS]
    body = [[cell(summary) for _, cell in COLUMNS] for summary in [*figures.tasks, figures.total]]
    return [heading, *body]


def as_text(figures: Report) -> str:
    """The report as a plain table with the lines that explain it."""
    table = rows(figures)
    widths = [max(len(row[column]) for row in table) for column in range(len(COLUMNS))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in table
    ]
    lines.insert(1, "  ".join("-" * width for width in widths))
    lines.insert(-1, lines[1])
    total = figures.total
    lines.append("")
    lines.append(
        f"valid {total.valid} of {total.episodes} episodes (coverage {total.coverage:.0%})"
    )
    for item in figures.pass_at_k:
        lines.append(f"pass@{item.k} {item.value:.3f} over {item.tasks} tasks")
    if (bias := figures.length_bias) is not None:
        lines.append(_bias_line(bias))
    if figures.sandboxes.keys() - {"new"}:
        lines.append(
            f"sandboxes: {figures.sandboxes.get('new', 0)} new, {figures.sandboxes.get('pool', 0)} from "
            f"the pool, {figures.sandboxes.get('snapshot', 0)} from a snapshot"
        )
    if total.interval is not None:
        lines.append(f"interval: 95 %, {total.interval.method}")
    lines += [*_phase_lines(total), *_error_lines(total), _usage_line(total)]
    return "\n".join(lines) + "\n"


def _phase_lines(total: Summary) -> list[str]:
    if not total.phases:
        return []
    lines = ["", "phase      p50 s    p95 s"]
    for phase, spread in total.phases.items():
        lines.append(f"{phase:<9} {spread.p50:>6.2f}   {spread.p95:>6.2f}")
    return [*lines, ""]


def _error_lines(total: Summary) -> list[str]:
    """What does not count, by whose fault it is."""
    lines: list[str] = []
    for cause, count in total.causes.items():
        classes = [
            f"{name} {number}" for name, number in total.classes.items() if _is_error(name, cause)
        ]
        lines.append(f"not valid by {cause}: {count} ({', '.join(classes)})")
    return lines


def _is_error(name: str, cause: str) -> bool:
    flags = TABLE[OutcomeClass(name)]
    return flags.cause is Cause(cause) and not flags.in_denominator


def _usage_line(total: Summary) -> str:
    tokens = (total.prompt_tokens, total.completion_tokens)
    prompt, completion = ("unknown" if count is None else str(count) for count in tokens)
    cost = "unknown" if total.cost_usd is None else f"{total.cost_usd:.4f} USD"
    return f"tokens: {prompt} of prompts, {completion} sampled; cost: {cost}"
