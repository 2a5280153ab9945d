"""Test cases from a JUnit XML file that hostile code may have written. Pure.

The file is read as a stream: nothing is kept but what is asked for, however large, deep or often nested
it is. What declares a document type is refused in every encoding, and with it every entity.
"""

from __future__ import annotations

from collections.abc import Iterator
from xml.parsers import expat

CHUNK_BYTES = 256 * 1024
MAX_DEPTH = 100
_ENDS = {"failure": "failed", "error": "failed", "skipped": "skipped"}
_RANK = ("passed", "skipped", "failed")


class _Reader:
    """What expat calls: collects the test cases that have been closed."""

    def __init__(self) -> None:
        self.found: list[tuple[str, str]] = []
        self._depth = 0
        self._case_depth: int | None = None
        self._name = ""
        self._word = ""

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise ValueError(f"it nests deeper than {MAX_DEPTH} levels")
        if self._case_depth is None and tag == "testcase":
            self._case_depth = self._depth
            self._name = f"{attributes.get('classname', '')}::{attributes.get('name', '')}"
            self._word = "passed"
        elif self._case_depth is not None and self._depth == self._case_depth + 1:
            self._word = max(self._word, _ENDS.get(tag, "passed"), key=_RANK.index)

    def end(self, _tag: str) -> None:
        if self._depth == self._case_depth:
            self.found.append((self._name, self._word))
            self._case_depth = None
        self._depth -= 1

    def doctype(self, *_declared: object) -> None:
        raise ValueError("it declares a document type, which no test runner does")


def read_cases(data: bytes) -> Iterator[tuple[str, str]]:
    """`CLASSNAME::NAME` and `passed`, `failed` or `skipped` of every test case, in order.

    Raises `ValueError` for what is no such file.
    """
    reader = _Reader()
    parser = expat.ParserCreate()
    parser.StartElementHandler = reader.start
    parser.EndElementHandler = reader.end
    parser.StartDoctypeDeclHandler = reader.doctype
    for start in range(0, len(data) + 1, CHUNK_BYTES):
        part = data[start : start + CHUNK_BYTES]
        try:
            parser.Parse(part, start + CHUNK_BYTES > len(data))
        except expat.ExpatError as exc:
            raise ValueError(f"not XML: {exc}") from exc
        yield from reader.found
        reader.found.clear()
