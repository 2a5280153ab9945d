"""Counters and histograms that cost next to nothing to count with, for one thread.

prometheus_client's own take a lock for every bucket and look every label up; a call is counted a dozen
times on its way. Here counting is an addition, and the families of prometheus_client are made when
somebody reads.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from typing import Generic, TypeVar

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector


class Count:
    """`value` goes up; whoever counts adds to it."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0.0


class Spread:
    """How many observations were up to each bound, and their sum."""

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def add_to(self, family: HistogramMetricFamily, labels: Sequence[str]) -> None:
        names = [*map(_shown, self._bounds), "+Inf"]
        buckets = list(zip(names, map(float, accumulate(self._counts)), strict=True))
        family.add_metric(labels, buckets=buckets, sum_value=self._sum)


T = TypeVar("T", Count, Spread)
LabelValues = str | tuple[str, ...]
"""Of one label, or of several in their order."""


class Tallies(dict[LabelValues, T]):
    """The tallies of one name by the values of their labels, each made at its first use."""

    def __init__(self, make: Callable[[], T]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, values: LabelValues) -> T:
        tally = self[values] = self._make()
        return tally


class Family(Collector, Generic[T]):
    """What Prometheus reads of tallies."""

    def __init__(
        self, name: str, text: str, label_names: Sequence[str], tallies: Tallies[T]
    ) -> None:
        self._name = name
        self._text = text
        self._label_names = label_names
        self._tallies = tallies

    def collect(self) -> Iterable[Metric]:
        counts = CounterMetricFamily(self._name, self._text, labels=self._label_names)
        spreads = HistogramMetricFamily(self._name, self._text, labels=self._label_names)
        family: Metric = counts
        for values, tally in self._tallies.items():
            labels = (values,) if isinstance(values, str) else values
            if isinstance(tally, Count):
                counts.add_metric(labels, tally.value)
            else:
                tally.add_to(spreads, labels)
                family = spreads
        yield family


def _shown(bound: float) -> str:
    return str(float(bound))
