"""The streamed reply to one call: spans as they come, keep-alives, and how it ends."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator

from rock.errors import JournalError, RockError
from rock.modelservice.dialects import Renderer
from rock.modelservice.planes.plane import EventStream
from rock.modelservice.service.service import Call, ModelService, Seen
from rock.modelservice.telemetry.logs import about

log = logging.getLogger(__name__)


class CallStream:
    """The streamed reply to one call, once its status is promised."""

    def __init__(self, service: ModelService, call: Call, renderer: Renderer) -> None:
        self._service = service
        self._call = call
        self._encoder = renderer.stream(call.id)
        self._failed = False
        """The call has no answer; everybody knows."""
        self._unfinished = False
        """It has one, which could not be written to the end."""

    def opened(self) -> EventStream:
        return EventStream(self._frames(), sent=self._sent, lost=self._lost)

    async def _frames(self) -> AsyncGenerator[bytes, None]:
        """Spans as they come and keep-alives until the call ends, then the rest of its events, or one
        that says what failed."""
        pause = self._service.config.keepalive_seconds
        clock = asyncio.get_running_loop().time
        seen, bound, quiet_since = Seen(), False, clock()
        try:
            while self._call.outcome is None:
                await self._call.news_within(quiet_since + pause - clock(), seen)
                spans = self._call.spans_after(seen)
                # By what the encoder takes, also if it shows that later.
                if any(spans) and not bound:
                    await self._service.bind(self._call)
                    bound = True
                frames = b"".join([self._encoder.delta(span) for span in spans])
                if not frames and clock() - quiet_since >= pause:
                    frames = self._encoder.keepalive()
                if frames:
                    yield frames
                    quiet_since = clock()
            answer = await self._call.answer()
        except RockError as exc:
            self._failed = True
            last = self._broken_off(exc)
        else:
            try:
                last = b"".join(self._encoder.answer(answer))
            except RockError as exc:  # the answer is there, and a retry gets it
                self._unfinished = True
                last = self._broken_off(exc)
        yield last

    def _broken_off(self, exc: RockError) -> bytes:
        log.info("stream ended badly", extra=about(call_id=self._call.id, code=exc.code))
        return self._encoder.error(for_agents(exc))

    def _sent(self) -> None:
        if self._unfinished:
            self._service.agent_left(self._call)
        elif not self._failed:
            self._service.sent(self._call)

    def _lost(self) -> None:
        if not self._failed:
            self._service.agent_left(self._call)


def for_agents(exc: RockError) -> RockError:
    """What an agent may hear of an error: not where on the host the journal is."""
    if isinstance(exc, JournalError):
        return JournalError("the service cannot store anything now; try again")
    return exc
