"""What `rock sandbox` prints for people, and the exit code that it ends with."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence

import typer


def end(code: int) -> None:
    """Exit with that code, or go on if it is 0."""
    if code:
        raise typer.Exit(code)


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Aligned columns; the last one is cut at the edge of a terminal."""
    every = [columns, *([plain(cell) for cell in row] for row in rows)]
    widths = [max(len(row[at]) for row in every) for at in range(len(columns) - 1)]
    edge = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    for row in every:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
        typer.echo("  ".join([*cells, row[-1]])[:edge])


def plain(text: str) -> str:
    """What a sandbox says must not steer the terminal of who looks at it: a line end becomes `\\n`."""
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)
