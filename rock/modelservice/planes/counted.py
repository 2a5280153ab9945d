"""How many tokens a request has, for clients that ask before they send: as exact as can be known.

Exact is what an engine counted when this session asked the same, and what the session's tokenizer
counts, or the only one that the service has. Otherwise it is an estimate, and says so.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from rock.errors import BadRequest
from rock.modelservice.dialects.counting import estimate_tokens
from rock.modelservice.render import TokenRenderer
from rock.modelservice.service.service import ModelService, Session
from rock.modelservice.wire import CanonicalRequest, Lease

HEADER = "X-Rock-Token-Count"
"""Of the reply: `exact` or `estimate`."""


class Count(NamedTuple):
    tokens: int
    exact: bool


class TokenCount:
    """Counts prompt tokens for one service."""

    def __init__(self, service: ModelService) -> None:
        self._service = service

    async def of(self, session: Session, request: CanonicalRequest) -> Count:
        """Raises BadRequest for a request that no worker could read."""
        known = self._service.known_prompt_tokens(session, request)
        if known is not None:
            return Count(known, True)
        chat = self._service.spelling.of(session.spec.tokenizer)
        if chat is not None:
            lease = Lease("", "", session.id, 1, 1.0, request)
            try:
                prompt = await asyncio.to_thread(TokenRenderer(chat).prompt, lease)
            except BadRequest:  # images, or what the template refuses
                return Count(estimate_tokens(request), False)
            return Count(len(prompt.ids), True)
        return Count(estimate_tokens(request), False)
