"""Which templates keep what the model has seen, and what `rock tokens check` says of the others."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rock.errors import ConfigError
from rock.modelservice.render import Report, check, load
from tests.cli.command import rock
from tests.modelservice.render.families import family_directory, write_family
from tests.modelservice.render.leases import chat_of


def statuses(report: Report) -> dict[str, set[str]]:
    """Conversation -> how its prompts did."""
    found: dict[str, set[str]] = {}
    for finding in report.findings:
        found.setdefault(finding.conversation, set()).add(finding.status)
    return found


def test_a_template_that_keeps_everything_is_prefix_stable() -> None:
    report = check(chat_of("chatml"))
    assert report.prefix_stable
    assert report.extendable
    assert set(statuses(report)) >= {"turns", "tool call", "thinking and tools"}


def test_thoughts_that_a_further_question_removes_are_named() -> None:
    report = check(chat_of("qwen3"))
    assert not report.prefix_stable
    assert report.extendable
    assert statuses(report)["thinking and tools"] == {"clean"}
    (last,) = [f for f in report.findings if f.conversation == "thinking and tools, then a user"][
        -1:
    ]
    assert (last.status, last.cause) == ("realigned", "template")
    assert (last.added, last.changed) == ((6,), 1)
    assert "I should look." in last.detail


def test_tools_that_move_make_new_chains() -> None:
    report = check(chat_of("mistral"))
    assert not report.extendable
    found = statuses(report)
    assert found["turns"] == {"refused"}
    assert found["turns without system"] == {"clean"}
    assert found["several tool calls"] == {"clean"}
    assert found["parallel tool calls"] == {"clean", "fork"}


def test_what_a_template_refuses_is_said_with_its_reason() -> None:
    report = check(chat_of("llama3"))
    assert report.prefix_stable
    refused = [finding for finding in report.findings if finding.status == "refused"]
    assert [finding.conversation for finding in refused] == ["parallel tool calls"]
    assert "one tool call at a time" in refused[0].detail


@pytest.mark.parametrize("family", ["qwen3", "glm"])
def test_variables_of_the_template_reach_it(family: str) -> None:
    thinking = check(chat_of(family))
    assert statuses(thinking)["thinking"] == {"realigned"}
    assert statuses(check(chat_of("qwen3"), template={"enable_thinking": False}))[
        "thinking and tools"
    ] == {"realigned"}


async def test_the_command_says_yes_or_no_and_why(tmp_path: Path) -> None:
    good = await rock("tokens", "check", str(family_directory("chatml")), home=tmp_path)
    assert good.code == 0, good.err
    assert "prefix-stable: yes" in good.out
    bad = await rock("tokens", "check", str(family_directory("qwen3")), home=tmp_path)
    assert bad.code == 1
    assert "prefix-stable: no" in bad.out
    assert "changes message 1 (template)" in bad.out
    argv = ["tokens", "check", str(family_directory("qwen3")), "--json"]
    as_json = await rock(*argv, "--template", "enable_thinking=false", home=tmp_path)
    body = json.loads(as_json.out)
    assert (body["prefix_stable"], body["extendable"]) == (False, True)


def test_a_directory_without_a_model_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no tokenizer\.json"):
        load(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ConfigError, match="not a tokenizer"):
        load(tmp_path)
    write_family(tmp_path, "chatml")
    (tmp_path / "chat_template.jinja").unlink()
    with pytest.raises(ConfigError, match="no chat template"):
        load(tmp_path)
    (tmp_path / "chat_template.jinja").write_text("{% if %}")
    with pytest.raises(ConfigError, match="chat template, line 1"):
        load(tmp_path).render([], None, ask=True)


def test_a_template_inside_the_configuration_is_read_too(tmp_path: Path) -> None:
    write_family(tmp_path, "chatml")
    (tmp_path / "chat_template.jinja").unlink()
    named = [
        {"name": "default", "template": "{% generation %}plain{% endgeneration %}"},
        {"name": "tool_use", "template": "{{ bos_token }}tools"},
    ]
    config = {"chat_template": named, "bos_token": {"content": "<b>"}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    chat = load(tmp_path)
    assert chat.render([], None, ask=True) == "plain"
    assert chat.render([], [{}], ask=True) == "<b>tools"
