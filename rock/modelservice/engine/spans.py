"""What a call's workers have said before the answer is whole: spans of text and tokens. No I/O.

Spans are facts once they are accepted: they keep the ids, log-probabilities and versions they were
sampled with, whatever a later worker says about the same tokens. A further delivery carries them as
`wire.Prefix`; `reason_against` says why a completion does not begin with them.
"""

from __future__ import annotations

from collections.abc import Iterable

from rock.errors import BadRequest, LeaseLost
from rock.modelservice.graph import tokens
from rock.modelservice.journal import records
from rock.modelservice.wire import Choice, Prefix, VersionSpan
from rock.modelservice.wire.partial import Partial
from rock.types import PolicyVersion


def span_record(call: str, partial: Partial, version: PolicyVersion | None) -> records.CallPartial:
    """The record of a span. Raises `BadRequest` for tokens that cannot be right, and for text that
    is not Unicode."""
    if partial.index < 0:
        raise BadRequest(f"index: expected 0 or more, got {partial.index}", param="index")
    ids = logprobs = None
    if partial.token_ids is not None or partial.logprobs is not None:
        reason = tokens.reason_against_sample(partial.token_ids, partial.logprobs)
        if reason is not None:
            raise BadRequest(f"partial {partial.index}: {reason}", param="token_ids")
        ids = tokens.pack_ids(partial.token_ids or ())
        logprobs = tokens.pack_logprobs(partial.logprobs or ())
    prompt = None
    if partial.prompt_token_ids is not None:
        prompt, reason = tokens.pack_prompt(partial.prompt_token_ids)
        if reason is not None:
            raise BadRequest(f"partial {partial.index}: {reason}", param="prompt_token_ids")
    for name, text in (("content", partial.content), ("reasoning", partial.reasoning_content)):
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
        ids=ids,
        logprobs=logprobs,
        policy_version=version,
        prompt_ids=prompt,
    )


class Said:
    """The spans of one call."""

    __slots__ = ("_spans",)

    def __init__(self) -> None:
        self._spans: list[records.CallPartial] = []

    def __len__(self) -> int:
        return len(self._spans)

    def add(self, span: records.CallPartial) -> None:
        self._spans.append(span)

    def has(self, span: records.CallPartial) -> bool:
        """Whether this very span was accepted before.

        Raises `LeaseLost` if another one has its index, `BadRequest` if one before it is missing.
        """
        if span.index == len(self._spans):
            self._check_alike(span)
            return False
        if span.index > len(self._spans):
            raise BadRequest(
                f"index: the next span of this call is {len(self._spans)}, got {span.index}",
                param="index",
            )
        if self._spans[span.index] != span:
            raise LeaseLost(f"span {span.index} of this call was given before, and differs")
        return True

    def _check_alike(self, span: records.CallPartial) -> None:
        if self._spans and (self._spans[0].ids is None) != (span.ids is None):
            raise BadRequest("token_ids: give them with every span or with none", param="token_ids")

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
        return next((span.prompt_ids for span in self._spans if span.prompt_ids is not None), None)

    @property
    def first_version(self) -> PolicyVersion | None:
        return self._spans[0].policy_version

    @property
    def policy_versions(self) -> set[PolicyVersion | None]:
        return {span.policy_version for span in self._spans}

    def versions(self) -> list[VersionSpan]:
        """Which weights sampled which tokens; runs of one version are one item."""
        return runs((tokens.count(span.ids or b""), span.policy_version) for span in self._spans)

    def since(self, count: int, visible: int) -> list[tuple[str, str]]:
        """(text, reasoning) of the spans from number `count` up to `visible`."""
        return [(span.content, span.reasoning) for span in self._spans[count:visible]]

    def prefix(self) -> Prefix:
        ids, logprobs, prompt = self.ids, self.logprobs, self.prompt
        return Prefix(
            spans=len(self._spans),
            content=self.content,
            reasoning_content=self.reasoning,
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
