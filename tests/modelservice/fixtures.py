"""What ModelService's tests share: requests and completions, short to write."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from rock.modelservice import wire
from rock.modelservice.service.service import (
    AgentRequest,
    Call,
    ModelService,
    ServiceConfig,
    Session,
)
from rock.testing.clock import FakeClock

Message = Mapping[str, Any]


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def assistant(text: str) -> Message:
    return {"role": "assistant", "content": text}


def incoming(
    *messages: Message, key: str | None = None, retry: int = 0, stream: bool = False, **fields: Any
) -> AgentRequest:
    body = json.dumps({"model": "m", "messages": messages, **fields}).encode()
    return AgentRequest(
        dialect="chat",
        request=msgspec.json.decode(body, type=wire.CanonicalRequest),
        body=body,
        idempotency_key=key,
        retry_count=retry,
        stream=stream,
    )


def completion(
    lease: wire.Lease,
    text: str = "hello",
    *,
    prompt: Sequence[int] | None = (1, 2, 3),
    ids: Sequence[int] | None = (10, 11),
    logprobs: Sequence[float] | None = (-0.5, -0.25),
    version: int | None = 1,
) -> wire.Completion:
    choice = wire.Choice(
        wire.AssistantMessage(content=text),
        token_ids=None if ids is None else list(ids),
        logprobs=None if logprobs is None else list(logprobs),
    )
    return wire.Completion(
        lease.lease_id,
        [choice] * lease.request.n,
        prompt_token_ids=None if prompt is None else list(prompt),
        policy_version=version,
    )


@asynccontextmanager
async def running(
    state_dir: Path,
    clock: FakeClock | None = None,
    **config: Any,
) -> AsyncGenerator[ModelService]:
    """`config` are settings, and `wall` for a time of day that is moved by hand."""
    clocks: dict[str, FakeClock] = {"clock": clock or FakeClock()}
    if "wall" in config:
        clocks["wall"] = config.pop("wall")
    settings = ServiceConfig(state_dir=state_dir, **config)
    async with ModelService.open(settings, **clocks) as service:
        yield service


async def open_session(service: ModelService, **spec: Any) -> Session:
    made = await service.create_session(wire.SessionSpec(**spec))
    return service.session(made.session_id)


async def claim(service: ModelService, count: int = 1, **fields: Any) -> list[wire.Lease]:
    """What can be claimed now, without waiting."""
    fields = {"policy_version": 1, **fields}
    request = wire.ClaimRequest(worker_id="w", max_leases=count, wait_seconds=0.0, **fields)
    return (await service.claim(request)).leases


async def complete(service: ModelService, *items: wire.Completion) -> list[wire.ItemResult]:
    return (await service.complete(wire.CompleteRequest(list(items)))).results


async def ask(service: ModelService, session: Session, *messages: Message, **fields: Any) -> Call:
    return await service.submit(session, incoming(*messages, **fields))


async def answered(
    service: ModelService, session: Session, *messages: Message, text: str = "hello", **tokens: Any
) -> Call:
    """A call, claimed, completed and delivered."""
    call = await ask(service, session, *messages)
    (lease,) = await claim(service)
    assert lease.call_id == call.id
    (result,) = await complete(service, completion(lease, text, **tokens))
    assert result.error is None
    await call.answer()
    service.sent(call)
    return call


async def until(condition: Callable[[], bool]) -> None:
    """Let other tasks run until `condition` holds; five seconds at most."""
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110 - the condition is about code that tells nobody
            await asyncio.sleep(0)
