"""The worker loop against a live service: batches, renewals, failures, lost leases, shutdown."""

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import openai
import pytest

from rock import process
from rock.config import inherited_environment
from rock.errors import ServiceUnavailable, UpstreamUnauthorized
from rock.modelservice.client.client import TrainerClient
from rock.modelservice.client.worker import Worker, serve
from rock.modelservice.hosting.server import Running
from rock.modelservice.policies.scripted import complete
from rock.modelservice.wire import AssistantMessage, Completion, ItemResult, Lease, SessionSpec
from rock.testing import ScriptedPolicy
from rock.testing.service import running_service
from tests.modelservice.live import admin_of, agent, eventually, new_session, trainer_of

USER: Any = {"role": "user", "content": "hi"}


def say(lease: Lease, content: str) -> Completion:
    return complete(lease, [AssistantMessage(content=content)])


async def test_a_policy_gets_batches_up_to_the_bound(tmp_path: Path) -> None:
    sizes: list[int] = []

    async def policy(leases: list[Lease]) -> list[Completion]:
        sizes.append(len(leases))
        return [say(lease, "ok") for lease in reversed(leases)]

    async with running_service(tmp_path) as service, trainer_of(service) as desk:
        session = await new_session(service)
        async with agent(session.base_url) as client:
            asked = [
                asyncio.ensure_future(
                    client.chat.completions.create(model=f"m{i}", messages=[USER])
                )
                for i in range(7)
            ]

            async def all_queued() -> bool:
                return service.service.stats().queued == 7

            await eventually(all_queued)
            stop = asyncio.Event()
            working = asyncio.ensure_future(Worker(policy, desk, batch=3).run(stop))
            replies = await asyncio.gather(*asked)
            stop.set()
            await working
    assert sizes == [3, 3, 1]
    assert [reply.model for reply in replies] == [f"m{i}" for i in range(7)]


class CountingClient(TrainerClient):
    """Says when it has renewed often enough."""

    def __init__(self, service: Running, enough: int) -> None:
        super().__init__(service.control_url, service.keys.trainer_key)
        self.renewals = 0
        self.enough = enough
        self.reached = asyncio.Event()

    async def renew(
        self, lease_ids: Sequence[str], *, lease_seconds: float = 60.0
    ) -> list[ItemResult]:
        results = await super().renew(lease_ids, lease_seconds=lease_seconds)
        self.renewals += 1
        if self.renewals >= self.enough:
            self.reached.set()
        return results


async def test_leases_are_renewed_while_the_policy_works(tmp_path: Path) -> None:
    deliveries: list[int] = []
    async with running_service(tmp_path) as service, CountingClient(service, 4) as desk:

        async def slow(leases: list[Lease]) -> list[Completion]:
            deliveries.append(leases[0].delivery)
            await desk.reached.wait()  # four thirds of a lease
            return [say(lease, "slow") for lease in leases]

        session = await new_session(service)
        stop = asyncio.Event()
        working = asyncio.ensure_future(Worker(slow, desk, lease_seconds=1.5).run(stop))
        async with agent(session.base_url) as client:
            reply = await client.chat.completions.create(model="m", messages=[USER])
        stop.set()
        await working
    assert deliveries == [1]
    assert reply.choices[0].message.content == "slow"


async def test_a_policy_call_whose_agent_left_is_cancelled(tmp_path: Path) -> None:
    started, cancelled = asyncio.Event(), asyncio.Event()

    async def endless(leases: list[Lease]) -> list[Completion]:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        return []

    async with (
        running_service(tmp_path, cancel_grace_seconds=0.0) as service,
        trainer_of(service) as desk,
        admin_of(service) as admin,
    ):
        session = await new_session(service)
        stop = asyncio.Event()
        working = asyncio.ensure_future(Worker(endless, desk, lease_seconds=1.0).run(stop))
        async with agent(session.base_url) as client:
            asked = asyncio.ensure_future(
                client.chat.completions.create(model="m", messages=[USER])
            )
            await asyncio.wait_for(started.wait(), 5)
            asked.cancel()
            await asyncio.gather(asked, return_exceptions=True)
        await asyncio.wait_for(cancelled.wait(), 5)
        stop.set()
        await working

        async def call_is_cancelled() -> bool:
            return (await admin.session(session.session_id)).cancelled == 1

        await eventually(call_is_cancelled)


async def test_what_a_policy_forgets_or_gets_wrong_fails_the_call(tmp_path: Path) -> None:
    async def policy(leases: list[Lease]) -> list[Completion]:
        if leases[0].request.model == "forget":
            return []
        return [complete(leases[0], [AssistantMessage(content="x")] * 2)]

    async with running_service(tmp_path) as service, trainer_of(service) as desk:
        session = await new_session(service)
        stop = asyncio.Event()
        working = asyncio.ensure_future(Worker(policy, desk).run(stop))
        async with agent(session.base_url) as client:
            with pytest.raises(openai.InternalServerError, match="no completion for this call"):
                await client.chat.completions.create(model="forget", messages=[USER])
            with pytest.raises(openai.InternalServerError, match="completion was refused"):
                await client.chat.completions.create(model="two", messages=[USER])
        stop.set()
        await working


async def test_a_stopped_worker_gives_its_leases_back_at_once(tmp_path: Path) -> None:
    started = asyncio.Event()

    async def endless(leases: list[Lease]) -> list[Completion]:
        started.set()
        await asyncio.Event().wait()
        return []

    async with running_service(tmp_path) as service, trainer_of(service) as trainer:
        url, key = service.control_url, service.keys.trainer_key
        session = await new_session(service)
        first = asyncio.ensure_future(serve(endless, url=url, key=key, lease_seconds=3600))
        async with agent(session.base_url) as client:
            asked = asyncio.ensure_future(
                client.chat.completions.create(model="m", messages=[USER])
            )
            await asyncio.wait_for(started.wait(), 5)
            first.cancel()
            await asyncio.gather(first, return_exceptions=True)
            [lease] = (await trainer.claim("next", wait_seconds=0)).leases
            await trainer.complete([say(lease, "second")])
            assert (await asked).choices[0].message.content == "second"
    assert lease.delivery == 2


async def test_a_service_that_is_gone_for_good_ends_the_loop(tmp_path: Path) -> None:
    async with running_service(tmp_path) as service:
        url, key = service.control_url, service.keys.trainer_key
    with pytest.raises(ServiceUnavailable, match="does not answer"):
        await serve(ScriptedPolicy([]), url=url, key=key, give_up_seconds=0.2)


PROGRAM = """
import sys
from rock.modelservice.client.client import TrainerClient
from rock.modelservice.policies.scripted import complete
from rock.modelservice.hosting.server import Running
from rock.modelservice.wire import AssistantMessage
from rock.modelservice.client.worker import serve_blocking

def policy(leases):
    return [complete(lease, [AssistantMessage(content="plain")]) for lease in leases]

serve_blocking(policy, url=sys.argv[1], key=sys.argv[2])
print("ended cleanly")
"""


async def test_a_trainer_program_of_one_plain_function_ends_cleanly_on_sigterm(
    tmp_path: Path,
) -> None:
    async with running_service(tmp_path) as service:
        argv = [sys.executable, "-c", PROGRAM, service.control_url, service.keys.trainer_key]
        child = await process.start(argv, env=inherited_environment(), stdout=process.PIPE)
        try:
            session = await new_session(service)
            async with agent(session.base_url) as client:
                reply = await client.chat.completions.create(model="m", messages=[USER])
            child.terminate()
            out, _ = await asyncio.wait_for(child.communicate(), 10)
        finally:
            await process.stop(child)
    assert reply.choices[0].message.content == "plain"
    assert (child.returncode, out) == (0, b"ended cleanly\n")


async def test_a_backend_whose_key_is_refused_takes_no_more_sessions(tmp_path: Path) -> None:
    refused = ScriptedPolicy(lambda _: UpstreamUnauthorized("the provider refused the key"))
    async with running_service(tmp_path, policies={"hosted": refused}) as service:
        spec = SessionSpec(backend="hosted")
        session = await new_session(service, spec)
        async with agent(session.base_url) as client:
            with pytest.raises(openai.AuthenticationError, match="provider refused the key"):
                await client.chat.completions.create(model="m", messages=[USER])
        async with admin_of(service) as admin:
            assert (await admin.health()).backends == {"hosted": "the provider refused the key"}
            with pytest.raises(UpstreamUnauthorized, match="refused the key"):
                await admin.create_session(spec)
            assert (await admin.create_session()).key
