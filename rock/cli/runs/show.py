"""`rock show`: a run's figures and episodes, or one episode's trajectory, for reading."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import typer
from rich.console import Console
from rich.markup import escape

from rock.cli.runs.episodes import find_episode
from rock.cli.runs.tokens import print_chain, print_tokens
from rock.cli.tables import print_table, table_of
from rock.modelservice.wire import Choice, Trajectory, TrajectoryCall
from rock.rollout.export.formats.line import line
from rock.rollout.export.stream import samples_of_episode
from rock.rollout.records.rundir import read_info, read_records
from rock.rollout.report.report import report
from rock.rollout.report.text import as_text

TEXT_CHARS = 2000


def show_run(directory: Path, *, as_json: bool) -> None:
    records = read_records(directory)
    if as_json:
        body = {"info": read_info(directory), "report": report(records), "episodes": records}
        typer.echo(msgspec.json.format(msgspec.json.encode(body), indent=2).decode())
        return
    typer.echo(as_text(report(records)))
    numbers = ("reward", "turns", "seconds")
    table = table_of(("episode", "outcome", *numbers), numbers=numbers)
    for record in records:
        reward = record.outcome.reward
        table.add_row(
            escape(f"{record.task_id}/{record.index}"),
            record.outcome.cls,
            "-" if reward is None else f"{reward:.2f}",
            str(record.usage.turns),
            f"{record.seconds:.1f}",
        )
    print_table(table)


def show_episode(directory: Path, episode: str, *, as_json: bool, tokens: bool) -> None:
    """`episode` is TASK/INDEX; `tokens` shows its chains' ids instead of its messages.

    Raises ConfigError when the run has no such episode.
    """
    record, trajectory = find_episode(directory, episode)
    chains = samples_of_episode(directory, record.task_id, record.index) or []
    if as_json:
        body: dict[str, Any] = {"record": record, "trajectory": trajectory}
        if tokens:
            body["samples"] = [line(sample, messages=False) for sample in chains]
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
    if not tokens:
        _print_calls(console, trajectory)
    for sample in chains:
        (print_tokens if tokens else print_chain)(console, sample)
    if len(chains) < len(trajectory.rows):
        console.print(f"{len(trajectory.rows) - len(chains)} rows are invalid; export says why")
    for reason, count in trajectory.untrainable.items():
        console.print(f"untrainable: {escape(reason)} ({count} calls)")


def _print_calls(console: Console, trajectory: Trajectory) -> None:
    shown: dict[str, int] = {}
    """Per call: how many messages of its conversation were shown once it was."""
    for number, call in enumerate(trajectory.calls, 1):
        known = shown.get(call.parent, 0) if call.parent else 0
        _print_call(console, number, call, known)
        shown[call.call_id] = len(call.request.messages) + 1


def _print_call(console: Console, number: int, call: TrajectoryCall, known: int) -> None:
    """Print what is new in a call after its first `known` messages."""
    title = f"call {number} ({call.state}, policy version {call.policy_version})"
    title += f", {call.chain_class}" if call.chain_class != "main" else ""
    title += f", branch: {call.branch}" if call.branch else ""
    console.rule(title, align="left")
    if call.request.tools and not known:
        console.print(f"[dim]tools: {escape(', '.join(map(_tool_name, call.request.tools)))}[/]")
    for message in call.request.messages[known:]:
        _print_message(console, msgspec.json.decode(message))
    for place, choice in enumerate(call.choices):
        if len(call.choices) > 1:
            console.print(f"[dim]choice {place}[/]")
        _print_choice(console, choice)
    if call.untrainable:
        console.print(f"[yellow]untrainable: {escape(call.untrainable)}[/]")
    if call.error:
        console.print(f"[red]{escape(call.error)}[/]")


def _tool_name(tool: bytes | msgspec.Raw) -> str:
    fields: dict[str, Any] = msgspec.json.decode(tool)
    function: dict[str, Any] = fields.get("function") or fields
    return str(function.get("name"))


def _print_message(console: Console, message: dict[str, Any]) -> None:
    content: object = message.get("content")
    text = content if isinstance(content, str) else msgspec.json.encode(content).decode()
    if content is None:
        text = ""
    console.print(f"[bold]{escape(str(message.get('role')))}[/]: {escape(_cut(text))}")
    calls: list[dict[str, Any]] = message.get("tool_calls") or []
    for call in calls:
        function: dict[str, Any] = call.get("function") or {}
        arguments = escape(_cut(str(function.get("arguments"))))
        console.print(f"  → {escape(str(function.get('name')))} {arguments}")


def _print_choice(console: Console, choice: Choice) -> None:
    message = choice.message
    if message.reasoning_content:
        console.print(f"[dim]{escape(_cut(message.reasoning_content))}[/]")
    console.print(f"[bold green]assistant[/]: {escape(_cut(message.content or ''))}")
    for tool in message.tool_calls or []:
        console.print(f"  → {escape(tool.function.name)} {escape(_cut(tool.function.arguments))}")


def _cut(text: str) -> str:
    return text if len(text) <= TEXT_CHARS else f"{text[:TEXT_CHARS]}… ({len(text)} characters)"
