"""What the end-to-end tests share: clients of a running service, and a bounded wait."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

import httpx
from openai import AsyncOpenAI

from rock.modelservice.client.client import AdminClient, TrainerClient
from rock.modelservice.client.worker import Policy, serve
from rock.modelservice.hosting.server import Running
from rock.modelservice.hosting.supervise import ServiceProcess
from rock.modelservice.wire import Lease, SessionCreated, SessionSpec

Service = Running | ServiceProcess
HELLO = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


def admin_of(service: Service) -> AdminClient:
    return AdminClient(service.control_url, service.keys.admin_key)


def trainer_of(service: Service) -> TrainerClient:
    return TrainerClient(service.control_url, service.keys.trainer_key)


async def new_session(service: Service, spec: SessionSpec | None = None) -> SessionCreated:
    async with admin_of(service) as admin:
        return await admin.create_session(spec)


def agent(base_url: str, key: str = "any", *, max_retries: int = 0) -> AsyncOpenAI:
    """The real SDK, as agents configure it. Use as `async with`."""
    return AsyncOpenAI(base_url=base_url, api_key=key, max_retries=max_retries, timeout=20.0)


def raw_agent(service: Service, key: str | None = None) -> httpx.AsyncClient:
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    return httpx.AsyncClient(base_url=service.agent_url, headers=headers, timeout=20.0)


@asynccontextmanager
async def answering(service: Service, policy: Policy) -> AsyncGenerator[None, None]:
    """A trainer with this policy, over the trainer API."""
    keys = service.keys
    task = asyncio.ensure_future(
        serve(policy, url=service.control_url, key=keys.trainer_key, lease_seconds=5.0)
    )
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def eventually(condition: Callable[[], Awaitable[bool]], *, seconds: float = 10.0) -> None:
    """Wait until the condition holds; fails after the bound."""
    async with asyncio.timeout(seconds):
        while not await condition():  # noqa: ASYNC110 - another process has no event to wait for
            await asyncio.sleep(0.01)


def last_text(lease: Lease) -> str:
    return bytes(lease.request.messages[-1]).decode()
