"""What passes between a region and the door: checkpoint records tell a position, and come back from it."""

from __future__ import annotations

from replicate.limits import PARTITION_STREAM
from replicate.model.vector import Position, SynchronizationVector
from replicate.region.protocol import ScrRow, scr_chains, scr_rows, scr_vector


def test_checkpoint_records_spell_a_position_and_come_back_from_it() -> None:
    rows = [ScrRow(7, PARTITION_STREAM, 30, 1234, 99, 40), ScrRow(7, 3, 28, 0, 0, 38)]
    position = Position(40, scr_vector(rows), scr_chains(rows))
    assert position.chains == {7: (30, 1234)}
    assert position.vector == SynchronizationVector({(7, PARTITION_STREAM): 30, (7, 3): 28})
    assert sorted(scr_rows(position, 99), key=lambda row: row.partition) == sorted(rows, key=lambda row: row.partition)
