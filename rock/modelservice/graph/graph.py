"""The message graph of one session: every message once, a call is a path, an answer is a node.

Two trees over the same messages. The *as-sent* tree reproduces a request byte for byte; a message's
bytes are stored once per session and named by a number, so a turn costs what is new in it. The
*normalised* tree (`messages.describe`) finds the answer that a request goes on from although its
client spelled it differently. Everything here is rebuilt by replaying the journal in order; node and
message numbers come out the same.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from msgspec import Raw

from rock.modelservice.graph.messages import Described, describe, describe_answer
from rock.modelservice.graph.places import AnswerRef, Extension, Located, Placement
from rock.modelservice.wire import AssistantMessage

_ROOT = 0
_SYSTEM_ROLES = ("system", "developer")


class MessageGraph:
    """One session's messages, requests and answers."""

    def __init__(self) -> None:
        self._blobs: list[bytes] = []
        self._raws: list[Raw] = []
        """The same bytes: what was sent compares with them without being copied."""
        self._described: list[Described | None] = []
        self._numbers: dict[bytes, int] = {}
        # As-sent nodes; index 0 is the root. `latest` is the child that was added last: of most the only
        # one, and found without a table, which for many sessions is far away in memory.
        self._parent = array("i", [_ROOT])
        self._blob = array("i", [-1])
        self._latest = array("i", [_ROOT])
        self._depth = array("i", [0])
        self._normal = array("i", [_ROOT])
        self._siblings: dict[int, int] = {}
        """Children of nodes that have several, by parent and message in one number."""
        # Normalised nodes, alike.
        self._normal_parent = array("i", [_ROOT])
        self._normal_latest = array("i", [_ROOT])
        self._normal_digest = array("q", [0])
        self._normal_role: list[str] = [""]
        self._normal_siblings: dict[int, int] = {}
        """The same by parent and digest in one number: a tuple is one more object that stays."""
        self._answer: list[AnswerRef | None] = [None]
        """By normalised node: the answer that it is."""
        self._asked = bytearray(1)
        """By normalised node: 1 where a request ended."""
        self._any_asked = False
        self._answer_of_call_id: dict[str, tuple[int, AnswerRef] | None] = {}
        self._echoes: dict[int, AnswerRef] = {}
        """As-sent nodes that a tool-call id identified as one answer, even among equal answers."""
        self._continued: set[int] = set()
        """The answers that a chain went on from, each as one number."""
        self._tools_seen = False

    # --- requests ---

    def locate(self, messages: Sequence[Raw], tools: Raw | None = None) -> Located:
        """How much of a request is known; changes nothing. The cost is that of reading it."""
        node, covered = _ROOT, 0
        latest, blobs, raws = self._latest, self._blob, self._raws
        for message in messages:
            # The usual case compares bytes with the path taken last, and hashes nothing.
            last = latest[node]
            if last == _ROOT:  # nothing was ever asked after this
                break
            if raws[blobs[last]] != message:
                known = self._known_child(node, message)
                if known is None:
                    break
                last = known
            node = last
            covered += 1
        tools_sent = None if tools is None else bytes(tools)
        tools_known = tools_sent is None or tools_sent in self._numbers
        rest = [bytes(message) for message in messages[covered:]]
        return Located(node, rest, tools_sent, not rest and tools_known)

    def number_of(self, blob: bytes | None) -> int | None:
        return None if blob is None else self._numbers.get(blob)

    def extend(self, located: Located) -> Extension:
        """Add a request that `locate` has just looked up."""
        sent = located.rest if located.tools is None else [*located.rest, located.tools]
        numbers, begun = self._numbers, len(self._blobs)
        fresh: dict[bytes, int] = {}
        path: list[int] = []
        for blob in sent:
            number = numbers.get(blob)
            if number is None:
                number = fresh.setdefault(blob, begun + len(fresh))
            path.append(number)
        tools = None if located.tools is None else path.pop()
        return self.replay(base=located.base, path=path, blobs=list(fresh), tools=tools)

    def replay(
        self, *, base: int, path: list[int], blobs: list[bytes], tools: int | None
    ) -> Extension:
        """Add what `extend` found, as the journal recorded it."""
        for blob in blobs:
            self._numbers[blob] = len(self._blobs)
            self._blobs.append(blob)
            self._raws.append(Raw(blob))
            self._described.append(None)
        node, known = base, self._depth[base]
        still_known = True
        for number in path:
            node, was_known = self._add(node, number)
            still_known = still_known and was_known
            known += still_known
        return Extension(base=base, path=path, blobs=blobs, leaf=node, known=known, tools=tools)

    def place(self, extension: Extension) -> Placement:
        """Find the parent of the request just added, and remember that it was asked.

        Whether the parent's chain now goes on here is for the caller to say: `go_on`.
        """
        leaf = self._normal[extension.leaf]
        roles: list[str] = []  # from the leaf up
        node = extension.leaf
        parent: AnswerRef | None = None
        while node != _ROOT:
            normal = self._normal[node]
            parent = self._echoes.get(node) or self._answer[normal]
            if parent is not None:
                break
            roles.append(self._normal_role[normal])
            node = self._parent[node]
        covers = self._depth[node]
        branch: str | None = None
        if self._asked[leaf]:
            branch = "retry"
        elif parent is not None:
            branch = self._branch_from(parent, roles)
        elif self._any_asked:
            branch = self._branch_from_root(extension, roles)
        self._asked[leaf] = 1
        self._any_asked = True
        self._tools_seen = self._tools_seen or extension.tools is not None
        return Placement(parent, covers, branch)

    def go_on(self, parent: AnswerRef) -> None:
        """A further call from this answer is a fork from now on."""
        self._continued.add(_packed(parent))

    def _branch_from(self, parent: AnswerRef, roles_after: list[str]) -> str | None:
        if "assistant" in roles_after:
            return "edit"  # it carries an answer that nobody here gave
        return "fork" if _packed(parent) in self._continued else None

    def _branch_from_root(self, extension: Extension, roles_up: list[str]) -> str:
        system = 0
        for role in reversed(roles_up):
            if role not in _SYSTEM_ROLES:
                break
            system += 1
        if extension.known > system:
            return "edit"
        if extension.tools is None and self._tools_seen:
            return "auxiliary"
        return "new_root"

    # --- answers ---

    def add_answer(self, leaf: int, ref: AnswerRef, message: AssistantMessage) -> None:
        """Add the answer to the request that ends in the as-sent node `leaf`."""
        described = describe_answer(message)
        node, _ = self._normal_child(self._normal[leaf], described)
        self._answer[node] = ref
        for call_id in described.call_ids:
            # An id given twice identifies nothing; the content must do.
            unique = call_id not in self._answer_of_call_id
            self._answer_of_call_id[call_id] = (node, ref) if unique else None

    # --- reading ---

    def shared(self, leaf: int, other: int) -> int:
        """How many leading messages the requests that end in two as-sent nodes have in common."""
        depth, parent = self._depth, self._parent
        while leaf != other:
            if depth[leaf] >= depth[other]:
                leaf = parent[leaf]
            else:
                other = parent[other]
        return depth[leaf]

    def depth(self, leaf: int) -> int:
        """How many messages the request that ends in `leaf` has."""
        return self._depth[leaf]

    def messages(self, leaf: int, after: int = 0) -> list[Raw]:
        """The request that ends in `leaf`, byte for byte, without its first `after` messages."""
        found: list[Raw] = []
        for _ in range(self._depth[leaf] - after):
            found.append(self._raws[self._blob[leaf]])
            leaf = self._parent[leaf]
        found.reverse()
        return found

    def blob(self, number: int) -> bytes:
        return self._blobs[number]

    # --- nodes ---

    def _known_child(self, node: int, message: Raw) -> int | None:
        number = self._numbers.get(bytes(message))
        return None if number is None else self._siblings.get(node << 32 | number)

    def _add(self, parent: int, number: int) -> tuple[int, bool]:
        """The as-sent child, and whether its normalised node was there before."""
        last = self._latest[parent]
        if last != _ROOT:
            known_node = last
            if self._blob[last] != number:
                known_node = self._siblings.get(parent << 32 | number, _ROOT)
            if known_node != _ROOT:
                return known_node, True
        described = self._described[number]
        if described is None:
            described = self._described[number] = describe(self._blobs[number])
        node = len(self._parent)
        echo = self._echoed(self._normal[parent], described) if described.call_ids else None
        if echo is not None:
            normal, self._echoes[node] = echo
            known = True
        else:
            normal, known = self._normal_child(self._normal[parent], described)
        self._parent.append(parent)
        self._blob.append(number)
        self._latest.append(_ROOT)
        self._depth.append(self._depth[parent] + 1)
        self._normal.append(normal)
        if last != _ROOT:
            self._siblings[parent << 32 | self._blob[last]] = last
            self._siblings[parent << 32 | number] = node
        self._latest[parent] = node
        return node, known

    def _echoed(self, parent: int, described: Described) -> tuple[int, AnswerRef] | None:
        """The answer below the normalised node `parent` that one of the message's ids names."""
        for call_id in described.call_ids:
            answer = self._answer_of_call_id.get(call_id)
            if answer is not None and self._normal_parent[answer[0]] == parent:
                return answer
        return None

    def _normal_child(self, parent: int, described: Described) -> tuple[int, bool]:
        digest, last = described.digest, self._normal_latest[parent]
        if last != _ROOT:
            known = last
            if self._normal_digest[last] != digest:
                known = self._normal_siblings.get(hash((parent, digest)), _ROOT)
            if known != _ROOT:
                return known, True
        node = len(self._normal_parent)
        self._normal_parent.append(parent)
        self._normal_latest.append(_ROOT)
        self._normal_digest.append(digest)
        self._normal_role.append(described.role)
        self._answer.append(None)
        self._asked.append(0)
        if last != _ROOT:
            self._normal_siblings[hash((parent, self._normal_digest[last]))] = last
            self._normal_siblings[hash((parent, digest))] = node
        self._normal_latest[parent] = node
        return node, False


def _packed(ref: AnswerRef) -> int:
    return ref.call << 32 | ref.choice
