"""Each scheduling rule is worth its bar on the published distributions, and staleness stays bounded."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def benchmark() -> ModuleType:
    """`benchmarks/scheduler.py`, which is a program and no package."""
    spec = importlib.util.spec_from_file_location(
        "scheduler_benchmark", ROOT / "benchmarks" / "scheduler.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_every_rule_gains_at_least_its_bar(benchmark: ModuleType) -> None:
    gains = {gain.name: gain.times for gain in benchmark.measure(3)}
    assert gains.keys() >= benchmark.BARS.keys()
    assert {name: gains[name] for name, bar in benchmark.BARS.items() if gains[name] < bar} == {}
