"""A live ModelService for tests, and a fake of the servers that hosted models run on.

`running_service` is a real service with real sockets and a real journal, in this process, so that a
test can look inside; `rock.modelservice.hosting.supervise.ServiceProcess` is the one in its own process.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from rock.errors import RockError
from rock.modelservice.client.worker import Policy
from rock.modelservice.hosting.server import Running, serving
from rock.modelservice.planes.listening import Adapter, Bounds, bind, listening, url_of
from rock.modelservice.planes.plane import Reply, Request
from rock.modelservice.settings import ServiceConfig

BOUNDS = Bounds(max_body_bytes=1 << 20)


@asynccontextmanager
async def running_service(
    state_dir: Path, *, policies: Mapping[str, Policy] | None = None, **settings: Any
) -> AsyncGenerator[Running, None]:
    """A service on free loopback ports. `settings` are fields of ServiceConfig, `policies` its
    backends by name."""
    config = ServiceConfig.model_validate({"state_dir": state_dir, **settings})
    async with serving(config, policies=policies) as running:
        yield running


FakeAnswer: TypeAlias = str | Reply
"""Text of a chat completion, or a whole HTTP reply."""


@dataclass
class FakeOpenAI:
    """A local server with one path, `/v1/chat/completions`, that plays a script and records."""

    url: str
    """Base URL, with `/v1`."""
    script: list[FakeAnswer]
    requests: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    keys: list[str] = field(default_factory=list[str])

    async def handle(self, request: Request) -> Reply:
        self.keys.append(request.headers.get("authorization", "").removeprefix("Bearer "))
        self.requests.append(json.loads(await request.read()))
        place = min(len(self.requests), len(self.script)) - 1
        answer = self.script[place]
        return answer if isinstance(answer, Reply) else completion_reply(answer)


@asynccontextmanager
async def fake_openai_server(script: Sequence[FakeAnswer]) -> AsyncGenerator[FakeOpenAI, None]:
    """Replies in the script's order; the last one is repeated."""
    listener = bind("127.0.0.1", 0)
    fake = FakeOpenAI(f"{url_of(listener)}/v1", list(script))
    async with listening(listener, Adapter(fake.handle, _refusal, BOUNDS)):
        yield fake


def completion_reply(text: str) -> Reply:
    """A chat completion as a hosted model sends it."""
    body = {
        "id": "chatcmpl-fake",
        "object": "chat.completion",
        "created": 1,
        "model": "fake",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": text},
                "finish_reason": "stop",
            }
        ],
        "usage": {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10},
    }
    return Reply(200, json.dumps(body).encode())


def error_reply(status: int, message: str, *, headers: Mapping[str, str] | None = None) -> Reply:
    """An error as a hosted model sends it."""
    error = {"message": message, "type": "error", "param": None, "code": None}
    return Reply(status, json.dumps({"error": error}).encode(), headers or {})


def _refusal(exc: RockError) -> Reply:
    return error_reply(exc.status, exc.message)
