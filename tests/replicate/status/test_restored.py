"""`replicate status` of a primary whose directory and database were put back from a backup, before anybody opens it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from replicate.instance.instance import Instance
from replicate.status.collect import collect
from tests.harness.instances import insert, make_primary, session_of


def test_what_is_left_in_memory_of_the_lost_journal_does_not_call_the_backup_an_old_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its advice would be to begin again; the next writer goes on with it in a new incarnation."""
    (tmp_path / "shm").mkdir()
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(tmp_path / "shm"))
    site = tmp_path / "site"
    site.mkdir()
    primary = make_primary(site / "east")
    with session_of(primary) as session:
        last = insert(session, 1)
    shutil.copytree(site, tmp_path / "backup")
    with session_of(primary) as session:
        insert(session, 2)
        insert(session, 3)
    site.rename(tmp_path / "lost")  # it stays: else the copy may get the number that its directory had
    shutil.copytree(tmp_path / "backup", site)
    status = collect(Instance.open(primary.path))
    assert [finding.code for finding in status.findings if finding.severity == "error"] == []
    assert (status.journal.last_written_seqno, status.regions[0].last_seqno) == (last, last)
    with session_of(Instance.open(primary.path)) as session:
        last = insert(session, 4)
    status = collect(Instance.open(primary.path))
    assert (status.incarnation, status.journal.is_open, status.journal.last_written_seqno) == (2, True, last)
    assert [finding.code for finding in status.findings if finding.severity == "error"] == []
