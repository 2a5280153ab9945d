"""`rock runs`: the runs in a folder, and two of them against each other, as tables or JSON."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import typer
from rich.markup import escape
from rich.table import Table

from rock.cli.tables import print_table, table_of
from rock.rollout.records.rundir import read_records
from rock.rollout.report.overview import Comparison, Overview, compare, find_runs, overview
from rock.rollout.report.report import Report, Summary


def list_runs(folder: Path, *, as_json: bool) -> None:
    found = [overview(path) for path in find_runs(folder)]
    if as_json:
        _print_json(found)
        return
    if not found:
        typer.echo(f"no runs in {folder}")
        return
    table = table_of(
        ("run", "status", "started", "model", "tasks", "done", "valid", "solved", "mean reward")
    )
    for one in found:
        table.add_row(*_cells(one))
    print_table(table)


def _cells(one: Overview) -> list[str]:
    if one.total is None:
        return [escape(one.path), f"{one.status}: {escape(one.detail)}"]
    total = one.total
    return [
        escape(one.path),
        one.status,
        one.created_at[:19].replace("T", " "),
        escape(one.model),
        str(one.tasks),
        f"{total.episodes}/{one.planned}",
        f"{total.valid}/{total.episodes}",
        str(total.solved),
        _number(total.mean_reward),
    ]


def compare_runs(a: Path, b: Path, *, as_json: bool) -> None:
    found = compare(read_records(a), read_records(b))
    if as_json:
        _print_json(found)
        return
    print_table(_totals(a, b, found))
    typer.echo()
    table = table_of(("task", "A", "B", "B - A", "valid A", "valid B"))
    for task in found.tasks:
        table.add_row(
            escape(task.task_id),
            _number(task.mean_a),
            _number(task.mean_b),
            _signed(task.difference),
            str(task.valid_a),
            str(task.valid_b),
        )
    print_table(table)
    typer.echo()
    typer.echo(_verdict(found))


def _totals(a: Path, b: Path, found: Comparison) -> Table:
    table = table_of(("", f"A: {escape(str(a))}", f"B: {escape(str(b))}"))
    rows: Sequence[tuple[str, Callable[[Report], str]]] = (
        ("valid", lambda r: f"{r.total.valid}/{r.total.episodes} ({r.total.coverage:.0%})"),
        ("solved", lambda r: str(r.total.solved)),
        ("mean reward", lambda r: _with_interval(r.total)),
        ("pass@k", _pass_at_k),
        ("turns", lambda r: _number(r.total.turns_mean)),
        ("sampled tokens", lambda r: _known(r.total.completion_tokens)),
        ("cost USD", lambda r: _number(r.total.cost_usd)),
        (
            "p50 / p95 s",
            lambda r: f"{_number(r.total.seconds_p50)} / {_number(r.total.seconds_p95)}",
        ),
        ("not valid", lambda r: ", ".join(f"{k} {v}" for k, v in r.total.causes.items()) or "-"),
    )
    for name, cell in rows:
        table.add_row(name, cell(found.a), cell(found.b))
    return table


def _pass_at_k(figures: Report) -> str:
    return ", ".join(f"@{item.k} {item.value:.3f}" for item in figures.pass_at_k) or "-"


def _with_interval(total: Summary) -> str:
    interval = total.interval
    shown = f" ({interval.low:.2f} to {interval.high:.2f})" if interval else ""
    return _number(total.mean_reward) + shown


def _verdict(found: Comparison) -> str:
    if found.difference is None:
        return "no task has a mean reward in both runs"
    interval = found.interval
    shown = f", 95 % {interval.low:+.3f} to {interval.high:+.3f}" if interval else ""
    return (
        f"B - A over {found.compared} tasks: {found.difference:+.3f}{shown}; "
        f"better in {found.better}, worse in {found.worse}"
    )


def _print_json(value: object) -> None:
    typer.echo(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _signed(value: float | None) -> str:
    return "-" if value is None else f"{value:+.3f}"


def _known(value: int | None) -> str:
    return "-" if value is None else str(value)
