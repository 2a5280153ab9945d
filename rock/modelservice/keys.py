"""The control plane's keys: made at first start, never a default, readable by their owner only."""

from __future__ import annotations

import contextlib
import hmac
import os
import secrets
from pathlib import Path

import msgspec
from msgspec import Struct

from rock.errors import ConfigError

FILE_NAME = "keys.json"


class Keys(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`admin_key` opens the whole control plane, `trainer_key` the trainer API only."""

    trainer_key: str
    admin_key: str

    def __repr__(self) -> str:
        return "Keys(…)"


def matches(given: str, key: str) -> bool:
    """In constant time."""
    return hmac.compare_digest(given.encode(), key.encode())


def read_keys(state_dir: Path) -> Keys:
    """The keys of a service that has been started in `state_dir`. Raises ConfigError."""
    path = state_dir / FILE_NAME
    try:
        return msgspec.json.decode(path.read_bytes(), type=Keys)
    except OSError as exc:
        raise ConfigError(
            f"{path}: cannot be read ({exc.strerror}); was a service started here?"
        ) from exc
    except msgspec.DecodeError as exc:
        raise ConfigError(f"{path}: not a key file: {exc}; delete it to get new keys") from exc


def ensure_keys(state_dir: Path) -> Keys:
    """The keys of `state_dir`, made if there are none. Raises ConfigError."""
    path = state_dir / FILE_NAME
    if not path.exists():
        keys = Keys(trainer_key=f"rt-{_random()}", admin_key=f"ra-{_random()}")
        draft = path.with_name(f"{FILE_NAME}.{os.getpid()}")
        try:
            fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(fd, "wb") as file:
                file.write(msgspec.json.encode(keys))
            with contextlib.suppress(FileExistsError):  # another start was first: its keys count
                os.link(draft, path)
            draft.unlink()
        except OSError as exc:
            raise ConfigError(f"{path}: cannot be written ({exc.strerror})") from exc
    return read_keys(state_dir)


def share_keys(owner: Path, other: Path) -> None:
    """Give `other` the keys of `owner`, whatever it had. Raises ConfigError."""
    keys = read_keys(owner)
    path = other / FILE_NAME
    draft = path.with_name(f"{FILE_NAME}.{os.getpid()}")
    try:
        fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(fd, "wb") as file:
            file.write(msgspec.json.encode(keys))
        draft.replace(path)
    except OSError as exc:
        raise ConfigError(f"{path}: cannot be written ({exc.strerror})") from exc


def _random() -> str:
    return secrets.token_urlsafe(32)
