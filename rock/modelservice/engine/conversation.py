"""One session's conversation: its message graph, its calls, which of them a request repeats or goes on from.

No I/O. `book.Book` holds one per session.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from rock.errors import BadRequest
from rock.modelservice.engine.asked import Asked, Original
from rock.modelservice.engine.calls import Call
from rock.modelservice.graph import chains
from rock.modelservice.graph.answer import Answer
from rock.modelservice.graph.graph import MessageGraph
from rock.modelservice.graph.places import Extension, Placement
from rock.modelservice.journal import records
from rock.modelservice.states import ENDED_WITHOUT, State
from rock.modelservice.wire import CanonicalRequest, ChainClass, Omitted

_TRANSPORT_FIELDS = ("stream", "stream_options")
"""How an answer is sent, which does not change what is asked."""

_SIDE_CLASSES: dict[str | None, ChainClass] = {"auxiliary": "auxiliary", "subagent": "subagent"}
"""By branch, of calls that are not what the call before them was."""

_canonical = msgspec.json.Decoder(CanonicalRequest)
_SPARE_LEVELS = 128
"""Nesting left to whoever reads a request inside something else: the journal, a worker."""


def _check_readable(parts: Iterable[bytes]) -> None:
    """Raises `BadRequest` for JSON that was taken raw but that a later reader could not read."""
    try:
        for part in parts:
            if not part.isascii():
                str(part, "utf-8")
            if (
                len(part) > _SPARE_LEVELS  # a shorter one cannot be so deep
                and part.count(b"[") + part.count(b"{") > _SPARE_LEVELS
            ):
                deeper = b"%b%b%b" % (b"[" * _SPARE_LEVELS, part, b"]" * _SPARE_LEVELS)
                msgspec.json.decode(deeper, type=Raw)
    except UnicodeDecodeError as exc:
        raise BadRequest(f"the request is not valid UTF-8: {exc.reason}") from exc
    except RecursionError as exc:
        raise BadRequest("the request's JSON is nested too deeply") from exc


class Conversation:
    """What one session has said and heard."""

    __slots__ = ("_by_key", "_by_leaf", "calls", "graph")

    def __init__(self) -> None:
        self.graph = MessageGraph()
        self.calls: list[Call] = []
        self._by_leaf: dict[int, Call] = {}
        """The last call that asked the messages up to an as-sent node; those before it by `earlier_at_leaf`."""
        self._by_key: dict[str, Call] = {}

    def look_up(self, dialect: str, request: CanonicalRequest) -> Asked:
        """Raises `BadRequest` for bytes that no worker could read."""
        tools = None
        if request.tools is not None:
            tools = Raw(b"[" + b",".join(bytes(tool) for tool in request.tools) + b"]")
        located = self.graph.locate(request.messages, tools)
        extra = request.extra
        if extra and any(name in extra for name in _TRANSPORT_FIELDS):
            extra = {name: extra[name] for name in extra if name not in _TRANSPORT_FIELDS}
        parameters = records.encoder.encode(replace(request, messages=[], tools=None, extra=extra))
        _check_readable((*located.rest, located.tools or b"", parameters))
        identity = None
        if located.complete:
            number = self.graph.number_of(located.tools)
            identity = (dialect, located.base, number, parameters)
        return Asked(located, parameters, identity)

    def counted(self, request: CanonicalRequest) -> int | None:
        """Prompt tokens of an answered call with these messages and tools."""
        asked = self.look_up("", request)
        if asked.identity is None:
            return None
        _, leaf, tools, _ = asked.identity
        for call in self.calls:
            answer = call.stored
            if (call.leaf, call.tools) == (leaf, tools) and isinstance(answer, Answer):
                if answer.tokens is not None:
                    return len(answer.prompt_token_ids or ())
                if answer.usage is not None:
                    return answer.usage.prompt_tokens
        return None

    def find_retried(self, asked: Asked, key: str | None, retry_count: int) -> Call | None:
        """The call that a request repeats, in the order of design promise 3; None for a new one.

        Raises `BadRequest` for an idempotency key that was used with another request.
        """
        if key is not None and (call := self._by_key.get(key)) is not None:
            if call.identity != asked.identity:
                raise BadRequest(
                    "this Idempotency-Key was used with a different request in this session",
                    param="Idempotency-Key",
                )
            return None if call.state in ENDED_WITHOUT else call
        if asked.identity is None:
            return None
        same: list[Call] = []
        earlier = self._by_leaf.get(asked.located.base)  # its leaf, since all of it is known
        while earlier is not None:
            if (
                earlier.identity == asked.identity
                and earlier.state not in ENDED_WITHOUT
                and (key is None or earlier.idempotency_key in (None, key))
            ):
                same.append(earlier)
            earlier = earlier.earlier_at_leaf
        same.reverse()
        for call in same:
            if call.attached == 0 and call.state is not State.DELIVERED:
                return call
        return same[-1] if same and retry_count > 0 else None

    def add(self, call: Call, extension: Extension) -> None:
        """Give a new call its place in the graph."""
        call.leaf = extension.leaf
        placement = self.graph.place(extension)
        if placement.parent is not None:
            call.parent = self.calls[placement.parent.call]
            call.parent_choice = placement.parent.choice
        call.covers = placement.covers
        before = self._class_before(call)
        self._classify(call, placement, extension, before)
        if placement.parent is not None and call.chain_class == before:
            self.graph.go_on(placement.parent)
        self.calls.append(call)

    def _classify(
        self, call: Call, placement: Placement, extension: Extension, before: ChainClass
    ) -> None:
        """Say whose work the call is and why it is a chain of its own, if it is; `before` is what it
        would be by what it goes on from."""
        branch = placement.branch
        marked = chains.class_of_kind(call.kind)
        if marked is None:
            if branch in chains.REFINABLE:
                new = (self.graph.blob(number) for number in extension.path)
                branch = chains.refined(branch, new, self._answered_lately())
            call.chain_class = _SIDE_CLASSES.get(branch, before)
        else:
            call.chain_class = marked
            if call.parent is None or call.parent.chain_class != marked:
                branch = marked if branch != "retry" else branch
        call.branch = branch

    def _answered_lately(self) -> list[chains.Earlier]:
        return [
            chains.Earlier(call.chain_class, [choice.message for choice in call.stored.choices])
            for call in self.calls[-chains.LOOK_BACK :]
            if isinstance(call.stored, Answer)
        ]

    def _class_before(self, call: Call) -> ChainClass:
        """What a call is that goes on from its parent: after a compaction, what was compacted."""
        before = call.parent
        if before is None:
            for earlier in reversed(self.calls):
                if earlier.chain_class != "auxiliary":
                    before = earlier
                    break
            if before is None or before.chain_class != "compaction":
                return "main"
        while before is not None and before.chain_class == "compaction":
            before = before.parent
        return "main" if before is None else before.chain_class

    def remember(self, call: Call, parameters: bytes) -> None:
        """Let retries of the call find it."""
        asked = call.original or call
        call.identity = (call.dialect, asked.leaf, asked.tools, parameters)
        call.earlier_at_leaf = self._by_leaf.get(asked.leaf)
        self._by_leaf[asked.leaf] = call
        if call.idempotency_key is not None:
            self._by_key[call.idempotency_key] = call

    def request_of(self, call: Call) -> CanonicalRequest:
        """The effective request, whole: what a worker gets."""
        return self._whole(call, Omitted())

    def original_of(self, call: Call) -> CanonicalRequest | None:
        """What was asked, whole, where interceptors put something else in its place."""
        if call.original is None:
            return None
        return self._whole(call.original, Omitted())

    def request_after(self, call: Call, parent: Call) -> tuple[CanonicalRequest, Omitted]:
        """The effective request without what it shares with its parent's, and what that is."""
        omitted = Omitted(
            messages=self.graph.shared(call.leaf, parent.leaf),
            tools=call.tools is not None and call.tools == parent.tools,
            token_ids=parent.tokens is not None,
        )
        return self._whole(call, omitted), omitted

    def _whole(self, call: Call | Original, omitted: Omitted) -> CanonicalRequest:
        request = _canonical.decode(call.request)
        request.messages = self.graph.messages(call.leaf, omitted.messages)
        if call.tools is not None and not omitted.tools:
            request.tools = msgspec.json.decode(self.graph.blob(call.tools), type=list[Raw])
        return request
