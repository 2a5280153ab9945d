"""The table of `rock sandbox` commands; what they do is in modules beside it, imported when one is called."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

sandbox_app = typer.Typer(
    no_args_is_help=True, help="Look into sandboxes that run; serve some to others."
)

Url = Annotated[str | None, typer.Option(help="A sandbox server, else what runs on this machine.")]
Key = Annotated[str | None, typer.Option(help="The key of that server.")]
Id = Annotated[str, typer.Argument(metavar="SANDBOX", help="The beginning of its id is enough.")]
User = Annotated[str | None, typer.Option(help="User inside.")]


@sandbox_app.command()
def serve(
    provider: Annotated[
        Literal["auto", "docker", "local"], typer.Option(help="Who makes the sandboxes.")
    ] = "auto",
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 picks a free one.")] = 8700,
    allow_mounts: Annotated[
        bool, typer.Option(help="Let clients show directories of this host in sandboxes.")
    ] = False,
) -> None:
    """Serve sandboxes of this machine over HTTP until interrupted."""
    from rock.cli.sandbox.serve import run_serve

    run_serve(provider, host=host, port=port, allow_mounts=allow_mounts)


@sandbox_app.command()
def create(
    image: Annotated[str | None, typer.Option(help="Image; else the host's own programs.")] = None,
    lease_seconds: Annotated[
        float, typer.Option(min=0, help="Stopped when unused for so long; 0: its lifetime.")
    ] = 0.0,
    snapshot: Annotated[str | None, typer.Option(help="Start from these files.")] = None,
    url: Url = None,
    key: Key = None,
) -> None:
    """Make a sandbox on a server, and print its id."""
    from rock.cli.sandbox.life import run_create

    run_create(image, url=url, key=key, lease_seconds=lease_seconds, snapshot=snapshot)


@sandbox_app.command()
def ps(
    sandbox: Annotated[
        str | None, typer.Argument(metavar="[SANDBOX]", help="Show its processes.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
    url: Url = None,
    key: Key = None,
) -> None:
    """List sandboxes, or the processes of one."""
    from rock.cli.sandbox.views import run_ps

    run_ps(sandbox, url=url, key=key, as_json=json)


@sandbox_app.command()
def top(
    sandbox: Id,
    seconds: Annotated[float, typer.Option(min=0.1, help="Between two looks.")] = 2.0,
    rounds: Annotated[int, typer.Option(min=0, help="0: until interrupted.")] = 0,
    url: Url = None,
    key: Key = None,
) -> None:
    """The processes of a sandbox, busiest first, again and again."""
    from rock.cli.sandbox.views import run_top

    run_top(sandbox, url=url, key=key, seconds=seconds, rounds=rounds)


@sandbox_app.command(context_settings={"ignore_unknown_options": True})
def exec(
    sandbox: Id,
    argv: Annotated[list[str], typer.Argument(metavar="PROGRAM [ARG]...")],
    timeout_seconds: Annotated[float, typer.Option(help="It is killed after that.")] = 600.0,
    cwd: Annotated[str | None, typer.Option(help="Working directory inside.")] = None,
    user: User = None,
    env: Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE", help="A variable.")] = None,
    url: Url = None,
    key: Key = None,
) -> None:
    """Run a program in a sandbox; its output and exit code are this command's."""
    from rock.cli.arguments import pairs
    from rock.cli.sandbox.work import run_exec

    run_exec(
        sandbox,
        argv,
        url=url,
        key=key,
        timeout_seconds=timeout_seconds,
        cwd=cwd,
        user=user,
        env=pairs(env or [], "--env"),
    )


@sandbox_app.command()
def shell(sandbox: Id, user: User = None, url: Url = None, key: Key = None) -> None:
    """A live shell in a sandbox."""
    from rock.cli.sandbox.work import run_shell

    run_shell(sandbox, url=url, key=key, user=user)


@sandbox_app.command()
def cp(
    source: Annotated[str, typer.Argument(help="A path, or SANDBOX:PATH.")],
    target: Annotated[str, typer.Argument(help="A path, or SANDBOX:PATH.")],
    url: Url = None,
    key: Key = None,
) -> None:
    """Copy a file or a tree into a sandbox, or out of one."""
    from rock.cli.sandbox.work import run_cp

    run_cp(source, target, url=url, key=key)


@sandbox_app.command()
def logs(
    sandbox: Id,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Until it ends.")] = False,
    tail: Annotated[int | None, typer.Option(min=0, help="Only the last so many entries.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Entries as JSON, one per line.")] = False,
    url: Url = None,
    key: Key = None,
) -> None:
    """What was done to a sandbox, and what its commands wrote."""
    from rock.cli.sandbox.views import run_logs

    run_logs(sandbox, url=url, key=key, follow=follow, tail=tail, as_json=json)


@sandbox_app.command()
def env(
    sandbox: Id,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="For later commands.")
    ] = None,
    unset: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Take it away from later commands.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
    url: Url = None,
    key: Key = None,
) -> None:
    """Show, and change, the variables that later commands in a sandbox get."""
    from rock.cli.arguments import pairs
    from rock.cli.sandbox.views import run_env

    changes: dict[str, str | None] = dict.fromkeys(unset or [])
    changes.update(pairs(set_ or [], "--set"))
    run_env(sandbox, url=url, key=key, changes=changes, as_json=json)


@sandbox_app.command()
def reset(sandbox: Id, url: Url = None, key: Key = None) -> None:
    """Put a sandbox back to how it was made, and print the receipt."""
    from rock.cli.sandbox.life import run_reset

    run_reset(sandbox, url=url, key=key)


@sandbox_app.command()
def diff(sandbox: Id, url: Url = None, key: Key = None) -> None:
    """What was written (+) and removed (-) in a sandbox since it was made."""
    from rock.cli.sandbox.views import run_diff

    run_diff(sandbox, url=url, key=key)


@sandbox_app.command()
def snapshot(sandbox: Id, url: Url = None, key: Key = None) -> None:
    """Keep the files of a sandbox as they are, and print the snapshot's id."""
    from rock.cli.sandbox.life import run_snapshot

    run_snapshot(sandbox, url=url, key=key)


@sandbox_app.command()
def restore(
    sandbox: Id,
    snapshot: Annotated[str, typer.Argument(metavar="SNAPSHOT")],
    url: Url = None,
    key: Key = None,
) -> None:
    """Put a sandbox back to a snapshot, and print the receipt."""
    from rock.cli.sandbox.life import run_restore

    run_restore(sandbox, snapshot, url=url, key=key)


@sandbox_app.command()
def snapshots(
    drop: Annotated[list[str] | None, typer.Option(metavar="SNAPSHOT", help="Free it.")] = None,
    url: Url = None,
    key: Key = None,
) -> None:
    """List the snapshots that servers and harnesses keep."""
    from rock.cli.sandbox.life import run_snapshots

    run_snapshots(url=url, key=key, drop=drop or [])


@sandbox_app.command()
def stop(
    sandbox: Annotated[list[str], typer.Argument(metavar="SANDBOX...")],
    url: Url = None,
    key: Key = None,
) -> None:
    """End sandboxes and remove what they wrote."""
    from rock.cli.sandbox.life import run_stop

    run_stop(sandbox, url=url, key=key)


@sandbox_app.command()
def reap() -> None:
    """Remove what harnesses that are gone have left on this machine and its engine."""
    from rock.cli.sandbox.life import run_reap

    run_reap()
