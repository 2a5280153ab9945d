"""An agent with one tool on LangGraph: `langgraph_agent.py chat|responses|stream INSTRUCTION`."""

import subprocess
import sys

from langchain_core.messages import ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph


@tool
def bash(command: str) -> str:
    """Run a shell command."""
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60)
    return done.stdout + done.stderr


mode, task = sys.argv[1:]
llm = ChatOpenAI(
    model="policy", use_responses_api=mode == "responses", streaming=mode == "stream"
).bind_tools([bash])


def think(state):
    return {"messages": [llm.invoke(state["messages"])]}


def act(state):
    calls = state["messages"][-1].tool_calls
    results = [ToolMessage(bash.invoke(c["args"]), tool_call_id=c["id"]) for c in calls]
    return {"messages": results}


graph = StateGraph(MessagesState)
graph.add_node("think", think)
graph.add_node("act", act)
graph.add_edge(START, "think")
graph.add_conditional_edges(
    "think", lambda state: "act" if state["messages"][-1].tool_calls else "__end__"
)
graph.add_edge("act", "think")
for message in graph.compile().invoke({"messages": [("user", task)]})["messages"]:
    print(message.type, message.text)
