"""`rock doctor`: every check that ran, what it found, and what would be used."""

from __future__ import annotations

import asyncio
import dataclasses
import json

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from rock.config import read_environment
from rock.errors import ProviderUnavailable
from rock.modelservice.hosting.form import HOW_TO_COMPILE, compiled_modules, form
from rock.sandbox.doctor import Check, choose_provider, examine


def run_doctor(*, as_json: bool) -> None:
    """Exit code 1 if no provider works."""
    checks, provider = asyncio.run(_examine(read_environment().docker_host))
    if as_json:
        found = [dataclasses.asdict(check) for check in checks]
        typer.echo(json.dumps({"checks": found, "provider": provider}, indent=2))
    else:
        _print(checks, provider)
    if provider is None:
        raise typer.Exit(1)


async def _examine(docker_host: str | None) -> tuple[list[Check], str | None]:
    checks = [_form(), *await examine(docker_host)]
    try:
        async with await choose_provider(docker_host) as provider:
            return checks, provider.name
    except ProviderUnavailable:
        return checks, None


def _form() -> Check:
    detail = f"runs {form()}" + ("" if compiled_modules() else f"; {HOW_TO_COMPILE}")
    return Check(name="ModelService", ok=True, detail=detail)


def _print(checks: list[Check], provider: str | None) -> None:
    table = Table(box=None, pad_edge=False)
    for column in ("", "check", "found"):
        table.add_column(column, overflow="fold")
    for check in checks:
        found = (
            check.detail if check.ok or not check.remedy else f"{check.detail}\n→ {check.remedy}"
        )
        table.add_row("[green]ok[/]" if check.ok else "[red]no[/]", check.name, escape(found))
    console = Console(highlight=False)
    console.print(table)
    console.print(f"\nsandboxes are made by: [bold]{provider or 'nothing that works here'}[/]")
