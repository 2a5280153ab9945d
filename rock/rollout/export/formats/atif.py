"""`atif`: one Agent Trajectory Interchange Format (v1.8) document per episode and line.

The first chain is the document, the others are embedded as sub-agents. Each own answer is an agent
step with its exact prompt and completion ids and log-probabilities; assistant messages of a prefix
that another chain owns are marked as copied context. What the format has no field for (reward,
outcome, group, versions, raw arguments) is in `extra`.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import Any, ClassVar

import msgspec

from rock.errors import ConfigError
from rock.modelservice.wire import ToolCall
from rock.rollout.export.formats.base import (
    Facts,
    Reloaded,
    by_episode,
    flags_of,
    floats_of,
    ids_of,
)
from rock.rollout.export.formats.line import ids
from rock.rollout.export.formats.talk import Said, said_in, text_of, tools_of
from rock.rollout.export.options import ExportOptions, Rows
from rock.rollout.export.sample import Answer, Sample

VERSION = "ATIF-v1.8"
_SOURCES = {"system": "system", "developer": "system", "assistant": "agent"}


class Atif:
    """Documents that Harbor's models accept."""

    name: ClassVar[str] = "atif"
    stem: ClassVar[str] = "part-"
    suffix: ClassVar[str] = ".jsonl"
    about: ClassVar[str] = f"{VERSION}, one document per episode and line"
    messages: ClassVar[bool] = True
    indexed: ClassVar[bool] = False
    card: ClassVar[str | None] = None

    def __init__(self, options: ExportOptions, facts: Facts) -> None:
        if options.rows is not Rows.CHAIN:
            raise ConfigError("atif: a document holds whole chains (rows=chain)")
        self._facts = facts

    def encode(self, samples: Iterator[Sample]) -> Iterator[bytes]:
        for chains in by_episode(samples):
            yield msgspec.json.encode(self._document(chains)) + b"\n"

    def _document(self, chains: list[Sample]) -> dict[str, Any]:
        first, *others = [self._trajectory(chain) for chain in chains]
        if others:
            first["subagent_trajectories"] = others
        return first

    def _trajectory(self, sample: Sample) -> dict[str, Any]:
        tools = tools_of(sample)
        agent: dict[str, Any] = {
            "name": self._facts.agent,
            "version": "unknown",
            "model_name": sample.conversation[-1].model,
        }
        if tools:
            agent["tool_definitions"] = tools
        steps = _steps(sample)
        return {
            "schema_version": VERSION,
            "session_id": sample.session_id,
            "trajectory_id": sample.sample_id,
            "agent": agent,
            "steps": [{"step_id": number, **step} for number, step in enumerate(steps, 1)],
            "final_metrics": {
                "total_prompt_tokens": sum(answer.start for answer in sample.answers),
                "total_completion_tokens": sample.mask.count(1),
                "total_steps": len(steps),
            },
            "extra": msgspec.to_builtins(ids(sample)),
        }

    def decode(self, data: bytes) -> list[Reloaded]:
        found: list[Reloaded] = []
        for text in data.splitlines():
            document = msgspec.json.decode(text)
            for chain in [document, *document.get("subagent_trajectories", [])]:
                found.append(_reloaded(chain))
        return found


def _steps(sample: Sample) -> list[dict[str, Any]]:
    answers = {answer.node: answer for answer in sample.answers}
    steps: list[dict[str, Any]] = []
    for item in said_in(sample):
        fields = item.fields()
        role = str(fields.get("role"))
        if role == "tool" and _observed(steps, fields):
            continue
        if role == "assistant":
            own = answers.get((item.turn.call_id, item.turn.choice)) if item.turn else None
            steps.append(_agent_step(sample, item, fields, own))
        elif role == "tool":
            result = {"content": text_of(fields.get("content"))}
            steps.append({"source": "system", "message": "", "observation": {"results": [result]}})
        else:
            content = fields.get("content")
            step: dict[str, Any] = {
                "source": _SOURCES.get(role, "user"),
                "message": text_of(content),
            }
            if isinstance(content, list):
                step["extra"] = {"content": content}
            steps.append(step)
    return steps


def _observed(steps: list[dict[str, Any]], fields: dict[str, Any]) -> bool:
    """Put a tool's result beside the call it answers. False if the step before made no such call."""
    if not steps:
        return False
    calls = {call["tool_call_id"] for call in steps[-1].get("tool_calls", ())}
    call_id = fields.get("tool_call_id")
    if call_id not in calls:
        return False
    observation = steps[-1].setdefault("observation", {"results": []})
    observation["results"].append(
        {"source_call_id": call_id, "content": text_of(fields.get("content"))}
    )
    return True


def _agent_step(
    sample: Sample, item: Said, fields: dict[str, Any], own: Answer | None
) -> dict[str, Any]:
    step: dict[str, Any] = {"source": "agent", "message": text_of(fields.get("content"))}
    reasoning = fields.get("reasoning_content")
    if isinstance(reasoning, str) and reasoning:
        step["reasoning_content"] = reasoning
    calls = _tool_calls(fields)
    if calls:
        step["tool_calls"] = calls
    if own is None or item.turn is None:
        step["is_copied_context"] = True
        return step
    part = slice(own.start, own.end)
    last = own.spans[-1]
    step["model_name"] = item.turn.model
    step["llm_call_count"] = 1
    step["metrics"] = {
        "prompt_tokens": own.start,
        "completion_tokens": own.end - own.start,
        "prompt_token_ids": sample.token_ids[: own.start].tolist(),
        "completion_token_ids": sample.token_ids[part].tolist(),
        "logprobs": sample.logprobs[part].tolist(),
    }
    step["extra"] = {
        "call_id": last.call_id,
        "choice": last.choice,
        "policy_versions": [
            {"tokens": count, "policy_version": version} for count, version in own.versions
        ],
        "finish_reason": last.finish_reason,
        "temperature": last.temperature,
    }
    return step


def _tool_calls(fields: dict[str, Any]) -> list[dict[str, Any]]:
    try:
        calls = msgspec.convert(fields.get("tool_calls") or [], list[_Called])
    except msgspec.ValidationError:
        return []
    return [_called(call) for call in calls]


class _Function(msgspec.Struct):
    name: str
    arguments: Any = ""


class _Called(msgspec.Struct):
    function: _Function
    id: str | None = None


def _called(call: _Called | ToolCall) -> dict[str, Any]:
    raw = call.function.arguments
    arguments: Any = raw
    if isinstance(raw, str):
        try:
            arguments = msgspec.json.decode(raw)
        except msgspec.DecodeError:
            arguments = None
    return {
        "tool_call_id": call.id or "",
        "function_name": call.function.name,
        # The format wants an object; what the model really wrote is beside it.
        "arguments": arguments if isinstance(arguments, dict) else {},
        "extra": {"raw_arguments": raw},
    }


def _reloaded(chain: dict[str, Any]) -> Reloaded:
    """The sequence again: the last prompt holds every answer before it."""
    own = [step["metrics"] for step in chain["steps"] if "metrics" in step]
    tokens = ids_of(own[-1]["prompt_token_ids"] + own[-1]["completion_token_ids"])
    mask = flags_of([0] * len(tokens))
    logprobs = floats_of([0.0] * len(tokens))
    for metrics in own:
        start = len(metrics["prompt_token_ids"])
        end = start + len(metrics["completion_token_ids"])
        mask[start:end] = array("b", b"\1" * (end - start))
        logprobs[start:end] = floats_of(metrics["logprobs"])
    extra = chain["extra"]
    return Reloaded(
        token_ids=tokens,
        mask=mask,
        logprobs=logprobs,
        sample_id=extra["sample_id"],
        group_id=extra["group_id"],
        index=extra["index"],
        reward=extra["reward"],
        other=chain,
    )
