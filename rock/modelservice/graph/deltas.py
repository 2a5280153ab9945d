"""What a worker remembers so that history is not sent to it again, nor by it. No I/O.

One entry per call: the request it got and, once it is answered, its token sequence. `restore` makes
a delta lease whole, `shorten` leaves out of a completion the ids that the service has. A call that
goes on from another takes that one's entry over, so a conversation is held once. Over the bound the
entries used longest ago go, and their conversations are sent whole again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from msgspec import Raw
from msgspec.structs import replace

from rock.modelservice.graph import tokens
from rock.modelservice.wire import Completion, Lease

MAX_BYTES = 256 * 1024 * 1024
_ENTRY_BYTES = 1000
"""What an entry costs besides text and tokens, roughly."""


@dataclass(eq=False, slots=True)
class _Known:
    """One call. Token ids are packed."""

    messages: list[Raw]
    tools: list[Raw] | None
    parent: str | None
    before: bytes | None
    """The parent's prompt and answer, if their ids are known."""
    message_bytes: int
    prompt: bytes | None = None
    sequences: tuple[bytes, ...] = ()
    """Prompt and answer, for each choice."""

    @property
    def size_bytes(self) -> int:
        sizes = sum(map(len, self.sequences)) + len(self.before or b"") + len(self.prompt or b"")
        return _ENTRY_BYTES + self.message_bytes + sizes


class LeaseMemory:
    """A worker's leases and answers, up to `max_bytes`."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._known: OrderedDict[str, _Known] = OrderedDict()
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._known)

    def restore(self, lease: Lease) -> Lease | None:
        """The lease as it would be whole, remembered; None if what is left out is not here."""
        # Copies: what was decoded is a view that keeps the whole reply alive.
        messages = [message.copy() for message in lease.request.messages]
        size = sum(map(len, map(memoryview, messages)))
        tools, parent = lease.request.tools, lease.parent
        before = None if parent is None else _packed(parent.token_ids)
        if lease.omitted is not None:
            known = None if parent is None else self._known.get(parent.call_id)
            if parent is None or known is None:
                return None
            messages = known.messages[: lease.omitted.messages] + messages
            size += known.message_bytes
            tools = known.tools if lease.omitted.tools else tools
            if lease.omitted.token_ids:
                if parent.choice >= len(known.sequences):
                    return None
                before = known.sequences[parent.choice]
                parent = replace(parent, token_ids=tokens.unpack_ids(before))
        parent_id = None if parent is None else parent.call_id
        self._put(lease.call_id, _Known(messages, tools, parent_id, before, size))
        request = replace(lease.request, messages=list(messages), tools=tools)
        return replace(lease, request=request, parent=parent, omitted=None)

    def shorten(self, completion: Completion) -> Completion:
        """The completion without the prompt ids that the service has from the call's parent."""
        known = self._known.get(_call_of(completion))
        ids = completion.prompt_token_ids
        if known is None or ids is None or completion.continues_parent:
            return completion
        known.prompt = _packed(ids)
        before = known.before
        if before is None or known.prompt is None or not known.prompt.startswith(before):
            return completion
        new = ids[tokens.count(before) :]
        return replace(completion, prompt_token_ids=new, continues_parent=True)

    def answered(self, completion: Completion, *, trainable: bool) -> None:
        """The service took the completion (as it was before `shorten`), with its tokens or not."""
        call_id = _call_of(completion)
        known = self._known.pop(call_id, None)
        if known is None:
            return
        self.size_bytes -= known.size_bytes
        prompt = known.prompt
        if completion.continues_parent:
            prompt = (known.before or b"") + (_packed(completion.prompt_token_ids) or b"")
        if trainable and prompt is not None:
            choices = [_packed(choice.token_ids) or b"" for choice in completion.choices]
            known.sequences = tuple(prompt + ids for ids in choices)
        known.prompt = known.before = None
        if known.parent is not None:
            self._drop(known.parent)
        self._put(call_id, known)

    def _put(self, call_id: str, known: _Known) -> None:
        self._drop(call_id)
        self._known[call_id] = known
        self.size_bytes += known.size_bytes
        while self.size_bytes > self._max_bytes and len(self._known) > 1:
            self._drop(next(iter(self._known)))

    def _drop(self, call_id: str) -> None:
        known = self._known.pop(call_id, None)
        if known is not None:
            self.size_bytes -= known.size_bytes


def _call_of(completion: Completion) -> str:
    return completion.lease_id.rpartition(".")[0]


def _packed(ids: Sequence[int] | None) -> bytes | None:
    """None also for ids that are none: the service says what is wrong with them."""
    try:
        return None if ids is None else tokens.pack_ids(ids)
    except (OverflowError, TypeError):
        return None
