"""A trajectory as it travels and is stored: each message once, so it grows with what is new in a turn.

Every request of a session repeats its history. Written out per call, a conversation of 200 turns
holds its first message 200 times; here a message is in one list, a request is a path through it.
Readers get whole calls again: the messages of all calls are the same objects.

Rows are shortened likewise (`stored_rows`).

    {"messages": [m0, m1, …],           each message once
     "nodes": [[-1, 0], [0, 1], …],     [node before, message]; -1 begins a request
     "tool_lists": [[…], …],
     "calls": [{"place": {"leaf": 1, "tools": 0}, "request": {…, "messages": []}, …}], …}
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Raw, Struct, field
from msgspec.structs import replace

from rock.modelservice.graph.stored_rows import StoredRow, stored_rows, whole_rows
from rock.modelservice.wire.messages import CanonicalRequest
from rock.modelservice.wire.trajectory import Trajectory, TrajectoryCall

BEGINNING = -1
"""The node before a request's first message."""


class Place(Struct, omit_defaults=True):
    """Where a request's messages and tools are."""

    leaf: int = BEGINNING
    """Node of the last message."""
    tools: int | None = None


class StoredCall(TrajectoryCall, kw_only=True):
    place: Place | None = None
    """Null in a call that holds its request whole, as files of earlier versions do."""
    original_place: Place | None = None


class StoredTrajectory(Trajectory, kw_only=True):
    # `calls` and `rows` have the subclasses that only this module makes and reads.
    calls: list[StoredCall]  # pyright: ignore[reportIncompatibleVariableOverride, reportGeneralTypeIssues]
    rows: list[StoredRow]  # pyright: ignore[reportIncompatibleVariableOverride, reportGeneralTypeIssues]
    messages: list[Raw] = field(default_factory=list[Raw])
    nodes: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    tool_lists: list[list[Raw]] = field(default_factory=list[list[Raw]])


_ADDED = ("messages", "nodes", "tool_lists")
_decoder = msgspec.json.Decoder(StoredTrajectory)


def stored(trajectory: Trajectory) -> StoredTrajectory:
    """The trajectory with each message once."""
    table = _Table()
    fields = _fields(trajectory)
    fields["calls"] = [table.stored(call) for call in trajectory.calls]
    fields["rows"] = stored_rows(trajectory.rows)
    return StoredTrajectory(
        **fields, messages=table.messages, nodes=table.nodes, tool_lists=table.tool_lists
    )


def whole(kept: StoredTrajectory) -> Trajectory:
    """The trajectory with whole calls. Raises `msgspec.ValidationError` for numbers that name nothing."""
    paths = _Paths(kept.messages, kept.nodes, kept.tool_lists)
    fields = _fields(kept)
    for name in _ADDED:
        del fields[name]
    fields["calls"] = [paths.whole(call) for call in kept.calls]
    fields["rows"] = whole_rows(kept.rows)
    return Trajectory(**fields)


def encode(trajectory: Trajectory) -> bytes:
    return msgspec.json.encode(stored(trajectory))


def decode(data: bytes) -> Trajectory:
    """What `encode` wrote. Raises `msgspec.DecodeError` for what is no trajectory."""
    return whole(_decoder.decode(data))


def _fields(value: Struct) -> dict[str, Any]:
    return {name: getattr(value, name) for name in value.__struct_fields__}


class _Table:
    """Messages and paths found so far."""

    def __init__(self) -> None:
        self.messages: list[Raw] = []
        self.nodes: list[tuple[int, int]] = []
        self.tool_lists: list[list[Raw]] = []
        self._numbers: dict[bytes, int] = {}
        self._seen: dict[int, int] = {}
        """Number by the object: ModelService gives one message as one object to all calls, and a
        history need not be read again for each of them. The trajectory keeps the objects alive."""
        self._nodes: dict[tuple[int, int], int] = {}
        self._tools: dict[bytes, int] = {}

    def stored(self, call: TrajectoryCall) -> StoredCall:
        fields = _fields(call)
        fields["place"], fields["request"] = self._taken_out(call.request)
        if call.original is not None:
            fields["original_place"], fields["original"] = self._taken_out(call.original)
        return StoredCall(**fields)

    def _taken_out(self, request: CanonicalRequest) -> tuple[Place, CanonicalRequest]:
        place = Place(self._leaf(request.messages), self._tools_number(request.tools))
        return place, replace(request, messages=[], tools=None)

    def _leaf(self, messages: Sequence[Raw]) -> int:
        node = BEGINNING
        for message in messages:
            key = (node, self._number(message))
            found = self._nodes.get(key)
            if found is None:
                found = self._nodes[key] = len(self.nodes)
                self.nodes.append(key)
            node = found
        return node

    def _number(self, message: Raw) -> int:
        number = self._seen.get(id(message))
        if number is None:
            number = self._numbers.setdefault(bytes(message), len(self.messages))
            if number == len(self.messages):
                self.messages.append(message)
            self._seen[id(message)] = number
        return number

    def _tools_number(self, tools: list[Raw] | None) -> int | None:
        if tools is None:
            return None
        number = self._tools.setdefault(msgspec.json.encode(tools), len(self.tool_lists))
        if number == len(self.tool_lists):
            self.tool_lists.append(tools)
        return number


class _Paths:
    """Reads what `_Table` found. Numbers that name nothing are `msgspec.ValidationError`."""

    def __init__(
        self, messages: list[Raw], nodes: list[tuple[int, int]], tool_lists: list[list[Raw]]
    ) -> None:
        self._messages = messages
        self._nodes = nodes
        self._tool_lists = tool_lists
        for number, (before, message) in enumerate(nodes):
            if not BEGINNING <= before < number or not 0 <= message < len(messages):
                raise msgspec.ValidationError(f"names nothing before it - at `$.nodes[{number}]`")

    def whole(self, call: StoredCall) -> TrajectoryCall:
        fields = _fields(call)
        place, original = fields.pop("place"), fields.pop("original_place")
        if place is not None:
            fields["request"] = self._filled(call.request, place)
        if original is not None and call.original is not None:
            fields["original"] = self._filled(call.original, original)
        return TrajectoryCall(**fields)

    def _filled(self, request: CanonicalRequest, place: Place) -> CanonicalRequest:
        if not BEGINNING <= place.leaf < len(self._nodes):
            raise msgspec.ValidationError(f"no node {place.leaf} - at `$.calls[...].place.leaf`")
        found: list[Raw] = []
        node = place.leaf
        while node != BEGINNING:
            node, message = self._nodes[node]
            found.append(self._messages[message])
        found.reverse()
        return replace(request, messages=found, tools=self._tools_of(place))

    def _tools_of(self, place: Place) -> list[Raw] | None:
        if place.tools is None:
            return None
        if not 0 <= place.tools < len(self._tool_lists):
            raise msgspec.ValidationError(f"no list {place.tools} - at `$.calls[...].place.tools`")
        return self._tool_lists[place.tools]
