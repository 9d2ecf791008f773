"""What a source tells the decision about a restart: its end, and its place before the restart, as far as it reaches."""

from __future__ import annotations

from replicate.door.restart_view import view_for
from replicate.door.snapshot import door_of
from replicate.wire.message import Restart
from replicate.wire.resync import LargeHead
from tests.harness.pair import Pair


def test_the_place_before_each_number_and_none_beyond(pair: Pair) -> None:
    pair.write(5)
    last = pair.last_seqno()
    with door_of(pair.primary) as door:
        for next_seqno in range(1, last + 2):
            viewed = view_for(door, Restart(next_seqno))
            before = viewed.source.before_restart
            assert before is not None
            assert (before.last_seqno, viewed.source.position.last_seqno) == (next_seqno - 1, last)
            assert viewed.here.vector == before.vector
        assert before.chains == viewed.source.position.chains
        assert view_for(door, Restart(last + 2)).source.before_restart is None


def test_a_large_one_is_looked_at_where_parts_of_it_are_there(pair: Pair) -> None:
    connection = pair.connect()
    connection.executemany("INSERT INTO entry (data) VALUES (zeroblob(?))", [(300_000,)] * 8)
    connection.commit()
    connection.close()
    with door_of(pair.primary) as door:
        at = pair.last_seqno()
        head = view_for(door, Restart(at, next_part=1)).source.large
        assert isinstance(head, LargeHead)
        assert head.parts > 1
        assert view_for(door, Restart(at)).source.large is None
        assert view_for(door, Restart(at + 1, next_part=1)).source.large is None
