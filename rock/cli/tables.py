"""Tables on the command line that lose nothing: a wide row is wrapped by the terminal, never cut here.

What they show (run directories, episodes) is there to be copied, also from a narrow terminal and a pipe.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

WIDEST_CHARS = 10_000
"""Rich narrows columns to its idea of the terminal; this is wider than any row."""


def table_of(columns: Sequence[str], *, numbers: Sequence[str] = ()) -> Table:
    """An empty table; the columns named in `numbers` are aligned to the right."""
    table = Table(box=None, pad_edge=False)
    for column in columns:
        table.add_column(column, justify="right" if column in numbers else "left", no_wrap=True)
    return table


def print_table(table: Table) -> None:
    Console(highlight=False, width=WIDEST_CHARS).print(table)
