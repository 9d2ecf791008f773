"""A conversation with a filter that is no process: transactions made by hand go in, the test says what comes back.

Guarantees: time stands still unless the test moves it. Leaves to others: processes (test_filter_process.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from replicate.filters.conversation import FilterTalk
from replicate.filters.encoding import Form
from replicate.filters.restating import StreamItem, StreamLarge, StreamParts
from replicate.journal.record import FrameBatch, decode, large_payload, pack_changes, pack_frame, pack_part
from replicate.limits import PART_BYTES
from replicate.model.transaction import Column, Kind, Op, TableDefinition, Transaction
from tests.harness.frames import Writer

TIMEOUT_S = 64.0


def table(name: str, *columns: str, region: str = "shop", **facts: Any) -> TableDefinition:
    """A table whose first column is its key: "id INTEGER", or "name TEXT NOT NULL"."""
    made = []
    for column in columns:
        bare, _, rest = column.removesuffix(" NOT NULL").partition(" ")
        made.append(Column(bare, rest, column.endswith(" NOT NULL"), "BINARY"))
    whole = {"version": 1, "key": (0,), "rowid": False, "strict": False, "without_rowid": False, **facts}
    return TableDefinition(region=region, partition=1, owner="main", table=name, columns=tuple(made), **whole)


PERSON = table("person", "id INTEGER", "name TEXT", "x")
SPLIT = table("person", "id INTEGER", "first TEXT", "last TEXT NOT NULL")
LOOSE = table("loose", "a", "b", rowid=True)
STRICT = table("strict", "id INTEGER", "n INTEGER NOT NULL", "r REAL", "t TEXT", "b BLOB", "y ANY", strict=True)


def known(*definitions: TableDefinition) -> dict[int, TableDefinition]:
    """By id."""
    return {one.table_id: one for one in definitions}


class Talk:
    """The filter's end."""

    def __init__(
        self,
        source: Sequence[TableDefinition] = (PERSON, LOOSE),
        here: Sequence[TableDefinition] | None = None,
        form: Form = Form.JSON,
        *,
        is_greeted: bool = True,
    ) -> None:
        self.writer = Writer()
        there = source if here is None else here
        self.talk = FilterTalk(
            "mine", form, known(*source), known(*there), side="receiver", token=lambda: 77, timeout_s=TIMEOUT_S, now=0.0
        )
        self.out: list[StreamItem] = []
        self.hello = self.told()
        if is_greeted:
            self.say(self.hello)

    def told(self, now: float = 0.0) -> bytes:
        """What the filter has been told since."""
        pieces = []
        while data := self.talk.bytes_to_send():
            pieces.append(data)
            self.talk.sent(now)
        return b"".join(pieces)

    def give(self, *frames: bytes, now: float = 0.0) -> bytes:
        """Whole transactions, the writer's next ones; what the filter is told of them."""
        last = self.writer.seqno
        batch = FrameBatch(last - len(frames) + 1, last, len(frames), b"".join(frames))
        self.out += self.talk.give(batch, now)
        return self.told()

    def row(self, *values: Any, definition: TableDefinition = PERSON) -> bytes:
        """A transaction that inserts that row is given."""
        return self.give(self.writer.insert(definition.table_id, *values))

    def large(self, changes: list[Any], *, token: int = 5, is_whole: bool = True) -> bytes:
        """A large transaction is given, a part at a time; what the filter is told."""
        stream = pack_changes(changes)
        seqno = self.writer.seqno + 1
        chain = count = 0
        for offset in range(0, len(stream), PART_BYTES):
            part, chain = pack_part(7, token, count, stream[offset : offset + PART_BYTES], chain)
            self.out += self.talk.give(StreamParts(seqno, token, count, 1, part), 0.0)
            count += 1
        if is_whole:
            self.end_large(seqno, token, count, len(stream), chain)
        return self.told()

    def end_large(self, seqno: int, token: int, count: int, size: int, chain: int) -> None:
        """Its commit is given."""
        payload, elements = large_payload(token, count, size, chain, (1,))
        last, before = self.writer.chains.get(7, (0, 0))
        frame, after = pack_frame(Kind.LARGE, seqno, 0, before, 7, last + 1, 100, payload, elements)
        self.writer.seqno, self.writer.chains[7] = seqno, (last + 1, after)
        self.out += self.talk.give(StreamLarge(seqno, frame), 0.0)

    def say(self, text: bytes | str, now: float = 0.0) -> list[StreamItem]:
        """The filter says something; all that has come out by now."""
        self.out += self.talk.receive(text.encode() if isinstance(text, str) else text, now)
        return self.out

    def transactions(self) -> list[Transaction]:
        """What has come out, whole ones only."""
        found = []
        for item in self.out:
            if isinstance(item, FrameBatch):
                offset = 0
                while offset < len(item.data):
                    size = 10 + int.from_bytes(item.data[offset + 1 : offset + 5], "big")
                    found.append(decode(item.data[offset : offset + size]))
                    offset += size
        return found


INSERT, UPDATE, DELETE = int(Op.INSERT), int(Op.UPDATE), int(Op.DELETE)
