"""OpenTelemetry spans of calls, where `rock[otel]` is installed; without it nothing happens.

One span per call, from being asked to its end, below the span whose `traceparent` the agent sent;
claims, lost leases and retries are events in it. Its own `traceparent` travels to the worker in the
lease. Spans carry ids and counts, never text. Who exports them is OpenTelemetry's business: see
`docs/observability.md`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from opentelemetry.trace import Span

HEADERS = ("traceparent", "tracestate")
NO_TRACE: Mapping[str, str] = {}
Attributes = Mapping[str, str | int | float | bool]


def trace_of(headers: Mapping[str, str]) -> Mapping[str, str]:
    """Those headers of a request that name a trace."""
    return {name: headers[name] for name in HEADERS if name in headers}


class CallSpans(Protocol):
    """Spans by call id. Unknown ids are fine: a call can be older than the process."""

    @property
    def recording(self) -> bool:
        """Otherwise there is no need to tell."""
        ...

    def start(self, call_id: str, parent: Mapping[str, str], attributes: Attributes) -> None: ...
    def event(self, call_id: str, name: str, attributes: Attributes) -> None: ...
    def end(self, call_id: str, attributes: Attributes, *, error: str | None = None) -> None: ...
    def traceparent(self, call_id: str) -> str | None: ...


class NoSpans:
    recording = False

    def start(self, call_id: str, parent: Mapping[str, str], attributes: Attributes) -> None:
        pass

    def event(self, call_id: str, name: str, attributes: Attributes) -> None:
        pass

    def end(self, call_id: str, attributes: Attributes, *, error: str | None = None) -> None:
        pass

    def traceparent(self, call_id: str) -> str | None:
        return None


class OtelSpans:
    """Spans of OpenTelemetry's global tracer provider. Raises ImportError without its package."""

    def __init__(self) -> None:
        from opentelemetry import trace
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._trace = trace
        self._tracer = trace.get_tracer("rock.modelservice")
        self._propagator = TraceContextTextMapPropagator()
        self._spans: dict[str, Span] = {}

    @cached_property
    def recording(self) -> bool:
        """Whether somebody had set up OpenTelemetry in this process when it was first asked."""
        provider = self._trace.get_tracer_provider()
        return not isinstance(provider, self._trace.ProxyTracerProvider)

    def start(self, call_id: str, parent: Mapping[str, str], attributes: Attributes) -> None:
        context = self._propagator.extract(parent) if parent else None
        span = self._tracer.start_span(
            "rock.call",
            context=context,
            kind=self._trace.SpanKind.SERVER,
            attributes=_named(attributes),
        )
        if span.is_recording():
            self._spans[call_id] = span

    def event(self, call_id: str, name: str, attributes: Attributes) -> None:
        span = self._spans.get(call_id)
        if span is not None:
            span.add_event(name, _named(attributes))

    def end(self, call_id: str, attributes: Attributes, *, error: str | None = None) -> None:
        span = self._spans.pop(call_id, None)
        if span is None:
            return
        span.set_attributes(_named(attributes))
        if error is not None:
            span.set_status(self._trace.Status(self._trace.StatusCode.ERROR, error))
        span.end()

    def traceparent(self, call_id: str) -> str | None:
        span = self._spans.get(call_id)
        if span is None:
            return None
        carrier: dict[str, str] = {}
        self._propagator.inject(carrier, self._trace.set_span_in_context(span))
        return carrier.get("traceparent")


def call_spans() -> CallSpans:
    try:
        # A cached property is read like any other, which protocols cannot say.
        return OtelSpans()  # pyright: ignore[reportReturnType]
    except ImportError:
        return NoSpans()


def _named(attributes: Attributes) -> dict[str, str | int | float | bool]:
    return {f"rock.{name}": value for name, value in attributes.items()}
