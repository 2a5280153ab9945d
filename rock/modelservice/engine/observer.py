"""Who sees what happens to calls and sessions: metrics, log lines and spans, told in one place.

The engine tells it what it did; nothing here changes anything or waits. Log lines and spans carry
ids, codes and counts, never what an agent or a model said.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from rock.errors import RockError
from rock.modelservice.engine.calls import Call
from rock.modelservice.engine.queue import Held
from rock.modelservice.journal import records
from rock.modelservice.sessions import Session
from rock.modelservice.states import Event
from rock.modelservice.telemetry.logs import about
from rock.modelservice.telemetry.metrics import Gauges, Metrics
from rock.modelservice.telemetry.tracing import call_spans

log = logging.getLogger("rock.modelservice")


class Observer:
    """Metrics, logs and spans of one service."""

    def __init__(self, read: Callable[[], Gauges]) -> None:
        self.metrics = Metrics(read)
        self.spans = call_spans()

    # --- sessions ---

    def session_opened(self, session: Session) -> None:
        self.metrics.opened.value += 1
        log.info("session opened", extra=about(session_id=session.id, backend=session.spec.backend))

    def session_closed(self, session: Session) -> None:
        reason = session.close_reason
        self.metrics.closed[str(reason)].value += 1
        log.info(
            "session closed",
            extra=about(
                session_id=session.id, reason=reason, limit=session.limit, calls=session.calls
            ),
        )

    # --- calls ---

    def asked(self, call: Call, trace: Mapping[str, str]) -> None:
        self.metrics.asked[call.dialect].value += 1
        if self.spans.recording:
            self.spans.start(
                call.id,
                trace,
                {
                    "call_id": call.id,
                    "session_id": call.session_id,
                    "dialect": call.dialect,
                    "backend": call.backend,
                },
            )
        if log.isEnabledFor(logging.DEBUG):
            log.debug("call asked", extra=about(call_id=call.id, session_id=call.session_id))

    def attached(self, call: Call) -> None:
        self.metrics.reattached.value += 1
        self.spans.event(call.id, "reattached", {})
        log.info("retry joined its call", extra=about(call_id=call.id, session_id=call.session_id))

    def claimed(self, call: Call, held: Held) -> None:
        self.metrics.delivered.value += 1
        if call.deliveries > 1:
            self.metrics.redelivered.value += 1
            log.warning(
                "call handed out again",
                extra=about(
                    call_id=call.id,
                    session_id=call.session_id,
                    delivery=call.deliveries,
                    worker_id=held.worker_id,
                ),
            )
        else:
            self.metrics.wait[call.backend].observe(max(0.0, held.since - call.asked_at))
        if self.spans.recording:
            seen: dict[str, str | int | float | bool] = {
                "worker_id": held.worker_id,
                "delivery": call.deliveries,
            }
            self.spans.event(call.id, "claimed", seen)

    def expired(self, call: Call) -> None:
        self.metrics.expired.value += 1
        self.spans.event(call.id, "lease_expired", {})
        log.warning(
            "lease expired",
            extra=about(call_id=call.id, session_id=call.session_id, lost=call.lost),
        )

    def answered(
        self, call: Call, record: records.CallAnswered, held: Held | None, now: float
    ) -> None:
        metrics = self.metrics
        metrics.answered.value += 1
        metrics.answer[call.backend].observe(max(0.0, now - call.asked_at))
        if held is not None:
            metrics.lease.observe(max(0.0, now - held.since))
        if record.usage is not None:
            metrics.tokens["prompt"].value += record.usage.prompt_tokens
            metrics.tokens["completion"].value += record.usage.completion_tokens
        if record.untrainable is not None:
            metrics.untrainable[reason_class(record.untrainable)].value += 1
        if self.spans.recording or log.isEnabledFor(logging.DEBUG):
            self._tell_answered(call, record)

    def _tell_answered(self, call: Call, record: records.CallAnswered) -> None:
        seen: dict[str, str | int | float | bool] = {"deliveries": call.deliveries}
        if record.usage is not None:
            seen["prompt_tokens"] = record.usage.prompt_tokens
            seen["completion_tokens"] = record.usage.completion_tokens
        if record.untrainable is not None:
            seen["untrainable"] = reason_class(record.untrainable)
        if record.policy_version is not None:
            seen["policy_version"] = record.policy_version
        self.spans.end(call.id, seen)
        log.debug("call answered", extra=about(call_id=call.id, session_id=call.session_id, **seen))

    def ended(self, call: Call, event: Event, error: RockError) -> None:
        """A call ended without an answer."""
        if event in (Event.FAIL, Event.DEADLINE):
            self.metrics.failed[error.code].value += 1
            word = "call failed"
        else:
            self.metrics.cancelled[event.value].value += 1
            word = "call cancelled"
        self.spans.end(call.id, {"deliveries": call.deliveries}, error=error.code)
        log.info(
            word,
            extra=about(
                call_id=call.id, session_id=call.session_id, code=error.code, event=event.value
            ),
        )

    # --- interceptors ---

    def intercepted(self, name: str, result: str) -> None:
        self.metrics.intercepted[name, result].value += 1

    def interceptors_changed(
        self, record: records.InterceptorSet | records.InterceptorRemoved
    ) -> None:
        word = "set" if isinstance(record, records.InterceptorSet) else "removed"
        log.info("interceptor changed", extra=about(name=record.name, change=word))

    # --- the process ---

    def committed(self, seconds: float, count: int, size: int) -> None:
        self.metrics.commit.observe(seconds)
        self.metrics.commit_bytes.observe(size)
        self.metrics.records.value += count


_REASONS = (
    "no prompt_token_ids",
    "empty prompt_token_ids",
    "no token_ids",
    "no logprobs",
    "empty token_ids",
    "outside 0..",
    "not finite",
    "above 0",
    "edited",
    "version_spans",
    "prompt_parts",
    "parts",
    "decoded",
    "several policy versions",
    "logprobs",
)


def reason_class(reason: str) -> str:
    """A reason without its figures, so that metrics have few."""
    known = next((word for word in _REASONS if word in reason), None)
    if known is None:
        return "other"
    return {
        "outside 0..": "token ids out of range",
        "not finite": "logprobs not finite",
        "above 0": "logprobs above 0",
        "logprobs": "misaligned logprobs",
        "version_spans": "misaligned version_spans",
        "prompt_parts": "misaligned prompt_parts",
        "parts": "misaligned parts",
        "decoded": "text that the tokens do not spell",
    }.get(known, known)
