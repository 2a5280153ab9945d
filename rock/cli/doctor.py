"""`rock doctor`: every check that ran, what it found, and what would be used."""

from __future__ import annotations

import asyncio
import dataclasses
import json

import typer
from rich.console import Console
from rich.table import Table

from rock.sandbox.doctor import diagnose


def run_doctor(*, as_json: bool) -> None:
    """Exit code 1 if no provider works."""
    diagnosis = asyncio.run(diagnose())
    if as_json:
        typer.echo(json.dumps(dataclasses.asdict(diagnosis), indent=2))
    else:
        table = Table(box=None, pad_edge=False)
        for column in ("", "check", "found"):
            table.add_column(column, overflow="fold")
        for check in diagnosis.checks:
            mark = "[green]ok[/]" if check.ok else "[red]no[/]"
            found = check.detail if check.ok or not check.remedy else f"{check.detail}\n→ {check.remedy}"
            table.add_row(mark, check.name, found)
        console = Console()
        console.print(table)
        console.print(f"\nprovider used: [bold]{diagnosis.provider or 'none works'}[/]")
    if diagnosis.provider is None:
        raise typer.Exit(1)
