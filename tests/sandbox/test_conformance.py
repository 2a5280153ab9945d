"""Every provider keeps the contract: one suite, a list of providers."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass

import pytest
from _pytest.mark import ParameterSet

from rock.config import read_environment
from rock.sandbox.base import Provider, SandboxSpec
from rock.sandbox.docker import DockerProvider
from rock.sandbox.local import LocalProvider
from rock.sandbox.remote import RemoteProvider
from rock.sandbox.remote.server import SandboxServer, serving
from rock.testing.sandbox_conformance import CHECKS, Check, Subject
from tests.needs import BUSYBOX_IMAGE, TEST_IMAGE


@dataclass(frozen=True)
class Candidate:
    make: Callable[[], AbstractAsyncContextManager[Provider]]
    spec: SandboxSpec


def docker_provider() -> Provider:
    return DockerProvider(host=read_environment().docker_host)


def on_docker(image: str | None) -> Candidate:
    return Candidate(docker_provider, SandboxSpec(image=image))


def docker_stream_provider() -> Provider:
    return DockerProvider(host=read_environment().docker_host, transport="stream")


@asynccontextmanager
async def remote_provider() -> AsyncGenerator[Provider]:
    """Local sandboxes, over HTTP."""
    server = SandboxServer(LocalProvider(), key="key of the test", allow_mounts=True)
    async with serving(server) as url, RemoteProvider(url, "key of the test") as provider:
        yield provider


PROVIDERS = {
    "local": (Candidate(LocalProvider, SandboxSpec()), pytest.mark.userns),
    "remote": (Candidate(remote_provider, SandboxSpec()), pytest.mark.userns),
    "docker-host": (on_docker(None), pytest.mark.docker),
    "docker-debian": (on_docker(TEST_IMAGE), pytest.mark.docker),
    "docker-busybox": (on_docker(BUSYBOX_IMAGE), pytest.mark.docker),
    "docker-stream": (
        Candidate(docker_stream_provider, SandboxSpec(image=BUSYBOX_IMAGE)),
        pytest.mark.docker,
    ),
}
PARTS = {
    "remote": {"running", "files", "records", "networks"},
    "docker-host": set[str](),
    "docker-debian": {"endings", "isolation", "networks", "escapes", "records", "states"},
    "docker-busybox": {"files"},
    "docker-stream": {"endings"},
}
"""What `make test` runs of providers that share nearly everything with others: the
themes in which they can differ. `make test-sandboxes` runs all of it."""


def _cases() -> list[ParameterSet]:
    cases: list[ParameterSet] = []
    for name, (candidate, needs) in PROVIDERS.items():
        for check in CHECKS:
            theme = check.__module__.rpartition(".")[2]
            marks = [needs] if theme in PARTS.get(name, {theme}) else [needs, pytest.mark.soak]
            case_id = f"{name}-{check.__name__}"
            cases.append(pytest.param(candidate, check, id=case_id, marks=marks))
    return cases


@pytest.mark.parametrize(("candidate", "check"), _cases())
async def test_provider_keeps_the_contract(candidate: Candidate, check: Check) -> None:
    async with candidate.make() as provider:
        await check(Subject(provider, candidate.spec))
