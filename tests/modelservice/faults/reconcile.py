"""The three logs of a storm held against each other: the agents', the workers', the journal's.

Each check returns what is wrong as sentences; a storm is good when there are none. What they say
together: every call was answered exactly once or ended with a reason; no answer reached another
call; no token that a worker was told is accepted is lost; a retry that can be told is sampled once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rock.modelservice.graph import tokens
from rock.modelservice.states import ENDED_WITHOUT, WITH_ANSWER, Event
from rock.modelservice.wire import Trajectory
from tests.modelservice.faults.agents import Agent, Turn
from tests.modelservice.faults.stories import Chronicle, Story

Line = dict[str, Any]


def faults_of_agents(agents: Sequence[Agent], chronicle: Chronicle) -> Iterator[str]:
    """What agents heard is what the journal answered to that very prompt."""
    for agent in agents:
        for turn in agent.turns:
            yield from _faults_of_turn(agent, turn, chronicle.by_nonce.get(turn.nonce, []))


def _faults_of_turn(agent: Agent, turn: Turn, stories: list[Story]) -> Iterator[str]:
    name = f"turn {turn.nonce} ({turn.manner})"
    yield from (f"{name}: {surprise}" for surprise in turn.surprises)
    if not turn.over:
        yield f"{name} never ended"
    if not stories:
        yield f"{name} is not in the journal"
    yield from (
        f"{name}: {story.call} belongs to another session"
        for story in stories
        if story.session != agent.session_id
    )
    if turn.error is not None and not any(story.state in ENDED_WITHOUT for story in stories):
        yield f"{name} was told {turn.error!r}, but no call of it failed"
    yield from (f"{name} {fault}" for fault in _faults_of_answers(turn, stories))
    yield from (f"{name} {fault}" for fault in _faults_of_sampling(turn, stories))


def _faults_of_answers(turn: Turn, stories: list[Story]) -> Iterator[str]:
    for text in turn.answers:
        if not text.startswith(f"{turn.nonce} "):
            yield f"was told the answer to another prompt: {text}"
        if text not in [story.text for story in stories]:
            yield f"was told what the journal does not say: {text}"
    for text in turn.pieces:
        known = [story.said_text if story.text is None else story.text for story in stories]
        if not any(one.startswith(text) for one in known):
            yield f"was told a piece that no answer begins with: {text!r} of {known}"


def _faults_of_sampling(turn: Turn, stories: list[Story]) -> Iterator[str]:
    """More than one call for one prompt: only after an end without an answer, or, where the service
    cannot know that it is a retry, after an answer that was sent whole."""
    for story in stories[1:]:
        if story.follows_unsent:
            yield f"became {story.call} although an earlier call of it was open or unsent"
    answered = [story.call for story in stories if story.state in WITH_ANSWER]
    if turn.manner != "plain" and len(answered) > 1:
        yield f"was sampled more than once: {answered}"


def faults_of_workers(lines: Sequence[Line], chronicle: Chronicle) -> Iterator[str]:
    """What was accepted is in the journal, token for token; what is there was sent by a worker."""
    sent = {line["lease"]: line for line in lines if line["what"] == "sending"}
    stored = {story.answered.lease: story for story in chronicle.stories.values() if story.answered}
    for line in lines:
        lease = line.get("lease", "")
        story = chronicle.stories.get(lease.rpartition(".")[0])
        fault = _fault_of_line(line, story)
        if line["what"] == "told" and line["error"] == "invalid_request":
            fault = _fault_of_refusal(sent[lease], story)
        if fault is not None:
            yield f"{lease}: {fault}"
        if line["what"] == "told" and line["error"] is None and lease not in stored:
            yield f"{lease}: accepted, and lost"
    for lease, story in stored.items():
        if lease not in sent:
            yield f"{story.call} has an answer that no worker sent"
        else:
            yield from _faults_of_tokens(story, sent[lease])


def _fault_of_line(line: Line, story: Story | None) -> str | None:
    match line:
        case {"what": "claimed"} if story is None or story.nonce != line["nonce"]:
            return "was claimed, but its prompt is not in the journal"
        case {"what": "claimed"} if story is not None and (
            story.said_before.get(lease := line["lease"]) not in (None, line["said"])
        ):
            return f"came with {line['said']}, not with {story.said_before[lease]} as was said"
        case {"what": "crashed"}:
            return f"a worker's task crashed: {line['error']}"
        case {"what": "told"} if line["error"] not in (None, "lease_lost"):
            return f"refused with {line['error']}"
        case {"what": "said", "error": None} if story is None or not (
            story.ever_said >= set(line["ids"])
        ):
            return "a span was accepted, and lost"
        case {"what": "said", "error": None} if (
            story is not None
            and story.answered
            and not story.sampled | story.dropped >= set(line["ids"])
        ):
            return "a span was accepted, and the answer goes on from something else"
        case {"what": "said"} if line["error"] not in (None, "lease_lost"):
            return f"a span was refused with {line['error']}"
        case {"what": "failed", "error": None} if story is None or Event.FAIL not in story.events:
            return "its failure was accepted, and lost"
        case _:
            return None


def _fault_of_refusal(sent: Line, story: Story | None) -> str | None:
    """A completion is refused if it does not begin with what its agent has read."""
    if sent["afresh"] and story is not None and story.read and Event.FAIL in story.events:
        return None
    return "refused with invalid_request"


def _faults_of_tokens(story: Story, sent: Line) -> Iterator[str]:
    assert story.answered is not None
    if story.answered.untrainable is not None:
        yield f"{story.call} is untrainable: {story.answered.untrainable}"
        return
    choice = story.answered.choices[0]
    stored = (
        choice.message.content,
        tokens.unpack_ids(choice.packed_ids or b""),
        tokens.unpack_logprobs(choice.packed_logprobs or b""),
    )
    if stored != (sent["text"], sent["ids"], sent["logprobs"]):
        yield f"{story.call}: stored {stored}, sent {sent}"


def faults_of_calls(chronicle: Chronicle) -> Iterator[str]:
    """Each call ended: with an answer, or with a reason. (That none was answered twice, or by an
    old lease, the chronicle itself makes sure of.)"""
    for story in chronicle.stories.values():
        if story.state not in WITH_ANSWER and story.state not in ENDED_WITHOUT:
            yield f"{story.call} is {story.state} at the end"
        if Event.FAIL in story.events and not story.reason:
            yield f"{story.call} failed without a reason"


def faults_of_trajectories(
    trajectories: Mapping[str, Trajectory], chronicle: Chronicle
) -> Iterator[str]:
    """What the service exports is what the journal says, each sampled token owned exactly once."""
    owned: Counter[int] = Counter()
    for session_id, trajectory in trajectories.items():
        states = {call.call_id: call.state for call in trajectory.calls}
        told = {
            story.call: story.state.value
            for story in chronicle.stories.values()
            if story.session == session_id
        }
        if states != told:
            yield f"session {session_id} exports {states}, the journal says {told}"
        for row in trajectory.rows:
            owned.update(token for token, mine in zip(row.token_ids, row.mask, strict=True) if mine)
    for story in chronicle.stories.values():
        if story.answered is None or story.session not in trajectories:
            continue
        packed = story.answered.choices[0].packed_ids or b""
        for token in tokens.unpack_ids(packed):
            if owned[token] != 1:
                yield f"{story.call}: token {token} is owned {owned[token]} times"
