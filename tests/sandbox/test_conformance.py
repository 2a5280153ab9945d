"""Every provider keeps the contract: one suite, a list of providers."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass

import pytest

from rock.config import read_environment
from rock.sandbox.base import Provider, SandboxSpec
from rock.sandbox.docker import DockerProvider
from rock.sandbox.local import LocalProvider
from rock.sandbox.remote import RemoteProvider
from rock.sandbox.server import SandboxServer, serving
from rock.testing.sandbox_conformance import CHECKS, Check, Subject
from tests.conftest import BUSYBOX_IMAGE, TEST_IMAGE


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


PROVIDERS = [
    pytest.param(Candidate(LocalProvider, SandboxSpec()), id="local", marks=pytest.mark.userns),
    pytest.param(Candidate(remote_provider, SandboxSpec()), id="remote", marks=pytest.mark.userns),
    pytest.param(on_docker(None), id="docker-host", marks=pytest.mark.docker),
    pytest.param(on_docker(TEST_IMAGE), id="docker-debian", marks=pytest.mark.docker),
    pytest.param(on_docker(BUSYBOX_IMAGE), id="docker-busybox", marks=pytest.mark.docker),
    pytest.param(
        Candidate(docker_stream_provider, SandboxSpec(image=BUSYBOX_IMAGE)),
        id="docker-stream",
        marks=pytest.mark.docker,
    ),
]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("candidate", PROVIDERS)
async def test_provider_keeps_the_contract(candidate: Candidate, check: Check) -> None:
    async with candidate.make() as provider:
        await check(Subject(provider, candidate.spec))
