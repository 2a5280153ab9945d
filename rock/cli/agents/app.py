"""The table of `rock agents` commands; what they do is in `presets`, imported when one is called."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

agents_app = typer.Typer(
    no_args_is_help=True, help="Known agents: what they are, and how to have them."
)

Json = Annotated[bool, typer.Option("--json", help="As JSON.")]
Into = Annotated[
    Path | None,
    typer.Option(
        "--into",
        metavar="DIR",
        help="Where agents are installed.",
        show_default="ROCK_CLIENTS_DIR, else ~/.cache/rock/clients",
    ),
]


@agents_app.command("list")
def list_(into: Into = None, json: Json = False) -> None:
    """The presets: package, dialect, whether it is installed here, and whether it was tried."""
    from rock.cli.agents.presets import list_agents

    list_agents(into, as_json=json)


@agents_app.command()
def show(
    name: Annotated[str, typer.Argument(help="A preset.", metavar="NAME")],
    into: Into = None,
    json: Json = False,
) -> None:
    """All that a preset stands for: install, command, environment, files, mounts, how it ends."""
    from rock.cli.agents.presets import show_agent

    show_agent(name, into, as_json=json)


@agents_app.command()
def install(
    names: Annotated[list[str], typer.Argument(help="Presets.", metavar="NAME...")],
    into: Into = None,
    image: Annotated[
        str | None,
        typer.Option(
            metavar="IMAGE", help="Make an image that has them, out of this one, instead."
        ),
    ] = None,
    tag: Annotated[
        str | None, typer.Option(help="Name of that image.", show_default="IMAGE-NAME")
    ] = None,
    network: Annotated[
        Literal["engine", "host", "none"],
        typer.Option(help="What the build of an image may reach: what containers do, or as said."),
    ] = "engine",
) -> None:
    """Install presets on this machine, to be mounted read-only, or into an image."""
    from rock.cli.agents.presets import install_agents, install_into_image

    if image is None:
        install_agents(names, into)
    else:
        install_into_image(names, into, image=image, tag=tag, network=network)
