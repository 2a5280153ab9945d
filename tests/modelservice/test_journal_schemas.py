"""Journals of other versions: an older one goes on, a newer one is refused."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from rock.errors import JournalError
from rock.modelservice.journal.segments import ORIGIN, header
from rock.types import SessionId
from tests.modelservice.fixtures import ask, claim, running, user
from tests.modelservice.test_compaction import exist, group, names

DATA = Path(__file__).parent / "data"
OLD_KEY = "sunPTlUxTb9rk4ki8lA-RaDTySrUNkZMEuVAogcKS4c"
OLD, OLD_CLOSED = SessionId("s093439080985"), SessionId("s885726d26ae4")


async def test_a_journal_of_schema_1_goes_on_under_the_present_one(tmp_path: Path) -> None:
    shutil.copy(DATA / "journal-schema-1.log", tmp_path / "journal.log")
    async with running(tmp_path) as service:
        assert names(tmp_path) == ["journal-00000001.log", "journal.log"]
        assert b'"schema":5' in (tmp_path / "journal.log").read_bytes()
        session = service.authenticate(OLD_KEY)
        assert (session.id, session.labels) == (OLD, {"task": "old"})
        before = service.trajectory(OLD)
        assert [call.state for call in before.calls] == [
            "delivered",
            "delivered",
            "undelivered",
            "failed",
            "queued",
            "queued",
        ]
        (row, *_) = before.rows
        assert row.token_ids == [1, 2, 3, 10, 11, 4, 12]
        assert [span.policy_version for span in row.spans] == [None, 3, None, 3]
        again = await ask(service, session, user("undelivered"))
        assert (await again.answer()).choices[0].message.content == "kept"
        assert service.trajectory(OLD_CLOSED).calls[0].choices[0].message.content == "over"
        assert service.stats().policy.version == 3
        assert not (await service.publish_group(group("g1"))).accepted
        leases = await claim(service, 9)
        assert [lease.delivery for lease in leases] == [2, 1]
        await service.compact()
    assert not exist(tmp_path, "journal-*.log")
    async with running(tmp_path) as service:
        assert service.trajectory(OLD).rows == before.rows
        assert service.trajectory(OLD_CLOSED).calls[0].state == "delivered"


async def test_a_journal_of_a_later_schema_is_refused(tmp_path: Path) -> None:
    content = (DATA / "journal-schema-1.log").read_bytes()
    (tmp_path / "journal.log").write_bytes(header(6, ORIGIN) + content[content.index(b"\n") + 1 :])
    with pytest.raises(JournalError, match="schema 6, this version of rock reads up to 5"):
        async with running(tmp_path):
            pass
