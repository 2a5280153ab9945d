"""`rock show`: a run's figures and episodes, or one episode's trajectory, for reading."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from rock.errors import ConfigError, LedgerError
from rock.modelservice.wire import Choice, TokenRow, Trajectory, TrajectoryCall
from rock.rollout.record import Record
from rock.rollout.report import as_text, report
from rock.rollout.rundir import file_name, read_info, read_records

TEXT_CHARS = 2000


def show_run(directory: Path, *, as_json: bool) -> None:
    records = read_records(directory)
    if as_json:
        body = {"info": read_info(directory), "report": report(records), "episodes": records}
        typer.echo(msgspec.json.format(msgspec.json.encode(body), indent=2).decode())
        return
    typer.echo(as_text(report(records)))
    table = Table(box=None, pad_edge=False)
    for column in ("episode", "outcome", "reward", "turns", "seconds"):
        table.add_column(column, justify="left" if column in ("episode", "outcome") else "right")
    for record in records:
        reward = record.outcome.reward
        table.add_row(
            escape(f"{record.task_id}/{record.index}"),
            record.outcome.cls,
            "-" if reward is None else f"{reward:.2f}",
            str(record.usage.turns),
            f"{record.seconds:.1f}",
        )
    Console(highlight=False).print(table)


def show_episode(directory: Path, episode: str, *, as_json: bool) -> None:
    """`episode` is TASK/INDEX. Raises ConfigError when the run has no such episode."""
    record = _find(read_records(directory), episode)
    name = file_name(record.task_id)
    folder = directory / "episodes" / name / str(record.index) / f"attempt-{record.attempt}"
    trajectory = _read(folder / "trajectory.json")
    if as_json:
        body = {"record": record, "trajectory": trajectory}
        typer.echo(msgspec.json.format(msgspec.json.encode(body), indent=2).decode())
        return
    # A terminal wraps long lines itself; lines broken here could not be copied or searched.
    console = Console(highlight=False, soft_wrap=True)
    outcome = record.outcome
    console.print(
        f"[bold]{escape(record.task_id)}/{record.index}[/] attempt {record.attempt}: "
        f"[bold]{outcome.cls}[/], reward {'-' if outcome.reward is None else outcome.reward}, "
        f"{record.usage.turns} turns, {record.seconds:.1f} s  {escape(outcome.detail)}"
    )
    if trajectory is None:
        console.print("no trajectory: the attempt ended before there was one")
        return
    shown = 0
    for number, call in enumerate(trajectory.calls, 1):
        shown = _print_call(console, number, call, shown)
    for row in trajectory.rows:
        console.print(_describe_row(row))
    for reason, count in trajectory.untrainable.items():
        console.print(f"untrainable: {escape(reason)} ({count} calls)")


def _find(records: list[Record], episode: str) -> Record:
    task, _, index = episode.rpartition("/")
    for record in records:
        if record.task_id == task and str(record.index) == index:
            return record
    known = ", ".join(f"{record.task_id}/{record.index}" for record in records[:5])
    raise ConfigError(
        f"no finished episode {episode!r}; expected TASK/INDEX, like {known or 'none'}"
    )


def _read(path: Path) -> Trajectory | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Trajectory)
    except FileNotFoundError:
        return None
    except msgspec.DecodeError as exc:
        raise LedgerError(f"{path}: not a trajectory: {exc}") from exc


def _print_call(console: Console, number: int, call: TrajectoryCall, shown: int) -> int:
    """Print what is new in a call; how many messages of the conversation were shown by then."""
    title = f"call {number} ({call.state}, policy version {call.policy_version})"
    if call.branch is not None or call.parent is None:
        shown = 0  # a conversation of its own: everything in it is new
        title += f", branch: {call.branch}" if call.branch else ""
    console.rule(title, align="left")
    for message in call.request.messages[shown:]:
        _print_message(console, msgspec.json.decode(message))
    for choice in call.choices:
        _print_choice(console, choice)
    if call.error:
        console.print(f"[red]{escape(call.error)}[/]")
    return len(call.request.messages) + 1


def _print_message(console: Console, message: dict[str, Any]) -> None:
    content: object = message.get("content")
    text = content if isinstance(content, str) else msgspec.json.encode(content).decode()
    console.print(f"[bold]{escape(str(message.get('role')))}[/]: {escape(_cut(text))}")


def _print_choice(console: Console, choice: Choice) -> None:
    message = choice.message
    if message.reasoning_content:
        console.print(f"[dim]{escape(_cut(message.reasoning_content))}[/]")
    console.print(f"[bold green]assistant[/]: {escape(_cut(message.content or ''))}")
    for tool in message.tool_calls or []:
        console.print(f"  → {escape(tool.function.name)} {escape(_cut(tool.function.arguments))}")


def _describe_row(row: TokenRow) -> str:
    versions = sorted({s.policy_version for s in row.spans if s.policy_version is not None})
    return (
        f"row {row.chain}: {len(row.token_ids)} tokens, {sum(row.mask)} sampled, "
        f"policy versions {versions}, sum of log-probs {sum(row.logprobs):.3f}"
    )


def _cut(text: str) -> str:
    return text if len(text) <= TEXT_CHARS else f"{text[:TEXT_CHARS]}… ({len(text)} characters)"
