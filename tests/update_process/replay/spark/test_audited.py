"""replay/spark/audited.py: what needs no Spark (the rest: tests/spark/test_audited.py)."""

from __future__ import annotations

import msgpack

from replicate.audit.selection import row_named
from replicate.model.transaction import Column, TableDefinition
from update_process.replay.spark.audited import packed_keys


def test_a_key_in_every_way_that_it_may_be_meant() -> None:
    definition = TableDefinition(
        "main", 1, "main", "t", 1, (Column("a", "", False, "BINARY"),), (0,), False, False, False
    )
    for word, values in {
        "5": ("5", 5, 5.0),
        "0": ("0", 0, 0.0, -0.0),
        "NULL": ("NULL", None),
        "X'00ff'": ("X'00ff'", b"\x00\xff"),
        "1e400": ("1e400", float("inf")),
        "9" * 30: ("9" * 30, float("9" * 30)),
    }.items():
        assert sorted(packed_keys(row_named([word], definition)[0])) == sorted(msgpack.packb([one]) for one in values)
