"""The table of commands. Each is imported when it is called, so that `rock --help` stays fast."""

from __future__ import annotations

import typer

import rock

app = typer.Typer(
    name="rock",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    help="Real agents in sandboxes ask, one trainer answers, graded trajectories come out.",
)


@app.command()
def version() -> None:
    """Print the version."""
    typer.echo(rock.__version__)
