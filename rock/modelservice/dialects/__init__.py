"""The wires that agents speak, by name and by path. Adding one: its file, and a line here."""

from rock.modelservice.dialects.anthropic import AnthropicDialect
from rock.modelservice.dialects.base import (
    CountRoute,
    Dialect,
    ErrorReply,
    Exchange,
    Headers,
    History,
    Parsed,
    Renderer,
    StreamEncoder,
)
from rock.modelservice.dialects.chat import ChatDialect
from rock.modelservice.dialects.completions import CompletionsDialect
from rock.modelservice.dialects.responses import ResponsesDialect

CHAT = ChatDialect()
ANTHROPIC = AnthropicDialect()
DIALECTS: tuple[Dialect, ...] = (CHAT, CompletionsDialect(), ResponsesDialect(), ANTHROPIC)
BY_ROUTE: dict[str, Dialect] = {route: dialect for dialect in DIALECTS for route in dialect.routes}
COUNTED: dict[str, tuple[Dialect, CountRoute]] = {
    route: (dialect, counted)
    for dialect in DIALECTS
    for route, counted in dialect.count_routes.items()
}
BY_NAME: dict[str, Dialect] = {dialect.name: dialect for dialect in DIALECTS}
DEFAULT: Dialect = CHAT
"""Whose error shape a path of no dialect gets."""


def spoken(route: str, headers: Headers) -> Dialect:
    """The dialect whose errors the asker of this route can read."""
    if route in COUNTED:
        return COUNTED[route][0]
    if "anthropic-version" in headers:
        return BY_ROUTE.get(route, ANTHROPIC)
    return BY_ROUTE.get(route, DEFAULT)


__all__ = [
    "BY_NAME",
    "BY_ROUTE",
    "COUNTED",
    "DEFAULT",
    "DIALECTS",
    "CountRoute",
    "Dialect",
    "ErrorReply",
    "Exchange",
    "History",
    "Parsed",
    "Renderer",
    "StreamEncoder",
    "spoken",
]
