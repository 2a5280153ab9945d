"""The table of commands. Each is imported when it is called, so that `rock --help` stays fast."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

import rock
from rock.cli.agents.app import agents_app
from rock.cli.runs.app import runs_app
from rock.cli.sandbox.app import sandbox_app
from rock.errors import ConfigError

app = typer.Typer(
    name="rock",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    help="Real agents in sandboxes ask, one trainer answers, graded trajectories come out.",
)

StateDir = Annotated[
    Path | None,
    typer.Option(
        "--state-dir",
        help="Journal, keys and addresses of the service.",
        show_default="~/.local/state/rock/service",
    ),
]
ProviderName = Literal["auto", "docker", "local"]


@app.command()
def demo(
    tasks: Annotated[int, typer.Option(min=1, max=164, help="HumanEval tasks.")] = 12,
    episodes: Annotated[int, typer.Option(min=1, max=64, help="Episodes per task.")] = 4,
    concurrency: Annotated[
        int | None,
        typer.Option(min=1, max=256, help="Episodes at once.", show_default="2 per core"),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the scripted policy.")] = 0,
    provider: Annotated[ProviderName, typer.Option(help="Who makes sandboxes.")] = "auto",
    out: Annotated[
        Path | None, typer.Option(help="Run directory.", show_default="runs/demo-TIME")
    ] = None,
) -> None:
    """Run the whole loop here: agents in sandboxes, ModelService, a scripted trainer, grades."""
    from rock.cli.demo import run_demo

    run_demo(
        tasks=tasks,
        episodes=episodes,
        concurrency=concurrency,
        seed=seed,
        provider=provider,
        out=out,
    )


@app.command()
def serve(
    state_dir: StateDir = None,
    backend: Annotated[
        list[str] | None,
        typer.Option(
            help="Also answer from litellm:MODEL, openai:MODEL, engine:MODEL or replay:PATH. "
            "May be repeated; for more, --set backends_file=FILE."
        ),
    ] = None,
    api_base: Annotated[
        str | None, typer.Option(help="Address of the backends' API.", envvar="ROCK_API_BASE")
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="A setting, see docs/settings.md."),
    ] = None,
    shards: Annotated[
        int | None,
        typer.Option(min=1, max=256, help="Processes, each with its own journal and ports."),
    ] = None,
) -> None:
    """Run ModelService until interrupted: agents ask it, a trainer answers over its API."""
    from rock.cli.serve import run_serve

    run_serve(
        state_dir,
        backends=backend or [],
        api_base=api_base,
        settings=set_ or [],
        shards=shards,
    )


@app.command()
def session(
    state_dir: StateDir = None,
    backend: Annotated[
        str | None,
        typer.Option(
            help="Who answers: queue (a trainer) or a backend; else the service's default."
        ),
    ] = None,
    max_calls: Annotated[
        int | None, typer.Option(min=1, help="Calls the session may make.")
    ] = None,
    label: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="Seen by the trainer.")
    ] = None,
    wait_seconds: Annotated[
        float, typer.Option(min=0, help="For a service that is starting.")
    ] = 20.0,
) -> None:
    """Open a session on a running service; prints OPENAI_BASE_URL and OPENAI_API_KEY for an agent."""
    from rock.cli.serve import open_session

    open_session(
        state_dir,
        backend=backend,
        max_calls=max_calls,
        labels=label or [],
        wait_seconds=wait_seconds,
    )


@app.command()
def run(
    file: Annotated[Path | None, typer.Argument(help="The run file.", metavar="[RUN.yaml]")] = None,
    resume: Annotated[
        Path | None,
        typer.Option("--resume", metavar="RUN", help="Go on with this run directory instead."),
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option(metavar="TASK", help="Run this task. May be repeated.")
    ] = None,
    retry: Annotated[
        Literal["infra"] | None,
        typer.Option(help="Run episodes again that ended in an infrastructure failure."),
    ] = None,
    regrade: Annotated[
        bool, typer.Option("--regrade", help="Only grade finished episodes again.")
    ] = False,
    model: Annotated[
        str | None,
        typer.Option(
            help="queue, or a backend: litellm:NAME, openai:NAME, engine:NAME, replay:PATH."
        ),
    ] = None,
    api_base: Annotated[
        str | None, typer.Option(help="Address of the hosted model's API.", envvar="ROCK_API_BASE")
    ] = None,
    provider: Annotated[ProviderName | None, typer.Option(help="Who makes sandboxes.")] = None,
    concurrency: Annotated[int | None, typer.Option(min=1, help="Episodes at once.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="Run directory; one that exists is gone on with.")
    ] = None,
    state_dir: Annotated[
        Path | None, typer.Option(help="Use the service running here instead of starting one.")
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="Events as JSON, one per line, and nothing else.")
    ] = False,
) -> None:
    """Run the episodes of a run file; started again on its run directory, it goes on."""
    from rock.cli.running.run import run_file
    from rock.rollout.planning import Selection

    chosen = Selection(
        only=frozenset(only) if only else None, retry_infra=retry == "infra", regrade=regrade
    )
    changes: dict[str, Any] = {
        "model": model,
        "api_base": api_base,
        "provider": provider,
        "concurrency": concurrency,
        # What is typed is relative to where it is typed, not to the run file.
        "out": out.absolute() if out is not None else None,
    }
    run_file(
        file,
        resumed=resume,
        chosen=chosen,
        changes={k: v for k, v in changes.items() if v is not None},
        state_dir=state_dir,
        as_json=json,
    )


@app.command()
def show(
    directory: Annotated[Path, typer.Argument(help="A run directory.", metavar="RUN")],
    episode: Annotated[
        str | None, typer.Argument(help="TASK/INDEX: show this trajectory.", metavar="[EPISODE]")
    ] = None,
    tokens: Annotated[
        bool, typer.Option("--tokens", help="Token ids, masks and versions of an episode.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    """Show a run's figures and episodes, or one episode's trajectory."""
    from rock.cli.runs.show import show_episode, show_run

    if episode is None:
        if tokens:
            raise ConfigError("--tokens: name an episode, too: rock show RUN TASK/INDEX --tokens")
        show_run(directory, as_json=json)
    else:
        show_episode(directory, episode, as_json=json, tokens=tokens)


@app.command()
def diff(
    run_a: Annotated[Path, typer.Argument(help="A run directory.", metavar="RUN_A")],
    episode_a: Annotated[str, typer.Argument(help="TASK/INDEX.", metavar="EPISODE_A")],
    run_b: Annotated[Path, typer.Argument(help="A run directory.", metavar="RUN_B")],
    episode_b: Annotated[str, typer.Argument(help="TASK/INDEX.", metavar="EPISODE_B")],
    json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    """Where two trajectories part: messages, tokens, rewards. Exit code 1 if they do."""
    from rock.cli.runs.diff import run_diff

    run_diff((run_a, episode_a), (run_b, episode_b), as_json=json)


@app.command()
def export(
    directory: Annotated[Path, typer.Argument(help="A run directory.", metavar="RUN")],
    format_: Annotated[
        str, typer.Option("--format", help="What to write, see docs/export.md.")
    ] = "jsonl",
    out: Annotated[
        Path | None,
        typer.Option(
            help="Export directory; one that exists is gone on with.",
            show_default="RUN/exports/FORMAT",
        ),
    ] = None,
    rows: Annotated[
        Literal["chain", "turn"], typer.Option(help="One sequence per chain, or per answer.")
    ] = "chain",
    chains: Annotated[
        list[str] | None, typer.Option(help="Class of chains to take, or all. May be repeated.")
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Another option, see docs/export.md."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="The summary as JSON.")] = False,
) -> None:
    """Write a run's trajectories for a trainer; started again on its directory, it goes on."""
    from rock.cli.export import run_export

    chosen: dict[str, Any] = {"rows": rows, "chains": tuple(chains) if chains else None}
    run_export(
        directory,
        format_name=format_,
        out=out,
        chosen={name: value for name, value in chosen.items() if value is not None},
        settings=set_ or [],
        as_json=json,
    )


app.add_typer(sandbox_app, name="sandbox")
app.add_typer(runs_app, name="runs")
app.add_typer(agents_app, name="agents")

tokens_app = typer.Typer(no_args_is_help=True, help="Tokenizers and chat templates.")
app.add_typer(tokens_app, name="tokens")


@tokens_app.command()
def check(
    directory: Annotated[
        Path, typer.Argument(help="A model's tokenizer and chat template.", metavar="TOKENIZER")
    ],
    template: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="A variable for the template. May be repeated."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    """Whether a chat template keeps earlier messages as they were when others follow."""
    from rock.cli.tokens_check import run_check

    run_check(directory, template=template or [], as_json=json)


@app.command()
def doctor(
    json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    """Try what rock needs on this machine, and say what will be used."""
    from rock.cli.doctor import run_doctor

    run_doctor(as_json=json)


@app.command()
def version() -> None:
    """Print the version."""
    typer.echo(rock.__version__)
