"""Rows without what an earlier row has, too: a prompt that was tokenised anew parts from one late.

A row that begins with the tokens of an earlier one, none of them its own, holds only what follows, and
only the spans from there on: those before say what the other row's say. What cannot be told like that
(a log-probability where nothing was sampled) is kept whole, for whoever checks rows to find.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

import msgspec
from msgspec import Struct

from rock.modelservice.graph import tokens
from rock.modelservice.wire.trajectory import Span, TokenRow

MIN_SHARED = 16
"""Rows that share fewer tokens are stored whole."""
ROWS_COMPARED = 8
"""How many rows before are looked at."""


class Beginning(Struct):
    """Tokens and spans that are those of an earlier row."""

    row: int
    tokens: int
    """Its first so many tokens come before those here, with mask 0."""
    spans: int = 0
    """And what it says of the first so many of them."""


class StoredRow(TokenRow, kw_only=True):
    """A row, or what follows a beginning that another row has."""

    begins_as: Beginning | None = None


def stored_rows(rows: Sequence[TokenRow]) -> list[StoredRow]:
    packed: list[bytes] = []
    found: list[StoredRow] = []
    for row in rows:
        fields = _fields(row)
        try:
            packed.append(tokens.pack_ids(row.token_ids))
        except OverflowError:  # no id at all; whoever checks rows says so
            packed.append(b"")
        other, count = _beginning(packed, row)
        if count >= MIN_SHARED:
            spans = _same_spans(rows[other].spans, row.spans, count)
            until = row.spans[spans - 1].end if spans else 0
            fields["begins_as"] = Beginning(row=other, tokens=count, spans=until)
            fields["spans"] = row.spans[spans:]
            for name in ("token_ids", "mask", "logprobs"):
                fields[name] = fields[name][count:]
        found.append(StoredRow(**fields))
    return found


def whole_rows(rows: Sequence[StoredRow]) -> list[TokenRow]:
    """Rows with all of their tokens. Raises `msgspec.ValidationError` for a beginning that is not there."""
    found: list[TokenRow] = []
    for number, row in enumerate(rows):
        fields = _fields(row)
        del fields["begins_as"]
        start = row.begins_as
        if start is not None:
            if not 0 <= start.row < number or not (
                0 <= start.spans <= start.tokens <= len(found[start.row].token_ids)
            ):
                raise msgspec.ValidationError(f"names nothing before it - at `$.rows[{number}]`")
            other = found[start.row]
            fields["token_ids"] = other.token_ids[: start.tokens] + row.token_ids
            fields["mask"] = [0] * start.tokens + row.mask
            fields["logprobs"] = [0.0] * start.tokens + row.logprobs
            if start.spans:
                call_id = row.spans[0].call_id if row.spans else row.chain.rpartition("/")[0]
                fields["spans"] = _masked(other.spans, start.spans, call_id) + row.spans
        found.append(TokenRow(**fields))
    return found


def _beginning(packed: Sequence[bytes], row: TokenRow) -> tuple[int, int]:
    """Which of the rows before begins most like the last, and how far that is not the row's own."""
    ours = len(packed) - 1
    found = (0, 0)
    for other in range(max(0, ours - ROWS_COMPARED), ours):
        count = tokens.common(packed[ours], packed[other])
        if count > found[1]:
            found = (other, count)
    flags = zip(row.mask, row.logprobs, strict=False)
    shortest = min(len(row.mask), len(row.logprobs))
    own = next((place for place, flag in enumerate(flags) if flag != (0, 0)), shortest)
    return found[0], min(found[1], own)


def _same_spans(other: Sequence[Span], spans: Sequence[Span], count: int) -> int:
    """How many leading spans, within `count` tokens, `_masked` would say of the other row's; or 0."""
    inside = next((n for n, span in enumerate(spans) if span.end > count), len(spans))
    if not inside or inside == len(spans):
        return 0
    call_id = spans[inside].call_id
    same = _masked(other, spans[inside - 1].end, call_id) == list(spans[:inside])
    return inside if same else 0


def _masked(spans: Sequence[Span], until: int, call_id: str) -> list[Span]:
    """What a row that begins with the first `until` tokens of another says of them."""
    found: list[Span] = []
    inside = [span for span in spans if span.start < until]
    for message, run in groupby(inside, key=lambda span: span.message):
        same = list(run)
        found.append(
            Span(
                start=same[0].start,
                end=min(same[-1].end, until),
                kind="prompt",
                call_id=call_id,
                message=message,
            )
        )
    return found


def _fields(value: Struct) -> dict[str, Any]:
    return {name: getattr(value, name) for name in value.__struct_fields__}
