"""Whatever agents, workers, the clock and faults do, the service is what the simple model says."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.modelservice.machine import ServiceMachine

EXAMPLES, STEPS = 300, 50
"""As `make test` runs it."""


def run(examples: int, steps: int, *, derandomize: bool, shrink: bool = True) -> None:
    phases = [Phase.generate, *([Phase.shrink] if shrink else [])]
    run_state_machine_as_test(
        ServiceMachine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            derandomize=derandomize,
            database=None,
            deadline=None,
            print_blob=True,
            phases=phases,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
        ),
    )


def test_whatever_happens_service_and_model_agree() -> None:
    run(EXAMPLES, STEPS, derandomize=True)


@pytest.mark.soak
@pytest.mark.timeout(1500)
def test_service_and_model_agree_for_long() -> None:
    run(1500, 80, derandomize=False)
