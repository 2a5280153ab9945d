"""What a call's workers have said before the answer is whole: spans of text and tokens. No I/O.

Spans are facts once they are accepted: they keep the ids, log-probabilities and versions they were
sampled with, whatever a later worker says about the same tokens. A further delivery carries them as
`wire.Prefix`; `reason_against` says why a completion does not begin with them.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from rock.errors import BadRequest, LeaseLost
from rock.modelservice.graph import tokens
from rock.modelservice.graph.answer import Delta
from rock.modelservice.journal import records
from rock.modelservice.wire import Choice, Prefix, ToolCall, ToolFunction, VersionSpan
from rock.modelservice.wire.partial import Partial, ToolCallDelta
from rock.types import PolicyVersion


def span_record(call: str, partial: Partial, version: PolicyVersion | None) -> records.CallPartial:
    """The record of a span. Raises `BadRequest` for tokens that cannot be right, and for text that
    is not Unicode."""
    if partial.index < 0:
        raise BadRequest(f"index: expected 0 or more, got {partial.index}", param="index")
    ids = logprobs = None
    if partial.token_ids is not None or partial.logprobs is not None:
        sample = tokens.pack_sample(partial.token_ids, partial.logprobs)
        if isinstance(sample, str):
            raise BadRequest(f"partial {partial.index}: {sample}", param="token_ids")
        ids, logprobs = sample
    prompt = None
    if partial.prompt_token_ids is not None:
        prompt, reason = tokens.pack_prompt(partial.prompt_token_ids)
        if reason is not None:
            raise BadRequest(f"partial {partial.index}: {reason}", param="prompt_token_ids")
    calls = tuple(partial.tool_calls or ())
    texts = [("content", partial.content), ("reasoning_content", partial.reasoning_content)]
    texts += [
        ("tool_calls", text)
        for call in calls
        for text in (call.arguments, call.name, call.id)
        if text
    ]
    for name, text in texts:
        try:
            text.encode()
        except UnicodeEncodeError as exc:
            raise BadRequest(f"{name}: not valid Unicode: {exc}", param=name) from exc
    return records.CallPartial(
        call=call,
        lease=partial.lease_id,
        index=partial.index,
        content=partial.content,
        reasoning=partial.reasoning_content,
        calls=calls,
        ids=ids,
        logprobs=logprobs,
        policy_version=version,
        prompt_ids=prompt,
    )


class Said:
    """The spans of one call."""

    __slots__ = ("_calls", "_prompt", "_spans")

    def __init__(self) -> None:
        self._spans: list[records.CallPartial] = []
        self._calls: list[_CallSaid] = []
        self._prompt: bytes | None = None

    def __len__(self) -> int:
        return len(self._spans)

    def add(self, span: records.CallPartial) -> None:
        """Takes a span whose calls have their ids."""
        self._spans.append(span)
        if self._prompt is None:
            self._prompt = span.prompt_ids
        for delta in span.calls:
            if delta.index == len(self._calls):
                self._calls.append(_CallSaid(delta.id or "", delta.name or ""))
            self._calls[delta.index].arguments.append(delta.arguments)

    def with_call_ids(self, span: records.CallPartial) -> records.CallPartial:
        """The span with an id for each call that begins in it."""
        if not span.calls:
            return span
        begun = len(self._calls)
        calls: list[ToolCallDelta] = []
        for delta in span.calls:
            if delta.index == begun:
                begun += 1
                delta = delta if delta.id else replace(delta, id=new_call_id())
            calls.append(delta)
        return replace(span, calls=tuple(calls))

    def has(self, span: records.CallPartial) -> bool:
        """Whether this very span was accepted before, of whatever delivery.

        Raises `LeaseLost` if another one has its index, `BadRequest` if one before it is missing.
        """
        if span.index == len(self._spans):
            self._check_alike(span)
            self._check_calls(span.calls)
            return False
        if span.index > len(self._spans):
            raise BadRequest(
                f"index: the next span of this call is {len(self._spans)}, got {span.index}",
                param="index",
            )
        known = replace(self._spans[span.index], lease=span.lease)
        if known != span and known != _with_ids_of(known, span):
            raise LeaseLost(f"span {span.index} of this call was given before, and differs")
        return True

    def _check_alike(self, span: records.CallPartial) -> None:
        if self._spans and (self._spans[0].ids is None) != (span.ids is None):
            raise BadRequest("token_ids: give them with every span or with none", param="token_ids")

    def _check_calls(self, deltas: Sequence[ToolCallDelta]) -> None:
        """Raises `BadRequest` unless each goes on with the last call or begins the next."""
        begun = len(self._calls)
        for delta in deltas:
            if delta.index == begun and delta.name:
                begun += 1
            elif begun == 0 or delta.index != begun - 1:
                more = f"more of call {begun - 1}, or " if begun else ""
                raise BadRequest(
                    f"tool_calls: expected {more}call {begun} with its name, got call {delta.index}",
                    param="tool_calls",
                )
            elif delta.name or delta.id:
                raise BadRequest(
                    f"tool_calls: name and id of call {delta.index} are known already",
                    param="tool_calls",
                )

    @property
    def calls(self) -> list[ToolCall]:
        """As far as they were said."""
        return [
            ToolCall(ToolFunction(call.name, "".join(call.arguments)), call.id)
            for call in self._calls
        ]

    @property
    def content(self) -> str:
        return "".join(span.content for span in self._spans)

    @property
    def reasoning(self) -> str:
        return "".join(span.reasoning for span in self._spans)

    @property
    def ids(self) -> bytes | None:
        return _joined([span.ids for span in self._spans])

    @property
    def logprobs(self) -> bytes | None:
        return _joined([span.logprobs for span in self._spans])

    @property
    def prompt(self) -> bytes | None:
        return self._prompt

    @property
    def policy_versions(self) -> set[PolicyVersion | None]:
        return {span.policy_version for span in self._spans}

    def versions(self) -> list[VersionSpan]:
        """Which weights sampled which tokens; runs of one version are one item."""
        return runs((tokens.count(span.ids or b""), span.policy_version) for span in self._spans)

    def since(self, count: int, visible: int) -> list[Delta]:
        """What the spans from number `count` up to `visible` said."""
        prompt = self.prompt
        return [
            Delta(
                content=span.content,
                reasoning=span.reasoning,
                calls=span.calls,
                prompt_tokens=None if prompt is None else tokens.count(prompt),
            )
            for span in self._spans[count:visible]
        ]

    def prefix(self) -> Prefix:
        ids, logprobs, prompt = self.ids, self.logprobs, self.prompt
        return Prefix(
            spans=len(self._spans),
            content=self.content,
            reasoning_content=self.reasoning,
            tool_calls=self.calls or None,
            token_ids=None if ids is None else tokens.unpack_ids(ids),
            logprobs=None if logprobs is None else tokens.unpack_logprobs(logprobs),
            version_spans=None if ids is None else self.versions(),
            prompt_token_ids=None if prompt is None else tokens.unpack_ids(prompt),
        )

    def reason_against(self, choice: Choice, prompt: bytes | None) -> str | None:
        """Why `choice` does not begin with what was said; None if it does."""
        message = choice.message
        if not (message.content or "").startswith(self.content):
            return "its content does not begin with what was streamed"
        if not (message.reasoning_content or "").startswith(self.reasoning):
            return "its reasoning does not begin with what was streamed"
        if (reason := self._reason_against_calls(message.tool_calls or [])) is not None:
            return reason
        ids = self.ids
        if ids is None:
            return None
        count = tokens.count(ids)
        given = (choice.token_ids or [])[:count]
        if given != tokens.unpack_ids(ids):
            return f"its token_ids do not begin with the {count} that were streamed"
        if self.prompt is not None and prompt != self.prompt:
            return "its prompt_token_ids are not those that were streamed with"
        return None

    def _reason_against_calls(self, calls: list[ToolCall]) -> str | None:
        said = self.calls
        if len(calls) < len(said):
            return f"it has {len(calls)} of the {len(said)} tool calls that were streamed"
        for number, (before, call) in enumerate(zip(said, calls, strict=False)):
            ended = number + 1 < len(said)
            function, whole = before.function, call.function
            if function.name != whole.name or call.id not in (None, before.id):
                return f"tool call {number} is another one than was streamed"
            if not whole.arguments.startswith(function.arguments) or (
                ended and whole.arguments != function.arguments
            ):
                return f"the arguments of tool call {number} are not those that were streamed"
        return None


class Seen:
    """How far a connection is in what is said of its call. That may have been dropped since, if
    there was nothing in it to show: then it has seen none of what is said now."""

    __slots__ = ("_count", "_said")

    def __init__(self) -> None:
        self._said: Said | None = None
        self._count = 0

    def of(self, said: Said | None) -> int:
        """How many of these spans it has seen."""
        return self._count if said is self._said else 0

    def move(self, said: Said | None, count: int) -> None:
        self._said, self._count = said, count


class _CallSaid:
    """A tool call as far as it was said."""

    __slots__ = ("arguments", "id", "name")

    def __init__(self, id: str, name: str) -> None:
        self.id = id
        self.name = name
        self.arguments: list[str] = []


def new_call_id() -> str:
    """An id for a tool call that its worker gave none."""
    return f"call_{secrets.token_hex(12)}"


def _with_ids_of(known: records.CallPartial, span: records.CallPartial) -> records.CallPartial:
    """A span sent again, with the ids that were minted for its calls the first time."""
    calls = tuple(
        replace(delta, id=before.id) if delta.id is None else delta
        for before, delta in zip(known.calls, span.calls, strict=False)
    )
    return replace(span, calls=calls + span.calls[len(calls) :])


def runs(pieces: Iterable[tuple[int, PolicyVersion | None]]) -> list[VersionSpan]:
    """(tokens, version) pieces with neighbours of one version joined and empty ones left out."""
    joined: list[VersionSpan] = []
    for count, version in pieces:
        if count and joined and joined[-1].policy_version == version:
            joined[-1].tokens += count
        elif count:
            joined.append(VersionSpan(count, version))
    return joined


def _joined(pieces: list[bytes | None]) -> bytes | None:
    known = [piece for piece in pieces if piece is not None]
    return b"".join(known) if known else None
