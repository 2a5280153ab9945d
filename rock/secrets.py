"""Values that must not be written down: registered once, replaced wherever rock writes.

    register(api_key)
    redact_text("refused key sk-123456789")      # "refused key [redacted]"

A process registers what it knows: values of variables whose names say so, keys of its service, what a
run file names. From then on logs, records, ledgers, trajectories, outputs and the command line are
written through `redact` and `redact_text`. A value is also found as JSON and URLs spell it. Values under
eight characters are not registered: they would be found in everything. Addresses are looked into
(`credentials_in`): `http://user:password@host`, `https://host/v1?api-key=...`.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from typing import TextIO
from urllib.parse import parse_qsl, quote, quote_plus, unquote, urlsplit

MARK = "[redacted]"
MIN_LENGTH = 8
_TELLING = re.compile(
    r"(?:^|_)(?:API_?KEY|KEY|TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIALS?)(?:_|$|\d)", re.I
)
_SIGNATURES = frozenset({"sig", "signature", "code", "auth", "authorization"})
"""Further names of secrets in the query of an address."""
_PLAIN = re.compile(r"/.*|\d{1,15}|[A-Za-z]{1,15}", re.DOTALL)
_SHAPE = r"(?<![\w-])[A-Za-z0-9_-]{43}(?![\w-])"
"""Of ModelService's session keys: 32 bytes in URL-safe base64."""
_TEXT_KEY, _BYTE_KEY = re.compile(_SHAPE), re.compile(_SHAPE.encode())


class Register:
    """The secrets of one process. Looking for them costs one search each; replacing is rare."""

    def __init__(self) -> None:
        self._values: set[str] = set()
        self._texts: tuple[str, ...] = ()
        self._bytes: tuple[bytes, ...] = ()
        self._keys: set[str] = set()

    def register(self, *values: str) -> None:
        """From now on these are redacted. Idempotent; what is too short to be found is left out."""
        new = {value for value in values if len(value.strip()) >= MIN_LENGTH} - self._values
        if not new:
            return
        self._values |= new
        forms = {form for value in self._values for form in _spellings(value)}
        self._texts = tuple(sorted(forms, key=len, reverse=True))
        self._bytes = tuple(form.encode("utf-8", "surrogateescape") for form in self._texts)

    @contextmanager
    def keeping(self, key: str) -> Generator[None, None, None]:
        """A session's key, of which there may be thousands, is a secret as long as the block lasts."""
        self._keys.add(key)
        try:
            yield
        finally:
            self._keys.discard(key)

    def redact(self, data: bytes) -> bytes:
        """`data` with every secret replaced; the same object if there is none in it."""
        for form in self._bytes:
            if form in data:
                data = data.replace(form, MARK.encode())
        return _BYTE_KEY.sub(self._key_in_bytes, data) if self._keys else data

    def redact_text(self, text: str) -> str:
        """The same for text."""
        for form in self._texts:
            if form in text:
                text = text.replace(form, MARK)
        return _TEXT_KEY.sub(self._key_in_text, text) if self._keys else text

    def holds(self, text: str) -> bool:
        """Whether there is a secret in `text`."""
        return self.redact_text(text) != text

    def _key_in_text(self, found: re.Match[str]) -> str:
        return MARK if found[0] in self._keys else found[0]

    def _key_in_bytes(self, found: re.Match[bytes]) -> bytes:
        return MARK.encode() if found[0].decode() in self._keys else found[0]


def _spellings(value: str) -> set[str]:
    """A secret as it may stand in a file."""
    forms = {value, value.strip()}
    forms |= {json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1]}
    return forms | {quote(value, safe=""), quote(value), quote_plus(value)}


_REGISTER = Register()
register = _REGISTER.register
keeping = _REGISTER.keeping
redact = _REGISTER.redact
redact_text = _REGISTER.redact_text
holds = _REGISTER.holds


def telling(name: str) -> bool:
    """Whether a variable or field of this name holds a secret."""
    return _TELLING.search(name) is not None


def telling_values(environ: Mapping[str, str], also: Iterable[str] = ()) -> list[str]:
    """Values of the variables whose names say that they are secret, of those in `also`, and what is
    secret in addresses (`DATABASE_URL`, `HTTPS_PROXY`).

    What only the name makes a secret must look like one: a path, a number or a plain word (`password`)
    would be found in texts that have nothing to do with it.
    """
    wanted = set(also)
    found: list[str] = []
    for name, value in environ.items():
        if name in wanted or (telling(name) and not _PLAIN.fullmatch(value)):
            found.append(value)
        found += credentials_in(value)
    return found


def credentials_in(address: str) -> list[str]:
    """What is secret in an address: user and password, also as the header that they become, and values
    in the query whose names say so. Nothing for what is no address.

    A password that is a plain word is only one where it stands: together with the user's name.
    """
    try:
        parts = urlsplit(address)
    except ValueError:
        return []
    if not parts.scheme or not parts.netloc:
        return []
    found: list[str] = []
    login, at, _ = parts.netloc.rpartition("@")
    if at and login:
        user, _, password = login.partition(":")
        near = f"{login}@"
        found += [near if len(near) >= MIN_LENGTH else f"{parts.scheme}://{near}"]
        found += _unless_plain(password or user)
        named = f"{unquote(user)}:{unquote(password)}".encode()
        found += [base64.b64encode(named).decode()]
    for name, value in parse_qsl(parts.query):
        if telling(name.replace("-", "_")) or name.lower() in _SIGNATURES:
            found += [f"{name}={value}", f"{name}={quote(value, safe='')}", *_unless_plain(value)]
    return found


def _unless_plain(value: str) -> list[str]:
    return [] if _PLAIN.fullmatch(value) else [value, unquote(value)]


class RedactingStream:
    """A text stream that redacts what is written to it; everything else is the stream's own.

    Each write is looked at by itself: a secret that is written in parts is not found. It has no
    `buffer`: libraries write bytes to that where the locale says ASCII, and nothing would be redacted.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        self._stream.write(redact_text(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> object:
        if name == "buffer":
            raise AttributeError(name)
        return getattr(self._stream, name)
