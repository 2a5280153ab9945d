"""OpenTelemetry: a call is one span, from the agent's trace to the worker's, without what was said."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

PROGRAM = """
import asyncio, json, sys
from pathlib import Path
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

exporter = InMemorySpanExporter()
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(exporter))
trace.set_tracer_provider(provider)

from rock.modelservice.wire import AssistantMessage, Choice, Completion, Failure
from rock.testing.service import running_service
from tests.modelservice.live import HELLO, new_session, raw_agent, trainer_of

async def main():
    leases = []
    async with running_service(Path(sys.argv[1])) as service, trainer_of(service) as trainer:
        session = await new_session(service)
        async with raw_agent(service, session.key) as http:
            for text in ("a", "b"):
                body = {**HELLO, "messages": [{"role": "user", "content": text}]}
                headers = {"traceparent": sys.argv[2]} if text == "a" else {}
                asked = asyncio.ensure_future(
                    http.post("/v1/chat/completions", json=body, headers=headers))
                [lease] = (await trainer.claim("w", wait_seconds=5, lease_seconds=0.05)).leases
                [lease] = (await trainer.claim("w2", wait_seconds=5)).leases
                leases.append(lease.traceparent)
                if text == "a":
                    said = Choice(AssistantMessage(content="ok"), token_ids=[1], logprobs=[-1.0])
                    await trainer.complete([Completion(lease.lease_id, [said], prompt_token_ids=[1])])
                else:
                    await trainer.fail([Failure(lease.lease_id)])
                await asked
    spans = [json.loads(span.to_json()) for span in exporter.get_finished_spans()]
    print(json.dumps({"spans": spans, "leases": leases}))

asyncio.run(main())
"""
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


async def traced(tmp_path: Path) -> dict[str, Any]:
    """In a process of its own: a tracer provider is set once per process."""
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(script),
        str(tmp_path / "state"),
        f"00-{TRACE}-{PARENT}-01",
        env={"PYTHONPATH": str(Path(__file__).parents[2]), "LITELLM_LOCAL_MODEL_COST_MAP": "True"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await asyncio.wait_for(process.communicate(), 50)
    assert process.returncode == 0, err.decode()
    return json.loads(out)


async def test_a_call_is_a_span_between_the_agents_trace_and_the_workers(tmp_path: Path) -> None:
    found = await traced(tmp_path)
    good, bad = found["spans"]
    assert (good["name"], bad["name"]) == ("rock.call", "rock.call")
    assert good["context"]["trace_id"] == f"0x{TRACE}"
    assert good["parent_id"] == f"0x{PARENT}"
    assert bad["parent_id"] is None
    assert [event["name"] for event in good["events"]] == ["claimed", "lease_expired", "claimed"]
    assert good["attributes"]["rock.deliveries"] == 2
    assert good["attributes"]["rock.completion_tokens"] == 1
    assert good["attributes"]["rock.call_id"].startswith(good["attributes"]["rock.session_id"])
    assert (good["status"]["status_code"], bad["status"]["status_code"]) == ("UNSET", "ERROR")
    assert bad["status"]["description"] == "call_failed"
    span = good["context"]["span_id"].removeprefix("0x")
    assert found["leases"][0] == f"00-{TRACE}-{span}-01"
