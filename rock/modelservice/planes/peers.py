"""Whether the other side of a connection is still there, where the event loop does not say."""

from __future__ import annotations

import asyncio
import select
import socket
from typing import cast


def has_left(transport: asyncio.Transport) -> bool:
    """Whether the peer has closed a connection that is not being read: it sent far ahead, and what it
    sent last is its goodbye. Of one that is being read the loop hears by itself."""
    if transport.is_closing() or transport.is_reading():
        return False
    connection = cast("socket.socket", transport.get_extra_info("socket"))
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLRDHUP)
    return bool(poll.poll(0))
