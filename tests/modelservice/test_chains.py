"""Whose work a chain is, and why it is one of its own: with the marks of programs and without."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from rock.modelservice import wire
from rock.modelservice.service.service import ModelService, Session
from tests.modelservice.fixtures import claim, complete, incoming, open_session, running, user

TOOLS = [{"type": "function", "function": {"name": "task", "parameters": {"type": "object"}}}]
SYSTEM = {"role": "system", "content": "You solve tasks."}
SUMMARY = (
    "The user wants the parser fixed. So far the tokenizer was read and its tests were run; three "
    "of them fail."
)


class Talk:
    """One session: asks, lets a worker answer from the parent's exact ids, and remembers."""

    def __init__(self, service: ModelService, session: Session) -> None:
        self.service = service
        self.session = session
        self.next_id = 100

    async def turn(
        self,
        *messages: Any,
        say: str | wire.AssistantMessage = "ok",
        kind: str | None = None,
        tools: bool = True,
        ids: bool = True,
        anew: bool = False,
        n: int = 1,
    ) -> dict[str, Any]:
        """Ask, answer, deliver; the answer as a client echoes it."""
        body: dict[str, Any] = {"n": n, "tools": TOOLS} if tools else {"n": n}
        call = await self.service.submit(
            self.session, replace(incoming(*messages, **body), kind=kind)
        )
        (lease,) = await claim(self.service)
        message = wire.AssistantMessage(content=say) if isinstance(say, str) else say
        choices: list[wire.Choice] = []
        for number in range(n):
            self.next_id += 2
            choices.append(
                wire.Choice(
                    replace_content(message, number),
                    token_ids=[self.next_id, self.next_id + 1] if ids else None,
                    logprobs=[-1.0, -1.0] if ids else None,
                )
            )
        before = list(lease.parent.token_ids or ()) if lease.parent else []
        if anew and before:
            before[-1] = 1  # the answer tokenised again, with another end
        done = wire.Completion(lease.lease_id, choices, prompt_token_ids=[*before, 7])
        (result,) = await complete(self.service, done)
        assert result.error is None
        answer = await call.answer()
        self.service.sent(call)
        return json.loads(wire.encode(answer.choices[0].message)) | {"role": "assistant"}

    def calls(self) -> list[tuple[str, str | None]]:
        trajectory = self.service.trajectory(self.session.id)
        return [(call.chain_class, call.branch) for call in trajectory.calls]

    def rows(self) -> list[tuple[str, str | None, int]]:
        """Class, branch, and how many sampled tokens the row owns."""
        rows = self.service.trajectory(self.session.id).rows
        return [(row.chain_class, row.branch, sum(row.mask)) for row in rows]


def replace_content(message: wire.AssistantMessage, number: int) -> wire.AssistantMessage:
    """Another text for each further choice."""
    said = f"{message.content} {number}" if number else message.content
    return msgspec.structs.replace(message, content=said)


async def talk_with(service: ModelService) -> Talk:
    return Talk(service, await open_session(service))


async def test_a_side_job_leaves_the_main_chain_whole(tmp_path: Path) -> None:
    """A title call that goes on from the main history takes nothing from it."""
    async with running(tmp_path) as service:
        talk = await talk_with(service)
        first = await talk.turn(SYSTEM, user("hi"))
        history = [SYSTEM, user("hi"), first]
        await talk.turn(*history, user("write a title"), kind="title")
        await talk.turn(*history, user("go on"))
        assert talk.calls() == [("main", None), ("auxiliary", "auxiliary"), ("main", None)]
        assert talk.rows() == [("main", None, 4), ("auxiliary", "auxiliary", 2)]


async def test_after_a_marked_compaction_the_agent_goes_on_in_a_new_chain(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        talk = await talk_with(service)
        first = await talk.turn(SYSTEM, user("hi"))
        await talk.turn(SYSTEM, user("hi"), first, user("shorten"), say="short", kind="compaction")
        await talk.turn(SYSTEM, user("you were told this: short"))
        assert talk.calls() == [
            ("main", None),
            ("compaction", "compaction"),
            ("main", "compaction"),
        ]
        assert [row[:2] for row in talk.rows()] == talk.calls()


async def test_an_unmarked_compaction_shows_by_the_summary_that_is_quoted(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        talk = await talk_with(service)
        first = await talk.turn(SYSTEM, user("hi"))
        await talk.turn(SYSTEM, user("hi"), first, user("Summarise all of this."), say=SUMMARY)
        await talk.turn(SYSTEM, user(f"Earlier you wrote:\n{SUMMARY}\nGo on."))
        assert talk.calls()[-1] == ("main", "compaction")


async def test_an_unmarked_sub_agent_shows_by_the_task_it_was_given(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        talk = await talk_with(service)
        given = json.dumps({"description": "d", "prompt": "Find every caller of parse()."})
        call = wire.ToolCall(id="t1", function=wire.ToolFunction(name="task", arguments=given))
        asked = await talk.turn(
            SYSTEM, user("fix it"), say=wire.AssistantMessage(tool_calls=[call])
        )
        helper = {"role": "system", "content": "You are a helper."}
        found = await talk.turn(helper, user("Find every caller of parse()."), say="three")
        await talk.turn(helper, user("Find every caller of parse()."), found, user("where?"))
        result = {"role": "tool", "tool_call_id": "t1", "content": "three"}
        await talk.turn(SYSTEM, user("fix it"), asked, result)
        assert talk.calls() == [
            ("main", None),
            ("subagent", "subagent"),
            ("subagent", None),
            ("main", None),
        ]
        assert talk.rows() == [("main", None, 4), ("subagent", "subagent", 4)]


async def test_a_sub_agent_that_compacts_stays_a_sub_agent(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        talk = await talk_with(service)
        await talk.turn(SYSTEM, user("hi"))
        one = await talk.turn(user("a task"), kind="subagent")
        await talk.turn(user("a task"), one, user("shorten"), kind="compaction")
        await talk.turn(user("the task again, shorter"))
        assert talk.calls()[1:] == [
            ("subagent", "subagent"),
            ("compaction", "compaction"),
            ("subagent", "compaction"),
        ]


async def test_what_only_looks_new_keeps_its_plain_reason(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        talk = await talk_with(service)
        first = await talk.turn(SYSTEM, user("hi"))
        await talk.turn(SYSTEM, user("something else"))
        await talk.turn(SYSTEM, user("hi"))
        await talk.turn(SYSTEM, user("hi"), {**first, "content": "not said"}, user("x"))
        await talk.turn({"role": "system", "content": "a title, please"}, user("hi"), tools=False)
        assert talk.calls() == [
            ("main", None),
            ("main", "new_root"),
            ("main", "retry"),
            ("main", "edit"),
            ("auxiliary", "auxiliary"),
        ]


async def test_a_chain_after_an_untrainable_answer_says_so(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        talk = await talk_with(service)
        first = await talk.turn(user("hi"), ids=False)
        await talk.turn(user("hi"), first, user("go on"))
        assert talk.rows() == [("main", "after_untrainable", 2)]


async def test_a_prompt_that_was_tokenised_anew_begins_a_chain_that_says_so(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        talk = await talk_with(service)
        first = await talk.turn(user("hi"))
        second = await talk.turn(user("hi"), first, user("on"), say="well", anew=True)
        await talk.turn(user("hi"), first, user("on"), second, user("and on"))
        assert talk.calls() == [("main", None), ("main", "retokenised"), ("main", None)]
        assert talk.rows() == [("main", None, 2), ("main", "retokenised", 4)]
        _, anew = service.trajectory(talk.session.id).rows
        assert anew.token_ids[:4] == [7, 102, 1, 7]
        assert anew.mask[:4] == [0, 0, 0, 0]


async def test_every_choice_is_kept_and_further_ones_are_chains_that_say_so(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as service:
        talk = await talk_with(service)
        first = await talk.turn(user("hi"), n=3)
        await talk.turn(user("hi"), {**first, "content": "ok 1"}, user("on"))
        (asked, _) = service.trajectory(talk.session.id).calls
        assert [choice.message.content for choice in asked.choices] == ["ok", "ok 1", "ok 2"]
        assert talk.rows() == [("main", None, 2), ("main", "choice", 4), ("main", "choice", 2)]


async def test_a_restart_finds_the_same_classes(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        talk = await talk_with(service)
        first = await talk.turn(SYSTEM, user("hi"))
        await talk.turn(SYSTEM, user("hi"), first, user("shorten"), kind="compaction")
        await talk.turn(SYSTEM, user("shorter"))
        before = service.trajectory(talk.session.id)
    async with running(tmp_path) as service:
        assert wire.encode(service.trajectory(talk.session.id)) == wire.encode(before)
