"""Every provider keeps the contract: one suite, a list of providers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from rock.sandbox.base import Provider, SandboxSpec
from rock.sandbox.local import LocalProvider
from rock.testing.sandbox_conformance import CHECKS, Check, Subject


@dataclass(frozen=True)
class Candidate:
    make: Callable[[], Provider]
    spec: SandboxSpec


PROVIDERS = [
    pytest.param(Candidate(LocalProvider, SandboxSpec()), id="local", marks=pytest.mark.userns),
]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("candidate", PROVIDERS)
async def test_provider_keeps_the_contract(candidate: Candidate, check: Check) -> None:
    async with candidate.make() as provider:
        await check(Subject(provider, candidate.spec))
