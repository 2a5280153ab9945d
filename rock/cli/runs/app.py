"""The table of `rock runs` commands; what they do is in modules beside it, imported when one is called."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

runs_app = typer.Typer(no_args_is_help=True, help="Look at run directories and compare them.")

Json = Annotated[bool, typer.Option("--json", help="As JSON.")]


@runs_app.command("list")
def list_(
    folder: Annotated[Path, typer.Argument(help="Where to look.", metavar="[FOLDER]")] = Path(
        "runs"
    ),
    json: Json = False,
) -> None:
    """The runs in a folder: how far each is and how it went."""
    from rock.cli.runs.overview import list_runs

    list_runs(folder, as_json=json)


@runs_app.command()
def show(
    directory: Annotated[Path, typer.Argument(help="A run directory.", metavar="RUN")],
    json: Json = False,
) -> None:
    """A run's figures and episodes, as `rock show` does."""
    from rock.cli.runs.show import show_run

    show_run(directory, as_json=json)


@runs_app.command()
def compare(
    run_a: Annotated[Path, typer.Argument(help="A run directory.", metavar="RUN_A")],
    run_b: Annotated[Path, typer.Argument(help="A run directory.", metavar="RUN_B")],
    json: Json = False,
) -> None:
    """Two runs against each other, task by task, with the interval of the difference."""
    from rock.cli.runs.overview import compare_runs

    compare_runs(run_a, run_b, as_json=json)
