"""Prompts for leases: what a worker with its own tokenizer asks before it samples."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from rock.modelservice.render.extend import Prompt, extend, root
from rock.modelservice.render.talk import talk_of
from rock.modelservice.render.tokenizer import ChatTokenizer, load
from rock.modelservice.wire import Lease


class TokenRenderer:
    """Turns leases into prompts of token ids.

        renderer = TokenRenderer.load("models/qwen3")
        prompt = renderer.prompt(lease)      # sample from prompt.ids, complete with them

    Costs time in proportion to the conversation: in an asyncio worker call it by
    `asyncio.to_thread`. `counts` says how many prompts were what: "clean", "realigned template", …
    """

    def __init__(self, chat: ChatTokenizer, *, template: Mapping[str, Any] | None = None) -> None:
        """`template`: variables for the chat template; a request's `chat_template_kwargs` win."""
        self.chat = chat
        self.counts = Counter[str]()
        self._fixed = dict(template or {})

    @classmethod
    def load(cls, directory: str | Path, *, template: Mapping[str, Any] | None = None) -> Self:
        """Raises `ConfigError` for a directory without a tokenizer, and without the extra."""
        return cls(load(Path(directory)), template=template)

    def prompt(self, lease: Lease) -> Prompt:
        """Raises `BadRequest` for messages that the template refuses, or that are not text."""
        talk = talk_of(lease.request, self._fixed)
        if lease.parent is None:
            found = root(self.chat, talk)
        else:
            found = extend(self.chat, talk, lease.parent.token_ids, lease.parent.messages)
        self.counts[f"{found.status} {found.cause}" if found.cause else found.status] += 1
        return found
