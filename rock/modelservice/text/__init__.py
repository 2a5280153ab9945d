"""For workers: from the text of an open model to the message that completes a call.

`parse` for a whole answer, `TextParser` for one that is still being sampled, `FORMATS` for the
model families it knows. Pure functions of text: no I/O, no clock, no randomness. Read `parser`
(what is promised), `events`, `formats`; then `reader`, on which the call syntaxes stand.
"""

from rock.modelservice.text.events import (
    ContentDelta,
    Event,
    Markup,
    ReasoningDelta,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
    finish_reason,
    message_of,
    source_of,
)
from rock.modelservice.text.formats import FORMATS, Format, Tags, format_named
from rock.modelservice.text.parser import TextParser, parse
from rock.modelservice.text.parts import answer_parts

__all__ = [
    "FORMATS",
    "ContentDelta",
    "Event",
    "Format",
    "Markup",
    "ReasoningDelta",
    "Tags",
    "TextParser",
    "ToolCallArguments",
    "ToolCallEnd",
    "ToolCallStart",
    "answer_parts",
    "finish_reason",
    "format_named",
    "message_of",
    "parse",
    "source_of",
]
