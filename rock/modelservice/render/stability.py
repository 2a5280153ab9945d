"""Is a model's chat template prefix-stable? Conversations of every kind, walked turn by turn.

In each, the model answers exactly as the template would write the answer, and the next prompt is
made from those tokens. Where that is not `clean`, re-rendering the history changes what the model
has already seen: training on re-rendered prompts would train on tokens that were never sampled.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from rock.errors import BadRequest
from rock.modelservice.render.extend import Cause, Prompt, Status, difference, extend, root
from rock.modelservice.render.talk import Talk
from rock.modelservice.render.tokenizer import ChatTokenizer

Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Finding:
    """One prompt of one conversation."""

    conversation: str
    status: Status | Literal["refused"]
    cause: Cause | None
    added: tuple[int, ...]
    """The messages that are new in the prompt, by place and from 0."""
    changed: int | None
    """The first earlier message that the template writes otherwise because of them."""
    detail: str

    @property
    def text(self) -> str:
        """The finding in a sentence."""
        text = self.conversation
        text += f", adding message {', '.join(map(str, self.added))}" if self.added else ""
        text += f", changes message {self.changed}" if self.changed is not None else ""
        text += f" ({self.cause})" if self.cause else ""
        return text + (f": {self.detail}" if self.detail else "")


@dataclass(frozen=True, slots=True)
class Report:
    """What `check` found."""

    findings: tuple[Finding, ...]

    @property
    def prefix_stable(self) -> bool:
        """Every prompt of every conversation that the template takes is clean."""
        return all(finding.status in ("clean", "refused") for finding in self.findings)

    @property
    def extendable(self) -> bool:
        """No prompt needs a new chain: token-in trains whole conversations."""
        return not any(finding.status == "fork" for finding in self.findings)


def check(chat: ChatTokenizer, *, template: Mapping[str, Any] | None = None) -> Report:
    """Walk every conversation. `template`: variables for the chat template."""
    more = dict(template or {})
    findings: list[Finding] = []
    for name, messages, tools in conversations():
        talk = Talk(messages, tools, more)
        try:
            findings.extend(_walk(chat, name, talk))
        except BadRequest as exc:
            findings.append(Finding(name, "refused", None, (), None, exc.message))
    return Report(tuple(findings))


def _walk(chat: ChatTokenizer, name: str, talk: Talk) -> Iterator[Finding]:
    prompt: Prompt | None = None
    sequence: list[int] = []
    covers = 0
    for place, message in enumerate([*talk.messages, {"role": "assistant"}]):
        if message["role"] != "assistant":
            continue
        asked = Talk(talk.messages[:place], talk.tools, talk.more)
        prompt = root(chat, asked) if prompt is None else extend(chat, asked, sequence, covers)
        if covers:
            yield _finding(chat, name, asked, prompt, covers)
        if place < len(talk.messages):
            answer = _answer(chat, Talk(talk.messages[: place + 1], talk.tools, talk.more))
            sequence = [*prompt.ids, *chat.encode(answer)]
            covers = place + 1


def _answer(chat: ChatTokenizer, talk: Talk) -> str:
    """The last message as the template writes it, up to the end of its turn."""
    asked = chat.render(talk.messages[:-1], talk.tools, ask=True, **talk.more)
    whole = chat.render(talk.messages, talk.tools, ask=False, **talk.more)
    if whole.startswith(asked):
        text = whole[len(asked) :]
    else:
        # What makes the model speak is not kept in the history, or not all of it.
        same = next(n for n in range(len(asked)) if asked[n] != whole[n : n + 1])
        text = whole[same:]
    ends = [text.rfind(token) + len(token) for token in chat.specials.values() if token in text]
    return text[: max(ends)] if ends else text


def _finding(chat: ChatTokenizer, name: str, talk: Talk, prompt: Prompt, covers: int) -> Finding:
    added = tuple(range(covers, len(talk.messages)))
    changed, detail = None, prompt.detail
    if prompt.status != "clean":
        changed, detail = _changed(chat, talk, covers) or (None, detail)
    return Finding(name, prompt.status, prompt.cause, added, changed, detail)


def _changed(chat: ChatTokenizer, talk: Talk, covers: int) -> tuple[int, str] | None:
    """The first message that is written otherwise once all are there, and how."""
    whole = chat.render(talk.messages, talk.tools, ask=True, **talk.more)
    for place in range(covers):
        role = talk.messages[place]["role"]
        following = talk.messages[place + 1 : place + 2]
        if role != "assistant" and (not following or following[0]["role"] != "assistant"):
            continue  # only what a model has seen counts: prompts, and answers
        shown = talk.messages[: place + 1]
        part = chat.render(shown, talk.tools, ask=role != "assistant", **talk.more).rstrip()
        if not whole.startswith(part):
            return place + (role != "assistant"), difference(part, whole)
    return None


def conversations() -> Iterator[tuple[str, list[Object], list[Object] | None]]:
    """Name, messages, tools."""
    system: Object = {"role": "system", "content": "Be brief."}
    ask: Object = {"role": "user", "content": "What is in the folder?"}
    more: Object = {"role": "user", "content": "And now?"}
    says: Object = {"role": "assistant", "content": "Two files."}
    calls = _calls("ls")
    result = _result("ls", "a.txt")
    thought: Object = {"reasoning_content": "I should look."}
    yield "turns", [system, ask, says, more, says, more], None
    yield "turns without system", [ask, says, more, says, more], None
    yield "tool call", [system, ask, calls, result, says, more], TOOLS
    yield "several tool calls", [ask, calls, result, _calls("cat"), _result("cat", "x")], TOOLS
    parallel = _calls("ls", "cat")
    results = [result, _result("cat", "x")]
    yield "parallel tool calls", [ask, parallel, *results, says, more], TOOLS
    spoken = {**calls, "content": "Let me look."}
    yield "text and tool call", [ask, spoken, result, says, more], TOOLS
    yield "thinking", [ask, {**says, **thought}, more, {**says, **thought}, more], None
    loop = [{**calls, **thought}, result, {**_calls("cat"), **thought}, _result("cat", "x")]
    yield "thinking and tools", [ask, *loop], TOOLS
    yield "thinking and tools, then a user", [ask, *loop, {**says, **thought}, more], TOOLS


TOOLS: list[Object] = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": "A command.",
            "parameters": {"type": "object", "properties": {"path": {"type": "string"}}},
        },
    }
    for name in ("ls", "cat")
]


def _calls(*names: str) -> Object:
    return {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {
                "id": f"call{name:0>5}",
                "type": "function",
                "function": {"name": name, "arguments": {"path": "/tmp"}},
            }
            for name in names
        ],
    }


def _result(name: str, text: str) -> Object:
    return {"role": "tool", "tool_call_id": f"call{name:0>5}", "name": name, "content": text}
