"""A secondary's region by itself: checkpoint records move with the rows, and errors are ours but COMMIT's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import apsw
import pytest

from replicate.errors import BusyError, SchemaChangedError
from replicate.region.protocol import ScrRow
from replicate.region.sqlite.applying import AppliedFile
from replicate.region.sqlite.bookkeeping import APPLIED_FROM, read_state, stored_schema_version
from replicate.region.sqlite.open import open_region
from tests.harness.instances import make_primary

pytestmark = pytest.mark.usefixtures("shared_memory")

ROW = ScrRow(origin=5, partition=0, origin_seqno=9, chain=1 << 63, csn=7, seqno=12)


@pytest.fixture
def region(tmp_path: Path) -> Iterator[AppliedFile]:
    entry = make_primary(tmp_path / "p").region("main")
    with closing(AppliedFile(entry.path, region=entry.uuid)) as made:
        yield made


def test_a_batch_moves_the_records_with_its_rows_or_not_at_all(region: AppliedFile) -> None:
    assert region.checkpoint() == []
    for end in (region.rollback, region.commit):
        region.begin(changed_do="nothing")
        region.connection.execute("INSERT INTO t VALUES (1, 'x')")
        region.prepare([ROW], applied_from=11, defines=False)
        region.flush()
        end()
        committed = end == region.commit
        assert region.checkpoint() == ([ROW] if committed else [])
        assert read_state(region.connection, APPLIED_FROM) == (11 if committed else None)
        assert region.connection.execute("SELECT count(*) FROM t").get == int(committed)
    region.rollback()  # nothing is open
    assert dict(region.position(12).chains) == {5: (9, 1 << 63)}
    assert region.added_as() is None


def test_a_schema_that_the_batch_changes_is_kept_and_anybody_elses_is_refused(region: AppliedFile) -> None:
    region.begin(changed_do="nothing")
    region.connection.execute("CREATE TABLE made (a)")
    region.prepare([], applied_from=1, defines=True)
    region.commit()
    assert region.schema_version() == stored_schema_version(region.connection)
    with closing(open_region(region.where)) as other:
        other.execute("CREATE TABLE others (a)")
    with pytest.raises(SchemaChangedError) as found:
        region.begin(changed_do="do this")
    assert found.value.do == "do this"


def test_errors_are_ours_until_the_journal_has_the_batch(region: AppliedFile) -> None:
    with closing(open_region(region.where)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(BusyError, match="locked by another client"):
            region.begin(changed_do="nothing")
    with pytest.raises(region.Error) as found:
        region.commit()
    assert isinstance(found.value, apsw.SQLError)
    assert region.errno_of(apsw.FullError("planted")) == 28
