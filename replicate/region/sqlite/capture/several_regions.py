"""Capturing the changes of a connection that has several regions: one stream for each, handed to the door as one
transaction.

Guarantees: what `Capture` guarantees for one region holds for each; a mark is a place in all streams at once; at
commit the streams stand one after the other in one payload, or in one spool if that is too large. The order within a
region is the true one; among regions there is none to keep, since each is applied for itself and no foreign key
reaches beyond its own database.
Leaves to others: the door, locks, and how regions are attached. A connection with one region has none of this.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import apsw

from replicate.errors import ReplicateError
from replicate.limits import FRAME_CHANGES_MAX, PARTITION_STREAM
from replicate.region.protocol import CapturedChanges
from replicate.region.sqlite.capture.capture import Capture, frame_room
from replicate.region.sqlite.capture.marks import Context, Mark
from replicate.region.sqlite.capture.tables import TableMap

if TYPE_CHECKING:
    from replicate.journal.spool import Spool


class SeveralCaptures:
    """The captures of a connection's own region and of those that are attached, with the calls of one `Capture`.

    `tables_of`: the tables of the region that is attached under a name, as the transaction that begins sees them.
    """

    schema = "main"

    def __init__(self, home: Capture, spool_factory: Callable[[], Spool], tables_of: Callable[[str], TableMap]) -> None:
        self.home = home
        self._attached: dict[str, Capture] = {}
        self._all: tuple[Capture, ...] = (home,)
        self._spool_factory = spool_factory
        self._tables_of = tables_of
        self._spool: Spool | None = None

    def add(self, connection: apsw.Connection, region: str, schema: str) -> None:
        """A region has been attached under the name `schema`, outside of a transaction."""
        self._attached[schema] = Capture(connection, region, self._spool_factory, schema)
        self._all = (self.home, *self._attached.values())

    def remove(self, schema: str) -> None:
        """It has been detached."""
        self._attached.pop(schema).close()
        self._all = (self.home, *self._attached.values())

    def of(self, schema: str) -> Capture:
        """The capture of one region."""
        return self.home if schema == "main" else self._attached[schema]

    def close(self) -> None:
        """Take the hooks off and throw away what was captured."""
        for capture in self._all:
            capture.close()
        self._abort()

    # The transaction.

    def begin(self, tables: TableMap) -> None:
        """A transaction holds all regions from here on. `tables`: of the connection's own."""
        self.home.begin(tables)
        for schema, capture in self._attached.items():
            capture.begin(self._tables_of(schema))

    def clear(self, adopted: bool = False) -> None:
        """Forget everything. `adopted`: the spool that `finish` gave has become a part of the journal."""
        if self._spool is not None:
            # Then it is this one that was adopted, and the regions' own are copied in it.
            if adopted:
                self._spool, adopted = None, False
            self._abort()
        for capture in self._all:
            capture.clear(adopted)

    def _abort(self) -> None:
        spool, self._spool = self._spool, None
        if spool is not None:
            spool.abort()

    def mark(self) -> Mark:
        """The present place in all streams."""
        return Mark(*self.place())

    def place(self) -> tuple[int, int, Context, tuple[Mark, ...]]:
        """The fields of a mark."""
        return (*self.home.place(), tuple(capture.mark() for capture in self._all[1:]))

    @property
    def start(self) -> Mark:
        """The mark before the transaction's first change."""
        return Mark(*self.home.start[:3], tuple(capture.start for capture in self._all[1:]))

    def cut(self, mark: Mark, *, failed: bool = False) -> None:
        """Forget what was captured after `mark`, in all regions."""
        for capture, place in zip(self._all, (mark, *mark.others), strict=True):
            capture.cut(place, failed=failed)

    def grown(self, mark: Mark) -> bool:
        """Whether anything was captured after `mark`."""
        return any(one.grown(place) for one, place in zip(self._all, (mark, *mark.others), strict=True))

    def kept(self, mark: Mark, text: str) -> bool | None:
        """Whether what the failed statement `text` did is still there. A statement is taken back in all databases or in
        none."""
        found = {
            one.kept(place, text)
            for one, place in zip(self._all, (mark, *mark.others), strict=True)
            if one.grown(place) or one.unseen(place)
        }
        return None if None in found else True in found

    def refuse(self, why: BaseException) -> None:
        """From here on the transaction can only be rolled back."""
        self.home.refuse(why)

    def settle(self) -> None:
        """As `Capture.settle`, in all regions."""
        for capture in self._all:
            capture.settle()

    def watch_sequences(self) -> None:
        """As `Capture.watch_sequences`, in all regions."""
        for capture in self._all:
            capture.watch_sequences()

    def doubt_sequences(self) -> None:
        """As `Capture.doubt_sequences`, in all regions."""
        for capture in self._all:
            capture.doubt_sequences()

    def close_sequences(self) -> None:
        """As `Capture.close_sequences`, in all regions."""
        for capture in self._all:
            capture.close_sequences()

    def finish(self) -> CapturedChanges:
        """What the commit journals: one transaction, whatever the number of regions. May be called again if the commit
        has left the transaction open. Raises as `Capture.finish`."""
        self._abort()
        found = {capture.schema: capture.finish() for capture in self._all}
        touched = {schema: one for schema, one in found.items() if one.count or one.spool is not None}
        moved = {schema: one.schema_changed for schema, one in touched.items()}
        if len(touched) < 2:
            return next(iter(touched.values()), found["main"])._replace(touched=moved)
        parts = list(touched.values())
        payload = b"".join(one.payload for one in parts)
        count = sum(one.count for one in parts)
        partitions = {partition for one in parts for partition in one.partitions}
        tables: dict[int, int] | None = None
        if len(partitions) > 1:
            tables = {key: number for capture in self._all for key, number in capture.partitions().items()}
        if (
            any(one.spool is not None for one in parts)
            or len(payload) > min(frame_room(capture.tables) for capture in self._all)
            or count > 4 * FRAME_CHANGES_MAX
        ):
            payload, self._spool = b"", self._spooled(parts)
            partitions, tables = partitions - {PARTITION_STREAM}, None
        return CapturedChanges(
            payload,
            count,
            tuple(sorted(partitions)),
            any(one.defines for one in parts),
            self._spool,
            any(moved.values()),
            moved,
            tables,
        )

    def _spooled(self, parts: list[CapturedChanges]) -> Spool:
        """All streams in one new spool. The regions' own stay until the transaction has ended."""
        spool = self._spool_factory()
        try:
            for one in parts:
                for data in (one.payload,) if one.spool is None else one.spool.stream():
                    spool.write(data)
        except BaseException:
            spool.abort()
            raise
        return spool

    # What a statement has to know.

    @property
    def active(self) -> bool:
        """Whether a transaction holds the regions."""
        return self.home.active

    @property
    def changes(self) -> int:
        """Changes captured so far, in all regions."""
        return sum(capture.changes for capture in self._all)

    @property
    def poisoned(self) -> bool:
        """Whether the transaction can only be rolled back."""
        return any(capture.poisoned for capture in self._all)

    @property
    def refusal(self) -> BaseException | None:
        """What made it so, as it was raised."""
        return next((capture.refusal for capture in self._all if capture.refusal is not None), None)

    @property
    def refused(self) -> ReplicateError | None:
        """Why the transaction can only be rolled back; None while it can be committed."""
        return next((capture.refused for capture in self._all if capture.refused is not None), None)

    @property
    def counted(self) -> bool:
        """Whether some table counts in sqlite_sequence."""
        return any(capture.counted for capture in self._all)

    @property
    def tables(self) -> TableMap:
        """Nothing of the tables themselves. A temporary trigger may insert from any region into any other."""
        return TableMap({}, self.counted, triggers_count=True)

    @property
    def restless(self) -> bool:
        """Whether there may be changes that no hook has told of yet."""
        return any(capture.restless for capture in self._all)

    @property
    def pressing(self) -> bool:
        """Whether some of them must be settled before a statement that may fail."""
        return any(capture.pressing for capture in self._all)

    @property
    def foreign(self) -> bool:
        """There is always another database than the connection's own."""
        return True

    @foreign.setter
    def foreign(self, _: bool) -> None:
        pass

    @property
    def deaf(self) -> bool:
        """Whether changes of rows pass unheard."""
        return self.home.deaf

    @deaf.setter
    def deaf(self, deaf: bool) -> None:
        for capture in self._all:
            capture.deaf = deaf
