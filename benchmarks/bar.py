"""One bar: a figure and what it must keep to."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Bar:
    name: str
    value: float
    bound: float
    at_least: bool = False

    @property
    def kept(self) -> bool:
        return self.value >= self.bound if self.at_least else self.value <= self.bound

    def __str__(self) -> str:
        sign = ">=" if self.at_least else "<="
        verdict = "ok" if self.kept else "FALLS SHORT"
        return f"{verdict:12}{self.name}: {_shown(self.value)} ({sign} {self.bound:g})"


def _shown(value: float) -> str:
    return f"{value:.2f}" if value >= 1 else f"{value:.3g}"
