"""The wires that agents speak, by name and by path. Adding one: its file, and a line here."""

from rock.modelservice.dialects.base import Dialect, ErrorReply, Parsed, Renderer, StreamEncoder
from rock.modelservice.dialects.chat import ChatDialect

DIALECTS: tuple[Dialect, ...] = (ChatDialect(),)
BY_ROUTE: dict[str, Dialect] = {route: dialect for dialect in DIALECTS for route in dialect.routes}
BY_NAME: dict[str, Dialect] = {dialect.name: dialect for dialect in DIALECTS}
DEFAULT: Dialect = DIALECTS[0]
"""Whose error shape a path of no dialect gets."""

__all__ = [
    "BY_NAME",
    "BY_ROUTE",
    "DEFAULT",
    "DIALECTS",
    "Dialect",
    "ErrorReply",
    "Parsed",
    "Renderer",
    "StreamEncoder",
]
