"""The service's log lines: one event each, with the ids it is about, and never a key or a prompt.

    log.warning("call failed", extra=about(call_id=call.id, code=error.code))

`configure` sets up the process. What is promised holds also for what others write: an exception is
logged as its type and place, without its message; of other libraries' lines only the fixed part is
kept; what looks like a session key is masked.
"""

from __future__ import annotations

import logging
import re
import sys
import traceback
from collections.abc import Mapping
from typing import Any, Literal, TextIO, cast

import msgspec

from rock.secrets import redact_text

LogFormat = Literal["text", "json"]
_KEY = re.compile(r"(?<=/s/)[^/\s]+|(?<![\w-])[\w-]{43}(?![\w-])|(?<=[Bb]earer )\S+")
_ABOUT = "about"


def about(**ids: object) -> dict[str, Mapping[str, object]]:
    """What an event is about, for `extra=`; values that are None are left out."""
    return {_ABOUT: {name: value for name, value in ids.items() if value is not None}}


class Discreet(logging.Formatter):
    """Base of both formats: the parts of a record that may be shown."""

    def message_of(self, record: logging.LogRecord) -> str:
        own = record.name == "rock" or record.name.startswith("rock.")
        text = record.getMessage() if own else str(record.msg).partition("\n")[0]
        return redact_text(_KEY.sub("…", text))

    def about(self, record: logging.LogRecord) -> dict[str, object]:
        found = cast("dict[str, object]", getattr(record, _ABOUT, {}))
        return {name: _shown(value) for name, value in found.items()}

    def error_of(self, record: logging.LogRecord) -> dict[str, Any] | None:
        if not record.exc_info or record.exc_info[1] is None:
            return None
        _, exc, trace = record.exc_info
        places = [
            f"{frame.filename}:{frame.lineno} {frame.name}"
            for frame in traceback.extract_tb(trace)[-12:]
        ]
        return {"type": type(exc).__name__, "at": places}


class TextFormat(Discreet):
    """`2026-01-31 12:00:00,000 WARNING rock.x: message call_id=… session_id=…`"""

    def format(self, record: logging.LogRecord) -> str:
        pairs = [f"{name}={value}" for name, value in self.about(record).items()]
        head = f"{self.formatTime(record)} {record.levelname} {record.name}:"
        line = " ".join([head, self.message_of(record), *pairs])
        error = self.error_of(record)
        if error is None:
            return line
        return "\n".join([f"{line} error={error['type']}", *(f"    {at}" for at in error["at"])])


class JsonFormat(Discreet):
    """One JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S") + f".{int(record.msecs):03d}",
            "level": record.levelname,
            "logger": record.name,
            "message": self.message_of(record),
            **self.about(record),
        }
        error = self.error_of(record)
        if error is not None:
            line["error"] = error
        return msgspec.json.encode(line).decode()


def configure(level: str, style: LogFormat, *, stream: TextIO | None = None) -> None:
    """Log rock's events from `level` on, other libraries' from WARNING on."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormat() if style == "json" else TextFormat())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("rock").setLevel(level)


def _shown(value: object) -> object:
    """A value for a line: numbers as they are, text on one line and short, without keys."""
    if isinstance(value, bool | int | float):
        return value
    text = _KEY.sub("…", str(value)).encode("utf-8", "backslashreplace").decode()
    text = " ".join(text.split())
    return text if len(text) <= 200 else text[:200] + "…"
