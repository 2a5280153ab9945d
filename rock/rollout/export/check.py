"""Is a row exactly what was sampled? Fails closed: a row with a problem is not exported.

What is checked: one entry per token in all three lists; ids in range; spans that cover the row
without gaps; mask 1 exactly on sampled spans; log-probabilities finite, at most 0, and 0 where
nothing was sampled; each answer's tokens and log-probabilities equal to those stored with its call;
and each answer in one row only.
"""

from __future__ import annotations

import math
from array import array
from dataclasses import dataclass

from rock.modelservice.graph import tokens
from rock.modelservice.wire import ChainClass, Choice, Span, TokenRow

Node = tuple[str, int]
"""An answer: call id and choice."""


@dataclass(frozen=True, slots=True)
class Checked:
    """A row that was found right, packed."""

    chain: str
    token_ids: array[int]
    mask: array[int]
    logprobs: array[float]
    spans: list[Span]
    chain_class: ChainClass
    branch: str | None
    nodes: tuple[Node | None, ...]
    """Per span: the answer that a sampled one is, None for a prompt."""


class RowError(ValueError):
    """Why a row is not exported. Caught where rows are counted; never seen outside."""


def nodes_of(row: TokenRow) -> tuple[Node | None, ...]:
    """The answers of a row. Its chain names the first; what goes on is always a first choice."""
    name = row.chain.rpartition("/")[2]
    choice = int(name) if name.isdigit() else 0
    nodes: list[Node | None] = []
    for span in row.spans:
        if span.kind == "prompt":
            nodes.append(None)
        elif nodes and nodes[-1] is not None and nodes[-1][0] == span.call_id:
            nodes.append(nodes[-1])  # the same answer, sampled on by other weights
        else:
            nodes.append((span.call_id, choice))
            choice = 0
    return tuple(nodes)


def checked(row: TokenRow, choices: dict[str, list[Choice]], seen: set[Node]) -> Checked:
    """The row, packed. Raises `RowError` with the reason. `seen` collects the answers of all rows."""
    ids = _packed_ids(row)
    mask = _packed_mask(row)
    logprobs = array("f", row.logprobs)
    nodes = nodes_of(row)
    position = 0
    for span, node in zip(row.spans, nodes, strict=True):
        if span.start != position or span.end <= span.start or span.end > len(ids):
            raise RowError("spans that do not cover the row")
        position = span.end
        if span.call_id not in choices:
            raise RowError("a span of a call that is not there")
        part = slice(span.start, span.end)
        _check_mask(mask[part], sampled=node is not None)
        if node is None and any(logprobs[part]):
            raise RowError("log-probabilities where nothing was sampled")
    if position != len(ids):
        raise RowError("spans that do not cover the row")
    owned = _answers(row.spans, nodes)
    if not owned:
        raise RowError("no sampled token")
    for node, part in owned:
        _check_answer(node, ids[part], logprobs[part], choices)
        if node in seen:
            raise RowError("an answer that another row owns, too")
        seen.add(node)
    return Checked(row.chain, ids, mask, logprobs, row.spans, row.chain_class, row.branch, nodes)


def _answers(spans: list[Span], nodes: tuple[Node | None, ...]) -> list[tuple[Node, slice]]:
    """Each answer and its tokens; weights that changed in the middle make several spans of one."""
    found: list[tuple[Node, slice]] = []
    before: Node | None = None
    for span, node in zip(spans, nodes, strict=True):
        if node is not None and node == before:
            found[-1] = (node, slice(found[-1][1].start, span.end))
        elif node is not None:
            found.append((node, slice(span.start, span.end)))
        before = node
    return found


def _packed_ids(row: TokenRow) -> array[int]:
    if not len(row.token_ids) == len(row.mask) == len(row.logprobs):
        raise RowError("lists of different lengths")
    packed, problem = tokens.pack_prompt(row.token_ids)
    if packed is None:
        raise RowError((problem or "").replace("prompt_token_ids", "token_ids"))
    return array("i", packed)


def _packed_mask(row: TokenRow) -> array[int]:
    try:
        return array("b", row.mask)
    except OverflowError as exc:
        raise RowError("a mask of other values than 0 and 1") from exc


def _check_mask(part: array[int], *, sampled: bool) -> None:
    if part.count(1 if sampled else 0) != len(part):
        raise RowError("a mask that does not follow the spans")


def _check_answer(
    node: Node, ids: array[int], logprobs: array[float], choices: dict[str, list[Choice]]
) -> None:
    if not math.isfinite(sum(logprobs)) or max(logprobs) > 0:
        raise RowError("log-probabilities that are not finite and at most 0")
    call_id, number = node
    stored = choices.get(call_id, [])
    if number >= len(stored):
        raise RowError("an answer that no call has")
    choice = stored[number]
    if choice.token_ids is None or array("i", choice.token_ids) != ids:
        raise RowError("token ids that differ from the call's")
    if choice.logprobs is None or array("f", choice.logprobs) != logprobs:
        raise RowError("log-probabilities that differ from the call's")
