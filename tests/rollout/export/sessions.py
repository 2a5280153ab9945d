"""Made-up sessions of any shape: branches, retries, edits, re-tokenised prompts, n choices."""

from collections.abc import Sequence

import msgspec
from hypothesis import strategies as st
from msgspec import Raw

from rock.modelservice.wire import AssistantMessage, ToolCall, ToolFunction, Trajectory
from rock.rollout.records.outcome import Outcome, OutcomeClass, Phase, graded, outcome_of
from rock.testing.made_run import MadeCall, MadeEpisode, MadeGroup, trajectory_of

IDS = st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=4)


def message(role: str, text: str) -> Raw:
    return Raw(msgspec.json.encode({"role": role, "content": text}))


def answer(text: str, *, tool: bool = False) -> AssistantMessage:
    call = ToolCall(id=f"id-{text}", function=ToolFunction(name="bash", arguments='{"a": 1}'))
    return AssistantMessage(content=text, tool_calls=[call] if tool else None)


@st.composite
def call_lists(draw: st.DrawFn) -> list[MadeCall]:
    calls: list[MadeCall] = []
    continued: set[tuple[int, int]] = set()
    for number in range(draw(st.integers(1, 6))):
        answers = draw(st.lists(IDS, min_size=1, max_size=3))
        kind = draw(st.sampled_from(["goes_on", "retokenised", "root"])) if calls else "root"
        parent: tuple[int, int] | None = None
        messages: list[Raw] = [message("user", f"ask {number}")]
        prompt: Sequence[int] = draw(IDS)
        branch = "new_root" if calls else None
        if kind != "root":
            place = draw(st.integers(0, len(calls) - 1))
            parent = (place, draw(st.integers(0, len(calls[place].answers) - 1)))
            before = calls[place]
            messages = [*before.messages, message("assistant", f"echo {place}"), *messages]
            branch = "forked" if parent in continued else None
            continued.add(parent)
            if kind == "goes_on":
                new = draw(st.lists(st.integers(0, 9), max_size=3))
                prompt = [*before.prompt, *before.answers[parent[1]], *new]
        calls.append(
            MadeCall(
                prompt=prompt,
                answers=answers,
                messages=messages,
                answer=answer(f"answer {number}", tool=draw(st.booleans())),
                parent=parent,
                branch=branch,
                version=draw(st.integers(0, 3)) + number,
            )
        )
    return calls


def solved(reward: float = 1.0) -> Outcome:
    return graded(reward, agent_class=None)


def dead() -> Outcome:
    return outcome_of(OutcomeClass.SANDBOX_DIED, Phase.AGENT)


def one_chain(session_id: str, *texts: str, version: int = 1) -> Trajectory:
    """A chain of one answer per text, asked by the same messages each time."""
    calls: list[MadeCall] = []
    prompt: list[int] = []
    messages: list[Raw] = []
    for number, text in enumerate(texts):
        prompt = [*prompt, 7, number]
        messages = [*messages, message("user", f"ask {number}")]
        parent = (number - 1, 0) if number else None
        sampled = [len(text), 100 + number, 3]
        calls.append(
            MadeCall(
                prompt=prompt,
                answers=[sampled],
                messages=messages,
                answer=answer(text),
                parent=parent,
                version=version + number,
            )
        )
        prompt = [*prompt, *sampled]
        messages = [*messages, message("assistant", f"echo of {text}")]
    return trajectory_of(session_id, calls)


def group(task_id: str, *rewards: float | None) -> MadeGroup:
    """Members with these rewards; None is a failure of the infrastructure."""
    return MadeGroup(
        task_id,
        [
            MadeEpisode(dead(), None)
            if reward is None
            else MadeEpisode(
                solved(reward), one_chain(f"{task_id}-{index}", "first", f"answer {index}")
            )
            for index, reward in enumerate(rewards)
        ],
    )
