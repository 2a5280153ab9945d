"""A harness's door: where other processes of the same user may look at its sandboxes.

    async with LocalProvider() as provider, opened(provider):
        ...      # `rock sandbox ps|exec|logs|reset|…` reach what the provider makes

Snapshots, resets and logs are known to the harness alone, so it answers for them itself: with the server of
`rock sandbox serve`, on a unix socket in a directory that only its user can enter, without a key. Whoever
comes in can do with a sandbox what the harness can; new ones are the harness's to make.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from aiohttp import web

from rock.errors import SandboxError
from rock.sandbox import host_dirs
from rock.sandbox.base import Provider
from rock.sandbox.owner import Owner, wall_seconds
from rock.sandbox.remote.remote import RemoteProvider
from rock.sandbox.remote.served import HouseBook
from rock.sandbox.remote.server import SandboxServer

log = logging.getLogger(__name__)

KIND = "door"
_SOCKET = "api.sock"
_CLOSE_SECONDS = 2.0


@asynccontextmanager
async def opened(provider: Provider, *, base: Path | None = None) -> AsyncGenerator[Path | None]:
    """The door's socket while the block lasts; None, with a warning, where none can be made."""
    try:
        folder = host_dirs.make(
            base or host_dirs.default_base(), host_dirs.own_name(KIND), Owner.current()
        )
    except (SandboxError, OSError) as exc:
        log.warning("`rock sandbox` will not see these sandboxes: %s", exc)
        yield None
        return
    server = SandboxServer(provider, key=None, book=HouseBook(provider))
    runner = web.AppRunner(
        server.app(), handler_cancellation=True, shutdown_timeout=_CLOSE_SECONDS, access_log=None
    )
    try:
        async with server:
            await runner.setup()
            try:
                yield await _listen(runner, folder / _SOCKET)
            finally:
                await runner.cleanup()
    finally:
        host_dirs.remove(folder)


async def _listen(runner: web.AppRunner, path: Path) -> Path | None:
    try:
        await web.UnixSite(runner, path).start()
    except OSError as exc:  # a path that is too long for a socket
        log.warning("`rock sandbox` will not see these sandboxes: %s", exc)
        return None
    return path


def doors(base: Path | None = None) -> list[RemoteProvider]:
    """Clients of the harnesses of this user that run now; the caller closes them."""
    base = base or host_dirs.default_base()
    dead = set(host_dirs.orphans(base, now_seconds=wall_seconds()))
    return [
        RemoteProvider("http://harness", "", lease_seconds=0.0, socket=path)
        for path in sorted(base.glob(f"{KIND}-*/{_SOCKET}"))
        if path.parent not in dead
    ]
