"""What Prometheus can read of one service: counters and histograms as things happen, and gauges that
are computed when somebody looks. Names and meanings are in `docs/observability.md`.

No label holds anything that an agent chose, so that their number is bounded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from msgspec import Struct, field
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from rock.modelservice.telemetry.tallies import Count, Family, Spread, Tallies

CONTENT_TYPE = "text/plain; version=0.0.4"
_WAIT = (0.005, 0.025, 0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600)
_COMMIT = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3)
_BYTES = (256, 1024, 4096, 16384, 65536, 262144, 1048576, 4194304, 16777216)
_LAG = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5)


class Gauges(Struct, kw_only=True):
    """The service at one moment."""

    queued: Mapping[str, int] = field(default_factory=dict[str, int])
    """By backend; the same for `leased` and `waiting_workers`."""
    leased: Mapping[str, int] = field(default_factory=dict[str, int])
    waiting_workers: Mapping[str, int] = field(default_factory=dict[str, int])
    calls: Mapping[str, int] = field(default_factory=dict[str, int])
    """By state."""
    oldest_lease_seconds: float = 0.0
    connections: int = 0
    open_sessions: int = 0
    journal_bytes: int = 0
    policy_version: int | None = None
    paused: bool = False


class Metrics:
    """One registry, so that two services in one process do not share figures."""

    def __init__(self, read: Callable[[], Gauges]) -> None:
        self.registry = registry = CollectorRegistry()

        def counters(name: str, text: str, *labels: str) -> Tallies[Count]:
            tallies = Tallies(Count)
            registry.register(Family(f"rock_{name}", text, labels, tallies))
            return tallies

        def counter(name: str, text: str) -> Count:
            return counters(name, text)[()]

        def histograms(
            name: str, text: str, bounds: tuple[float, ...], *labels: str
        ) -> Tallies[Spread]:
            tallies = Tallies(lambda: Spread(bounds))
            registry.register(Family(f"rock_{name}", text, labels, tallies))
            return tallies

        def histogram(name: str, text: str, bounds: tuple[float, ...]) -> Spread:
            return histograms(name, text, bounds)[()]

        self.asked = counters("calls_asked", "Calls that came in, by dialect.", "dialect")
        self.answered = counter("calls_answered", "Calls that got an answer.")
        self.failed = counters("calls_failed", "Calls that ended without an answer.", "code")
        self.cancelled = counters("calls_cancelled", "Calls that nobody waits for.", "why")
        self.refused = counters("requests_refused", "Requests refused, by error code.", "code")
        self.reattached = counter("reattachments", "Retries that joined the call they repeat.")
        self.delivered = counter("deliveries", "Leases given out.")
        self.redelivered = counter("redeliveries", "Leases of calls that were handed out before.")
        self.expired = counter("leases_expired", "Leases that ran out.")
        self.untrainable = counters(
            "answers_untrainable", "Answers without usable tokens.", "reason"
        )
        self.tokens = counters("tokens", "Tokens of answers, as workers counted them.", "kind")
        self.opened = counter("sessions_opened", "Sessions opened.")
        self.closed = counters("sessions_closed", "Sessions closed.", "reason")
        self.intercepted = counters(
            "interceptor_runs", "Interceptors run, by what came of it.", "name", "result"
        )
        self.wait = histograms(
            "call_wait_seconds", "From being asked to the first lease.", _WAIT, "backend"
        )
        self.answer = histograms(
            "call_answer_seconds", "From being asked to the answer.", _WAIT, "backend"
        )
        self.lease = histogram("lease_seconds", "From a lease to its completion.", _WAIT)
        self.commit = histogram("journal_commit_seconds", "Time of one journal write.", _COMMIT)
        self.commit_bytes = histogram("journal_commit_bytes", "Size of it.", _BYTES)
        self.records = counter("journal_records", "Records written.")
        self.lag = histogram("event_loop_lag_seconds", "How late the event loop is.", _LAG)
        registry.register(_Now(read))

    def text(self) -> bytes:
        """The exposition format."""
        return generate_latest(self.registry)


class _Now(Collector):
    """Gauges, read when somebody looks."""

    def __init__(self, read: Callable[[], Gauges]) -> None:
        self._read = read

    def describe(self) -> Iterable[Metric]:
        return ()  # else registering would read a service that is not there yet

    def collect(self) -> Iterable[Metric]:
        now = self._read()
        yield _by("queue_depth", "Calls that can be claimed.", "backend", now.queued)
        yield _by("leases", "Leases that are out.", "backend", now.leased)
        yield _by("waiting_workers", "Claims that wait.", "backend", now.waiting_workers)
        yield _by("calls", "Calls by the state they are in.", "state", now.calls)
        for name, text, value in (
            ("parked_calls", "Calls without an answer yet.", _parked(now)),
            ("connections", "Connections of agents that wait.", now.connections),
            ("oldest_lease_seconds", "Age of the oldest lease.", now.oldest_lease_seconds),
            ("sessions_open", "Sessions that are open.", now.open_sessions),
            ("journal_bytes", "Size of the journal.", now.journal_bytes),
            ("policy_paused", "1 while the policy is paused.", int(now.paused)),
        ):
            yield GaugeMetricFamily(f"rock_{name}", text, value=value)
        if now.policy_version is not None:
            yield GaugeMetricFamily(
                "rock_policy_version", "Version the trainer told.", value=now.policy_version
            )


def _parked(now: Gauges) -> int:
    return now.calls.get("queued", 0) + now.calls.get("leased", 0)


def _by(name: str, text: str, label: str, values: Mapping[str, int]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(f"rock_{name}", text, labels=[label])
    for value, count in sorted(values.items()):
        family.add_metric([value], count)
    return family
