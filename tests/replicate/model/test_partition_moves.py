"""model/partition_moves.py: the moves of tables between partitions, as assignments tell them."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from replicate.admin.partitions import assign, create
from replicate.door.recovery.opening import make_chain
from replicate.journal.reader import ChainReader
from replicate.journal.record import FrameBatch, changes_of, decode_batch
from replicate.limits import PARTITION_NONE
from replicate.model.partition_moves import moves_in
from tests.harness.pair import Pair


def test_what_assignments_tell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REPLICATE_SHM_DIR", "")
    pair = Pair.create(tmp_path)
    create(pair.primary, "sales")
    assign(pair.primary, "sales", ["account"])
    pair.write(1)
    assign(pair.primary, "NONE", ["account"])
    with closing(pair.connect()) as connection:
        connection.execute("ALTER TABLE entry ADD COLUMN more")  # defines it again, and moves nothing
        connection.log_comment("a comment")
        connection.commit()
    found = []
    with closing(ChainReader(make_chain(pair.primary), 1)) as reader:
        while (batch := reader.read(1 << 20, pair.last_seqno())) is not None:
            assert isinstance(batch, FrameBatch)
            found += [one for body in decode_batch(batch.data)[2::3] for one in moves_in(changes_of(body))]
    assert [(one.definition.table, one.before, one.definition.partition, one.is_empty) for one in found] == [
        ("account", 1, 2, True),
        ("account", 2, PARTITION_NONE, False),
    ]
    assert list(moves_in([])) == []
