"""Records of changes against a plain decode of everything."""

from __future__ import annotations

from pathlib import Path

import pytest

from replicate.audit.changes import records_backwards, records_of
from replicate.audit.query import Query, find
from replicate.audit.selection import image_names
from replicate.model.transaction import Kind, RowChange
from tests.harness.random_journal import RandomJournal, key_of, op_of, plain_decode


@pytest.mark.parametrize("seed", range(4))
def test_there_is_a_record_for_each_change_with_all_that_it_says(seed: int, tmp_path: Path) -> None:
    made = RandomJournal(tmp_path / "journal", seed)
    for one, match in zip(plain_decode(made.chain), find(made.chain, Query()), strict=True):
        records = list(records_of(match))
        assert [record.place for record in records] == list(range(len(records)))
        backwards = list(records_backwards(match))
        assert [record._replace(place=0) for record in records][::-1] == [r._replace(place=0) for r in backwards]
        for change, record in zip(one.changes, records, strict=True):
            assert (record.seqno, record.csn, record.origin) == (one.seqno, one.csn, one.origin)
            op = op_of(change)
            assert record.op == (one.kind.name.lower() if op is None else op.name.lower())
            if isinstance(change, RowChange):
                definition = one.known[change.table_id]
                image = change.before if change.after is None else change.after
                assert image is not None
                assert (record.before, record.after, record.changed) == (change.before, change.after, change.changed)
                assert (record.table, record.names) == (definition.table, image_names(definition))
                assert record.key == key_of(definition, image)
            elif one.kind == Kind.TRANSACTION and hasattr(change, "text"):
                assert record.text == change.text
