"""Bodies that parse and cannot be kept: each dialect and the control plane answer 400, in its shape."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from rock.testing.service import running_service
from tests.modelservice.live import new_session, raw_agent

SURROGATE = '"\\ud800"'
BODIES = {
    "/v1/chat/completions": '{"model": "m", "messages": [{"role": "user", "content": %s}]}',
    "/v1/completions": '{"model": "m", "prompt": %s}',
    "/v1/responses": '{"model": "m", "input": [{"role": "user", "content": %s}]}',
    "/v1/messages": '{"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": %s}]}',
}


def deep(levels: int) -> str:
    return "[" * levels + "]" * levels


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize(
    "content", [SURROGATE, deep(900), deep(100_000), '{"a":' * 50_000 + "1" + "}" * 50_000]
)
async def test_what_cannot_be_kept_is_refused_in_the_dialects_shape(
    tmp_path: Path, path: str, content: str
) -> None:
    async with running_service(tmp_path) as service:
        session = await new_session(service)
        async with raw_agent(service, session.key) as http:
            body = BODIES[path] % content
            for extra in ("", f', "metadata": {{"x": {content}}}'):
                given = body[:-1] + extra + "}"
                reply = await http.post(path, content=given)
                assert reply.status_code == 400, reply.text[:200]
                error: dict[str, Any] = reply.json()["error"]
                assert error["message"]
            assert (
                service.service.session_info(service.service.authenticate(session.key).id).calls
                == 0
            )


@pytest.mark.parametrize("value", [SURROGATE, deep(100_000)])
async def test_the_control_plane_refuses_it_too(tmp_path: Path, value: str) -> None:
    async with running_service(tmp_path) as service, httpx.AsyncClient() as http:
        for path, body in (
            ("/admin/v1/sessions", '{"labels": {"a": %s}}'),
            ("/trainer/v1/claim", '{"worker_id": %s}'),
            ("/trainer/v1/fail", '{"failures": [{"lease_id": %s}]}'),
        ):
            reply = await http.post(
                service.control_url + path,
                content=body % value,
                headers={"Authorization": f"Bearer {service.keys.admin_key}"},
            )
            assert reply.status_code == 400, (path, reply.text[:200])
