"""The `remote` provider, and `rock sandbox serve`, the server it is the client of."""

from __future__ import annotations

from rock.sandbox.remote.remote import RemoteProvider

__all__ = ["RemoteProvider"]
