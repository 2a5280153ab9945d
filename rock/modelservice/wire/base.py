"""What travels between ModelService, trainers and harnesses, as typed JSON values.

Everything is a msgspec struct: decoding validates in one pass and names the wrong field
("Expected `int`, got `str` - at `$.leases[0]`"). Agents never see these shapes; they speak a
dialect (`rock.modelservice.dialects`). Messages and tools stay raw JSON, byte for byte as the agent
sent them, and are parsed only by whoever needs to look inside.

Token ids are JSON integers (int32 range, >= 0); log-probabilities are natural logarithms (<= 0) of
the sampling distribution, one per token id.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec import Meta, Raw, Struct, UnsetType

if TYPE_CHECKING:
    OptionalRaw = Raw | None
else:
    # msgspec decodes `Raw | None` as null only; with UnsetType, which no JSON is, it takes any JSON.
    OptionalRaw = Raw | UnsetType
Count = Annotated[int, Meta(ge=0)]
Seconds = Annotated[float, Meta(gt=0)]
Version = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
"""Of the weights; as wide as the exports' columns."""


class Wire(Struct, kw_only=True, omit_defaults=True):
    """Base of what the service sends; a newer service may add fields."""


class Input(Wire, forbid_unknown_fields=True):
    """Base of what clients send: an unknown field is an error, not a shrug."""


class ErrorBody(Wire):
    code: str
    message: str
    param: str | None = None


class ErrorReply(Wire):
    error: ErrorBody


def encode(value: Struct) -> bytes:
    return msgspec.json.encode(value)
