"""The page on isolation lists exactly the attempts that are made."""

from __future__ import annotations

import re
from pathlib import Path

from rock.testing.sandbox_conformance import escapes

PAGE = Path(__file__).parents[2] / "docs" / "isolation.md"


def test_the_table_lists_every_attempt_and_no_other() -> None:
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    named = [re.findall(r"`([a-z_]{10,})` \|$", row) for row in rows]
    listed = [names[0] for names in named if names]
    assert listed == [check.__name__ for check in escapes.CHECKS]
