"""Build an image by the engine's own builder, stopped when its time is over or nobody waits any more."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import docker.errors
import requests.exceptions
import urllib3.exceptions

from rock.errors import BuildFailed
from rock.sandbox.docker.engine import Engine
from rock.sandbox.docker.engine_calls import root_cause
from rock.sandbox.ending import to_the_end
from rock.sandbox.spec import BuildNetwork


async def build(
    engine: Engine,
    context: Path,
    *,
    dockerfile: str,
    tag: str,
    labels: Mapping[str, str],
    network: BuildNetwork,
    timeout_seconds: float,
    say: Callable[[str], None],
) -> None:
    """Build `tag`. `say` gets what the engine says, from another thread.

    Raises `BuildFailed` with the engine's reason, also when the time is over, and
    `ProviderUnavailable` where no engine answers. Cancelled, the build is stopped first.
    """
    stop = _Stop()

    def work(client: Any) -> str | None:
        client.hooks["response"] = [stop.keep]
        try:
            events = client.build(
                path=str(context),
                dockerfile=dockerfile,
                tag=tag,
                labels=dict(labels),
                network_mode=None if network == "engine" else network,
                rm=True,
                forcerm=True,
                decode=True,
                timeout=timeout_seconds,
            )
            return _what_failed(events, say)
        except docker.errors.APIError as exc:
            return exc.explanation or str(exc)
        except (docker.errors.DockerException, TypeError, OSError) as exc:
            return str(exc)  # of the directory: no Dockerfile, a file that cannot be read
        except (requests.exceptions.RequestException, urllib3.exceptions.HTTPError) as exc:
            return root_cause(exc)
        finally:
            stop.close()

    job = asyncio.ensure_future(engine.apart(f"build {tag}", work))
    try:
        await asyncio.wait({job}, timeout=timeout_seconds)
    finally:
        late = not job.done()
        if late:
            stop.now()
            await to_the_end(_settled(job))
    if late:
        raise BuildFailed(f"it took over {timeout_seconds:g} s")
    failed = job.result()
    if failed is not None:
        raise BuildFailed(failed.strip())


async def _settled(job: asyncio.Future[Any]) -> None:
    await asyncio.gather(job, return_exceptions=True)


class _Stop:
    """Ends the wait for the engine's answer. The engine gives up a build that nobody listens to."""

    def __init__(self) -> None:
        self._response: Any = None
        self._stopped = False

    def keep(self, response: Any, *args: Any, **kwargs: Any) -> None:
        """Called by the client with each answer, before its body is there."""
        self._response = response
        if self._stopped:
            self.now()

    def now(self) -> None:
        self._stopped = True
        if self._response is not None:
            # It may have been read to its end meanwhile.
            with contextlib.suppress(ValueError, OSError, RuntimeError):
                self._response.raw.shutdown()

    def close(self) -> None:
        """The client does not close what was not read to its end."""
        if self._response is not None:
            self._response.close()


def _what_failed(events: Iterator[dict[str, Any]], say: Callable[[str], None]) -> str | None:
    """Pass on what a build says; its error, or None."""
    for event in events:
        if "stream" in event:
            say(str(event["stream"]))
        elif "error" in event:
            return str(event["error"])
        elif "status" in event and "progress" not in event:
            say(f"{event['status']}\n")
    return None
