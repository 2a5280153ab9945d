"""From a model's text to content, reasoning and tool calls: whole or as it is sampled, one parser.

An answer is read in this order: reasoning, if it begins with the opening tag (or the prompt ended
inside the reasoning), then content with calls anywhere in it.

- A call comes out when its last character has been read, and not before: what looked like a call
  and is none comes out verbatim as content, which a call already announced could not take back.
- The space before a call, the space after it unless text follows, and the line breaks around the
  reasoning belong to the tags.
- Nothing is mended. A truncated call is content; a truncated reasoning is reasoning.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from msgspec import Raw

from rock.errors import InvalidTransition
from rock.modelservice.text.calls import Call
from rock.modelservice.text.events import (
    ContentDelta,
    Event,
    Markup,
    ReasoningDelta,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
    message_of,
)
from rock.modelservice.text.formats import Format, format_named
from rock.modelservice.text.reader import NEWLINES, SPACE, Markers, NotACall, Reader, Reading
from rock.modelservice.text.schema import argument_types
from rock.modelservice.wire import AssistantMessage

TextDelta: TypeAlias = type[ContentDelta] | type[ReasoningDelta]


def parse(
    text: str,
    format: str | Format,
    *,
    tools: Sequence[Raw] | None = None,
    in_reasoning: bool = False,
) -> AssistantMessage:
    """The message that `text` spells: `TextParser`, fed once. The parameters are its own."""
    parser = TextParser(format, tools=tools, in_reasoning=in_reasoning)
    return message_of([*parser.feed(text), *parser.finish()])


class TextParser:
    """Reads one answer. `feed` it as it comes, then `finish` it.

    `format`: a name in `FORMATS`, or a `Format`. `tools`: the request's, for the formats that need
    their schemas. `in_reasoning`: the prompt ended with the reasoning's opening tag. However the
    text is cut up, the events say the same: only where deltas are split differs.

    Raises `ConfigError` (unknown name) and `BadRequest` (a tool is not JSON) when made.
    """

    def __init__(
        self,
        format: str | Format,
        *,
        tools: Sequence[Raw] | None = None,
        in_reasoning: bool = False,
    ) -> None:
        self._format = format_named(format) if isinstance(format, str) else format
        self._types = argument_types(tools or [])
        self._reader = Reader()
        self._events: list[Event] = []
        self._calls = 0
        self._in_section = False
        self._after_call = False
        openers = self._format.calls.openers if self._format.calls else ()
        section, stops = self._format.section, self._format.stops
        self._outside = Markers(*((section.opening,) if section else openers), *stops)
        self._inside = Markers(*openers, *((section.closing,) if section else ()), *stops)
        self._reading = self._read(in_reasoning)

    def feed(self, delta: str) -> list[Event]:
        """What `delta`, the next piece of the text, makes certain."""
        if self._reader.ended:
            raise InvalidTransition("text fed to a parser that was finished; make a new one")
        self._reader.push(delta)
        return self._advance()

    def finish(self) -> list[Event]:
        """What was held back, now that no more text comes. A second time: nothing."""
        if self._reader.ended:
            return []
        self._reader.end()
        return self._advance()

    def _advance(self) -> list[Event]:
        next(self._reading, None)
        events, self._events = self._events, []
        return events

    def _read(self, in_reasoning: bool) -> Reading[None]:
        gap = yield from self._reader.run(SPACE)
        tags = self._format.reasoning
        opened = (yield from self._reader.one_of(tags.opening)) if tags else None
        if tags and (opened or in_reasoning):
            text = "" if opened else gap.lstrip("\r\n")
            self._emit(Markup(gap.removesuffix(text) + (opened or "")))
            yield from self._read_reasoning(tags.closing, text)
            gap = ""
        yield from self._read_answer(gap)

    def _read_reasoning(self, closing: str, gap: str) -> Reading[None]:
        if not gap:
            yield from self._skip_newlines()
        markers = Markers(closing, *self._format.stops)
        while True:
            gap, marker = yield from self._read_text(markers, ReasoningDelta, "\r\n", gap)
            if marker is None:
                self._emit(ReasoningDelta(gap))
                return
            if marker == closing:
                yield from self._reader.expect(closing)
                self._emit(Markup(gap + closing))
                yield from self._skip_newlines()
                return
            gap = yield from self._read_stops(gap, ReasoningDelta)

    def _read_answer(self, gap: str) -> Reading[None]:
        gap += yield from self._reader.run(SPACE)
        bare = self._format.calls.bare_opener if self._format.calls else ""
        if bare and (yield from self._reader.peek()) == bare:
            yield from self._read_calls(gap)
            gap = ""
        while True:
            markers = self._inside if self._in_section else self._outside
            gap, marker = yield from self._read_text(markers, ContentDelta, " \t\r\n", gap)
            if marker is None:
                self._emit(self._space(gap, ContentDelta))
                return
            if marker in self._format.stops:
                gap = yield from self._read_stops(gap, ContentDelta)
            elif (
                self._in_section and self._format.section and marker == self._format.section.closing
            ):
                yield from self._reader.expect(marker)
                self._in_section = False
                self._emit(Markup(gap + marker))
                gap = ""
            else:
                yield from self._read_calls(gap)
                gap = ""

    def _read_text(
        self,
        markers: Markers,
        event: TextDelta,
        held: str,
        gap: str = "",
    ) -> Reading[tuple[str, str | None]]:
        """Emit text as it comes, up to a marker or the end; say which and the `held` space before.

        The space is held back because only what follows says whether it is text.
        """
        gaps = [gap]
        while True:
            text, marker = self._reader.until(markers)
            body = text.rstrip(held)
            if body:
                self._emit(event("".join(gaps) + body))
                gaps = []
            gaps.append(text[len(body) :])
            if marker or self._reader.ended:
                return "".join(gaps), marker
            yield

    def _read_calls(self, gap: str) -> Reading[None]:
        """Read what an opener introduces; if it is no call, it is content."""
        self._reader.forget()
        start = self._reader.mark()
        syntax, section = self._format.calls, self._format.section
        assert syntax is not None, "an opener was found, so there is a syntax"
        try:
            if section and not self._in_section:
                yield from self._reader.expect(section.opening)
                yield from self._reader.run(SPACE)
            calls = yield from syntax.read(self._reader, self._types)
        except NotACall:
            self._emit(ContentDelta(gap + self._reader.since(start)))
            return
        self._in_section = section is not None
        source = self._reader.since(start)
        self._emit(Markup(gap))
        self._emit_calls(calls, source)

    def _read_stops(self, gap: str, event: TextDelta) -> Reading[str]:
        """Take the stops and space from here on: markup at the end of the text, else text.

        In the latter case the text goes on, and the space at the end of what was taken is held.
        """
        self._reader.forget()
        start = self._reader.mark()
        space = ""
        while (yield from self._reader.one_of(*self._format.stops)):
            space = yield from self._reader.run(SPACE)
        taken = self._reader.since(start)
        if self._reader.exhausted:
            self._emit(self._space(gap, event))
            self._emit(Markup(taken))
            return ""
        self._emit(event(gap + taken[: len(taken) - len(space)]))
        return space

    def _skip_newlines(self) -> Reading[None]:
        self._emit(Markup((yield from self._reader.run(NEWLINES))))

    def _space(self, gap: str, event: TextDelta) -> ContentDelta | ReasoningDelta | Markup:
        """Space at the end of the answer: text, unless it only follows a call."""
        return Markup(gap) if self._after_call else event(gap)

    def _emit_calls(self, calls: list[Call], source: str) -> None:
        for call in calls:
            index = self._calls
            self._calls += 1
            self._events.append(ToolCallStart(index, call.name, call.id))
            self._events.append(ToolCallArguments(index, call.arguments))
            self._events.append(ToolCallEnd(index, source))
            source = ""
        self._after_call = True

    def _emit(self, event: ContentDelta | ReasoningDelta | Markup) -> None:
        """Emit unless empty."""
        if event.text:
            self._events.append(event)
            self._after_call = self._after_call and isinstance(event, Markup)
        self._reader.forget()
