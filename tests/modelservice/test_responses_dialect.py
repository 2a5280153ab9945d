"""Golden wire tests of the Responses dialect: request to canonical form and back to output items."""

import json
from typing import Any

import msgspec
import pytest

from rock.errors import BadRequest
from rock.modelservice.dialects.base import Exchange
from rock.modelservice.dialects.responses import ResponsesDialect
from rock.modelservice.wire import AssistantMessage, ToolCall
from tests.modelservice.golden import answer, call, parsed, plain, reply

DIALECT = ResponsesDialect(now=lambda: 1700000000.9)
HELLO: dict[str, Any] = {"model": "m", "input": "hi"}
CODEX_TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "name": "exec_command",
        "description": "Runs a command",
        "strict": False,
        "parameters": {"type": "object", "properties": {"cmd": {"type": "string"}}},
    },
    {
        "type": "namespace",
        "name": "multi_agent_v1",
        "description": "agents",
        "tools": [
            {
                "type": "function",
                "name": "spawn_agent",
                "parameters": {"type": "object"},
            }
        ],
    },
    {"type": "web_search", "external_web_access": False},
    {
        "type": "custom",
        "name": "apply_diff",
        "description": "Edits",
        "format": {"type": "grammar", "syntax": "lark", "definition": "start: X"},
    },
    {"type": "local_shell"},
    {"type": "shell"},
    {"type": "apply_patch"},
]


def messages_of(*items: dict[str, Any], **fields: Any) -> Any:
    return plain(parsed(DIALECT, {**HELLO, **fields, "input": list(items)}).messages)


def output_of(*calls: ToolCall, **fields: Any) -> Any:
    body = {**HELLO, "tools": CODEX_TOOLS, **fields}
    return reply(DIALECT, body, answer(None, calls=list(calls)))["output"]


def test_a_string_is_a_user_message_after_the_instructions() -> None:
    request = parsed(DIALECT, {**HELLO, "instructions": "be brief"})
    assert plain(request.messages) == [
        {"role": "system", "content": "be brief", "name": "instructions"},
        {"role": "user", "content": "hi"},
    ]


def test_items_of_one_reply_are_one_assistant_message_again() -> None:
    messages = messages_of(
        {
            "type": "message",
            "role": "developer",
            "id": "a",
            "content": [{"type": "input_text", "text": "rules"}],
        },
        {"role": "user", "content": "list it"},
        {
            "type": "reasoning",
            "id": "rs_c1",
            "summary": [{"type": "summary_text", "text": "hm"}],
            "encrypted_content": "rock-c1",
        },
        {
            "type": "message",
            "role": "assistant",
            "id": "msg_c1",
            "status": "completed",
            "content": [{"type": "output_text", "text": "looking", "annotations": []}],
        },
        {"type": "function_call", "call_id": "t1", "name": "ls", "arguments": '{ "p":1}'},
        {
            "type": "function_call",
            "call_id": "t2",
            "name": "spawn_agent",
            "namespace": "multi_agent_v1",
            "arguments": "{}",
        },
        {"type": "function_call_output", "call_id": "t1", "output": "a b"},
        {
            "type": "function_call_output",
            "call_id": "t2",
            "output": [
                {"type": "input_text", "text": "see"},
                {"type": "input_image", "image_url": "data:image/png;base64,iV", "detail": "low"},
            ],
        },
        {"type": "function_call", "call_id": "t3", "name": "ls", "arguments": "{}"},
    )
    image = {"url": "data:image/png;base64,iV", "detail": "low"}
    assert messages == [
        {"role": "developer", "content": "rules"},
        {"role": "user", "content": "list it"},
        {
            "role": "assistant",
            "content": "looking",
            "reasoning_content": "hm",
            "tool_calls": [
                {
                    "id": "t1",
                    "type": "function",
                    "function": {"name": "ls", "arguments": '{ "p":1}'},
                },
                {
                    "id": "t2",
                    "type": "function",
                    "function": {"name": "multi_agent_v1__spawn_agent", "arguments": "{}"},
                },
            ],
        },
        {"role": "tool", "content": "a b", "tool_call_id": "t1"},
        {
            "role": "tool",
            "content": [
                {"type": "text", "text": "see"},
                {"type": "image_url", "image_url": image},
            ],
            "tool_call_id": "t2",
        },
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": "t3", "type": "function", "function": {"name": "ls", "arguments": "{}"}}
            ],
        },
    ]


def test_two_replies_in_a_row_stay_two_messages() -> None:
    said = {"role": "assistant", "content": "a"}
    assert messages_of(said, said) == [said, said]
    thought = {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "x"}]}
    assert [m.get("reasoning_content") for m in messages_of(thought, said, thought, said)] == [
        "x",
        "x",
    ]


def test_reasoning_sent_back_as_a_message_of_its_own_is_reasoning_again() -> None:
    thought = {"role": "assistant", "content": "<think>\nhm\nso\n</think>"}
    said = {"role": "assistant", "content": "a"}
    call = {"type": "function_call", "call_id": "t1", "name": "ls", "arguments": "{}"}
    done = {"type": "function_call_output", "call_id": "t1", "output": "b"}
    assert messages_of(thought, said) == [{**said, "reasoning_content": "hm\nso"}]
    acted, _, spoke = messages_of(thought, call, done, said)
    assert (acted["content"], acted["reasoning_content"]) == (None, "hm\nso")
    assert spoke == said
    user = {"role": "user", "content": "go on"}
    assert messages_of(said, thought, user, said) == [said, thought, user, said]


def test_reasoning_that_another_service_sealed_travels_with_its_message() -> None:
    [message] = messages_of(
        {"type": "reasoning", "summary": [], "encrypted_content": "gAAA"},
        {"role": "assistant", "content": "a"},
    )
    assert message["encrypted_reasoning"] == ["gAAA"]


def test_every_kind_of_tool_becomes_a_function() -> None:
    request = parsed(DIALECT, {**HELLO, "tools": CODEX_TOOLS})
    tools = {tool["function"]["name"]: tool["function"] for tool in plain(request.tools)}
    assert list(tools) == [
        "exec_command",
        "multi_agent_v1__spawn_agent",
        "apply_diff",
        "local_shell",
        "shell",
        "apply_patch",
    ]
    assert tools["exec_command"] == {
        "name": "exec_command",
        "description": "Runs a command",
        "parameters": CODEX_TOOLS[0]["parameters"],
        "strict": False,
    }
    text = tools["apply_diff"]["parameters"]["properties"]["input"]
    assert text["type"] == "string"
    assert "lark" in text["description"]
    assert "start: X" in text["description"]
    assert plain(request.extra)["responses"] == {
        "withheld_tools": [CODEX_TOOLS[2]],
        "tools": {"multi_agent_v1": {"description": "agents"}},
    }


def test_what_a_function_has_no_place_for_is_kept() -> None:
    tool = {"type": "function", "name": "f", "parameters": None, "defer_loading": True}
    request = parsed(DIALECT, {**HELLO, "tools": [tool]})
    assert plain(request.extra) == {"responses": {"tools": {"f": {"defer_loading": True}}}}


def test_calls_go_back_as_the_kind_of_tool_they_were() -> None:
    items = output_of(
        call("t1", "exec_command", '{ "cmd":"ls"}'),
        call("t2", "multi_agent_v1__spawn_agent", "{}"),
        call("t3", "apply_diff", '{"input":"*** x"}'),
        call("t4", "local_shell", '{"command":["ls"]}'),
        call("t5", "shell", '{"commands":["ls"]}'),
        call("t6", "apply_patch", '{"type":"delete_file","path":"a"}'),
        call("t7", "unheard_of", "not json"),
    )
    assert items == [
        {
            "type": "function_call",
            "id": "fc_t1",
            "call_id": "t1",
            "name": "exec_command",
            "arguments": '{ "cmd":"ls"}',
            "status": "completed",
        },
        {
            "type": "function_call",
            "id": "fc_t2",
            "call_id": "t2",
            "name": "spawn_agent",
            "namespace": "multi_agent_v1",
            "arguments": "{}",
            "status": "completed",
        },
        {
            "type": "custom_tool_call",
            "id": "ctc_t3",
            "call_id": "t3",
            "name": "apply_diff",
            "input": "*** x",
            "status": "completed",
        },
        {
            "type": "local_shell_call",
            "id": "lsh_t4",
            "call_id": "t4",
            "action": {"type": "exec", "env": {}, "command": ["ls"]},
            "status": "completed",
        },
        {
            "type": "shell_call",
            "id": "sh_t5",
            "call_id": "t5",
            "action": {"commands": ["ls"]},
            "status": "completed",
        },
        {
            "type": "apply_patch_call",
            "id": "apc_t6",
            "call_id": "t6",
            "operation": {"type": "delete_file", "path": "a"},
            "status": "completed",
        },
        {
            "type": "function_call",
            "id": "fc_t7",
            "call_id": "t7",
            "name": "unheard_of",
            "arguments": "not json",
            "status": "completed",
        },
    ]


def test_output_items_come_back_as_the_calls_that_the_model_made() -> None:
    made = [
        call("t3", "apply_diff", '{"input":"*** x"}'),
        call("t4", "local_shell", '{"env":{},"command":["ls"]}'),
        call("t5", "shell", '{"commands":["ls"]}'),
        call("t6", "apply_patch", '{"type":"delete_file","path":"a"}'),
    ]
    results: list[dict[str, Any]] = [
        {"type": "custom_tool_call_output", "call_id": "t3", "output": "ok"},
        {"type": "local_shell_call_output", "id": "t4", "output": "ok"},
        {"type": "shell_call_output", "call_id": "t5", "output": [{"stdout": "a", "stderr": ""}]},
        {"type": "apply_patch_call_output", "call_id": "t6", "status": "failed"},
    ]
    said, *told = messages_of(*output_of(*made), *results)
    assert [c["function"] for c in said["tool_calls"]] == [
        msgspec.to_builtins(c.function) for c in made
    ]
    assert told == [
        {"role": "tool", "content": "ok", "tool_call_id": "t3"},
        {"role": "tool", "content": "ok", "tool_call_id": "t4"},
        {"role": "tool", "content": '[{"stdout":"a","stderr":""}]', "tool_call_id": "t5"},
        {"role": "tool", "content": "failed", "tool_call_id": "t6", "is_error": True},
    ]


def test_a_custom_tool_gets_all_that_was_written_when_it_is_not_what_was_asked() -> None:
    [item] = output_of(call("t3", "apply_diff", "*** raw"))
    assert item["input"] == "*** raw"
    [item] = output_of(call("t4", "local_shell", "ls"))
    assert (item["type"], item["arguments"]) == ("function_call", "ls")


def test_metadata_in_another_order_is_the_same_request() -> None:
    first, again = (
        parsed(DIALECT, {**HELLO, "client_metadata": metadata}).extra
        for metadata in ({"a": "1", "b": {"d": 1, "c": 2}}, {"b": {"d": 1, "c": 2}, "a": "1"})
    )
    assert bytes(first["responses"]) == bytes(again["responses"])
    odd = parsed(DIALECT, {**HELLO, "client_metadata": "text"}).extra
    assert plain(odd["responses"]) == {"client_metadata": "text"}


def test_settings_have_their_place_and_the_rest_is_kept() -> None:
    schema = {"type": "object"}
    text = {
        "format": {"type": "json_schema", "name": "n", "schema": schema, "strict": True},
        "verbosity": "low",
    }
    kept = {
        "text": text,
        "reasoning": {"effort": "low", "summary": "auto"},
        "store": False,
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "k",
        "client_metadata": {"a": "b"},
    }
    request = parsed(
        DIALECT,
        {
            **HELLO,
            **kept,
            "max_output_tokens": 9,
            "temperature": 0.1,
            "top_p": 1,
            "parallel_tool_calls": False,
            "background": False,
            "conversation": None,
        },
    )
    assert (request.max_tokens, request.temperature, request.top_p) == (9, 0.1, 1.0)
    assert request.parallel_tool_calls is False
    assert request.reasoning_effort == "low"
    assert plain(request.response_format) == {
        "type": "json_schema",
        "json_schema": {"name": "n", "schema": schema, "strict": True},
    }
    assert plain(request.extra) == {"responses": kept}


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ("auto", "auto"),
        ("required", "required"),
        ({"type": "function", "name": "f"}, {"type": "function", "function": {"name": "f"}}),
        ({"type": "custom", "name": "f"}, {"type": "function", "function": {"name": "f"}}),
        ({"type": "shell"}, {"type": "function", "function": {"name": "shell"}}),
        (
            {
                "type": "allowed_tools",
                "mode": "required",
                "tools": [{"type": "function", "name": "f"}],
            },
            {
                "type": "allowed_tools",
                "allowed_tools": {
                    "mode": "required",
                    "tools": [{"type": "function", "function": {"name": "f"}}],
                },
            },
        ),
    ],
)
def test_tool_choice_is_said_in_chats_words(given: Any, wanted: Any) -> None:
    assert plain(parsed(DIALECT, {**HELLO, "tool_choice": given}).tool_choice) == wanted


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": None}, "input"),
        ({"input": []}, "input"),
        ({"input": 3}, "input"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input[0].type"),
        ({"input": [{"id": "msg_1"}]}, "input[0].type"),
        ({"input": [{"type": "web_search_call", "id": "w"}]}, "input[0].type"),
        ({"input": [{"type": "function_call", "name": "f"}]}, "input[0]"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "file_id": "f"}]}]},
            "input[0].content[0].file_id",
        ),
        (
            {"input": [{"role": "user", "content": [{"type": "input_audio"}]}]},
            "input[0].content[0].type",
        ),
        ({"tools": [{"type": "file_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "mcp", "server_label": "s"}]}, "tools[0].type"),
        ({"tool_choice": "any"}, "tool_choice"),
        ({"tool_choice": {"type": "mcp"}}, "tool_choice.type"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
        ({"background": True}, "background"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"previous_response_id": "resp_x"}, "previous_response_id"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
    ],
)
def test_a_wrong_field_is_named(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(BadRequest) as caught:
        parsed(DIALECT, {**HELLO, **fields})
    assert caught.value.param == param
    assert param in caught.value.message


def test_two_tools_of_one_function_name_are_refused() -> None:
    tools = [{"type": "function", "name": "shell", "parameters": None}, {"type": "shell"}]
    with pytest.raises(BadRequest, match="called 'shell' already"):
        parsed(DIALECT, {**HELLO, "tools": tools})


class Answered:
    """One earlier call of the session."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange

    def exchange(self, call_id: str) -> Exchange | None:
        return self._exchange if call_id == "c1" else None


def test_a_previous_response_brings_its_conversation_without_its_instructions() -> None:
    first = parsed(DIALECT, {**HELLO, "instructions": "old"})
    said = AssistantMessage(content="hello", tool_calls=[call("t1", "ls", "{}")])
    body = {
        "model": "m",
        "instructions": "new",
        "previous_response_id": "resp_c1",
        "input": [{"type": "function_call_output", "call_id": "t1", "output": "a"}],
    }
    history = Answered(Exchange(first, said))
    second = DIALECT.parse(json.dumps(body).encode(), {}, history)
    function = {"name": "ls", "arguments": "{}"}
    assert plain(second.request.messages) == [
        {"role": "system", "content": "new", "name": "instructions"},
        {"role": "user", "content": "hi"},
        {
            "role": "assistant",
            "content": "hello",
            "tool_calls": [{"id": "t1", "type": "function", "function": function}],
        },
        {"role": "tool", "content": "a", "tool_call_id": "t1"},
    ]
    written = json.loads(second.renderer.reply(answer()))
    assert written["previous_response_id"] == "resp_c1"
