"""`rock tokens check`: does a model's chat template keep what the model has already seen?"""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import typer
from rich.console import Console
from rich.markup import escape

from rock.errors import ConfigError
from rock.modelservice.render import Report, check, load

_COLOURS = {"clean": "green", "realigned": "yellow", "fork": "red", "refused": "dim"}


def run_check(directory: Path, *, template: list[str], as_json: bool) -> None:
    """Exit code 1 unless the template is prefix-stable. Raises `ConfigError`."""
    report = check(load(directory), template=_variables(template))
    if as_json:
        body = {
            "prefix_stable": report.prefix_stable,
            "extendable": report.extendable,
            "findings": report.findings,
        }
        typer.echo(msgspec.json.encode(body).decode())
    else:
        _print(report)
    if not report.prefix_stable:
        raise typer.Exit(1)


def _variables(given: list[str]) -> dict[str, object]:
    """NAME=VALUE, the value as JSON where it is JSON."""
    found: dict[str, object] = {}
    for item in given:
        name, equals, text = item.partition("=")
        if not equals or not name:
            raise ConfigError(f"--template: {item!r}; expected NAME=VALUE")
        try:
            found[name] = json.loads(text)
        except ValueError:
            found[name] = text
    return found


def _print(report: Report) -> None:
    console = Console(highlight=False)
    for finding in report.findings:
        colour = _COLOURS[finding.status]
        console.print(f"[{colour}]{finding.status:<9}[/] {escape(finding.text)}", soft_wrap=True)
    console.print(
        f"prefix-stable: [bold]{_yes(report.prefix_stable)}[/]   "
        f"every conversation stays one chain: [bold]{_yes(report.extendable)}[/]"
    )


def _yes(value: bool) -> str:
    return "yes" if value else "no"
