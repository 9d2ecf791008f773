"""What stands in a region's file beneath its WAL: is the database older than the state that the WAL was written upon?

SQLite applies whatever `-wal` it finds to whatever database stands beside it. Put an old copy of a region in its place
and leave the `-wal` of the lost file, and SQLite mixes the two (fault 48).

Guarantees: writes nothing, and opens no file of the region but its -wal, on which SQLite takes no locks; the database
is read through SQLite's own descriptor. Of a healthy region nothing is found, whatever other processes commit or
checkpoint meanwhile, and wherever they were killed; what cannot be told is let pass.
Leaves to others: the journal, and what is done about it.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Final

import apsw

from replicate.journal.frame import FRAME_PREFIX_BYTES
from replicate.limits import RING_SLOTS
from replicate.region.protocol import Gap
from replicate.region.sqlite.bookkeeping import APPLIED_FROM
from replicate.region.sqlite.forensics.pages import (
    INDEX_LEAF,
    TABLE_INNER,
    TABLE_LEAF,
    NotOurPage,
    Value,
    children,
    kind_of,
    rows,
)
from replicate.region.sqlite.forensics.wal_index import WalHeader, descriptor_of, read_wal_header

WAL_HEADER_BYTES: Final = 32
FRAME_HEADER_BYTES: Final = 24
FIRST_FRAMES_MAX: Final = 16_384
"""So many frames are looked at for the first commit that is ours; after that nothing is said."""
LOOK_AGAIN_S: Final = 0.02
"""A page that is just being written by a checkpoint may be read half old, half new: a suspicion is looked at twice."""
_DEPTH_MAX: Final = 20
_OURS: Final = ("_replicate_region", "_replicate_ring", "_replicate_scr", "_replicate_state")


def find_gap(
    connection: apsw.Connection, path: str, *, region: bytes, primary: bool, missed: Callable[[Gap], int]
) -> tuple[Gap, int] | None:
    """What the region of that UUID at `path` lacks beneath its WAL; None: nothing, or it cannot be told.

    `connection`: a new one to it, without a transaction. `missed` is asked for a transaction of the region in the gap
    (0: there was none), which comes back with it. If there is one, or an exception passes (only `missed`'s own), the
    connection will take nothing of the WAL over when it is closed.
    """
    if not may_have_frames(path):
        return None
    connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
    found: tuple[Gap, int] | None = None
    try:
        connection.execute("BEGIN")
        connection.execute("SELECT count(*) FROM main.sqlite_schema").fetchall()
        beneath = _Beneath.of(connection, path, region)
        try:
            gap = None if beneath is None else beneath.ring_gap() if primary else beneath.batch_gap()
            if beneath is not None and gap is not None and (seqno := missed(gap)) and beneath.is_base():
                found = gap, seqno
        finally:
            if beneath is not None:
                beneath.close()
    except (apsw.Error, OSError, NotOurPage, KeyError):
        pass  # locked, damaged, no region yet, in the midst of a checkpoint: the process that works with it is told
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
    if found is None:
        connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 0)
    return found


def may_have_frames(path: str | os.PathLike[str]) -> bool:
    """Whether there is a WAL beside the database that is not empty. Opens nothing."""
    with suppress(OSError):
        return os.stat(f"{os.fspath(path)}-wal", follow_symlinks=False).st_size > WAL_HEADER_BYTES + FRAME_HEADER_BYTES
    return False


class _Beneath:
    """One look. `seen`: every page of the database that a conclusion stands on.

    How it is told. When a WAL is begun, everything before it is in the database. So in a healthy region each page of
    the database is the one that was there then (its *base*), or one that stands in this WAL (a checkpoint took it over,
    and may have been killed at any page). The pages that we look at are compared with the WAL's: is one of them there,
    a checkpoint may have been at work, and nothing is said. Is none, what they hold is what the region held before the
    WAL's first commit:

    * on a primary the first commit of the WAL that writes a ring slot tells its own number; the base must then hold
      every transaction of this region before that number, and the journal says which those are;
    * on a secondary each batch notes the number that it begins with (APPLIED_FROM); the base's checkpoint records must
      reach to just before it.

    A read transaction keeps the WAL from being begun again while we look.
    """

    def __init__(
        self, path: str, fd: int, wal_fd: int, header: WalHeader, roots: dict[str, int], region: bytes
    ) -> None:
        self._path = path
        self._fd = fd
        self._wal_fd = wal_fd
        self._header = header
        self._roots = roots
        self._region = region
        self._page_bytes = header.page_bytes
        self._stride = FRAME_HEADER_BYTES + header.page_bytes
        self._seen: dict[int, bytes] = {}
        self._free: set[int] = set()
        """Pages of `_seen` that need not be the base's."""

    @classmethod
    def of(cls, connection: apsw.Connection, path: str, region: bytes) -> _Beneath | None:
        """None when it cannot be told, or all of the WAL is checkpointed: then nobody reads from it any more."""
        header = read_wal_header(path)
        fd = descriptor_of(path)
        if header is None or fd is None or header.backfilled >= header.frames:
            return None
        roots = dict(
            connection.execute(
                "SELECT name, rootpage FROM main.sqlite_schema WHERE name IN (?, ?, ?, ?) AND type = 'table'", _OURS
            )
        )
        wal_fd = os.open(f"{path}-wal", os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        return cls(path, fd, wal_fd, header, roots, region)

    def close(self) -> None:
        """Close the WAL; the database's descriptor is SQLite's."""
        os.close(self._wal_fd)

    # A primary.

    def ring_gap(self) -> Gap | None:
        newest: tuple[int, bytes] | None = None
        for _, kind, at, ends_commit in self._first_frames():
            if kind == TABLE_LEAF:
                newest = max((slot for slot in (self._newest_slot(self._wal_page(at)), newest) if slot), default=None)
            if ends_commit and newest is not None:
                break
        # The first commit that writes the ring counts, and no later one.
        if newest is None or not newest[0]:
            return None
        first, record = newest
        # The usual cases in a few microseconds: the number before it is there, or a checkpoint has been at work.
        if self._slot_in_database(first - 1) >= first - 1 or self._slot_in_database(first) >= first:
            return None
        self._seen.clear()
        root = self._check_identity("_replicate_ring")
        before = set(self._seen)
        slots = dict(self._slots(root))
        if len(slots) != RING_SLOTS:
            return None  # torn
        # By inner pages of the base none but leaves of the base are found. If a checkpoint took one of these over, it
        # may have lost slots to others, but has none that is older: with all slots there, none is missing.
        self._free = {n for n, page in self._seen.items() if n not in before and kind_of(page) == TABLE_LEAF}
        held = max(seqno for seqno, _ in slots.values())
        # Without any transaction the region was just being added.
        return Gap(held, first, record) if 0 < held < first - 1 else None

    @staticmethod
    def _newest_slot(page: bytes) -> tuple[int, bytes] | None:
        """(seqno, how its record begins) of the newest slot with a record on a page of the ring, 0 if none has; None
        if the page is another table's."""
        found: tuple[int, bytes] | None = None
        try:
            for slot, values in rows(page, 3):
                if slot < 0 or slot >= RING_SLOTS or not (one := _slot_of(slot, values)):
                    return None
                # A row of the application may look like a slot, but has not the check of the journal's frame.
                found = max(found or (0, b""), one if len(one[1]) >= FRAME_PREFIX_BYTES else (0, b""))
        except NotOurPage:
            return None
        return found

    def _slot_in_database(self, seqno: int) -> int:
        """What the database has in the slot of that number: a quick look, by the root page that is in force now."""
        number, wanted = self._roots["_replicate_ring"], seqno % RING_SLOTS
        for _ in range(_DEPTH_MAX):
            page = self._page(number)
            if kind_of(page) != TABLE_INNER:
                for slot, values in rows(page, 3):
                    if slot == wanted and (one := _slot_of(slot, values)):
                        return one[0]
                return 0
            number = next(child for highest, child in children(page) if wanted <= highest)
        return 0

    def _slots(self, root: int) -> Iterator[tuple[int, tuple[int, bytes]]]:
        slots: set[int] = set()
        for slot, values in self._table(root, 3):
            one = _slot_of(slot, values)
            if one is None or slot in slots or not 0 <= slot < RING_SLOTS:
                raise NotOurPage("no page of the ring, or in two places")
            slots.add(slot)
            yield slot, one

    # A secondary.

    def batch_gap(self) -> Gap | None:
        state, found = self._roots["_replicate_state"], None
        for number, kind, at, ends_commit in self._first_frames():
            if number == state:
                if kind != INDEX_LEAF:
                    return None
                found = at
            if ends_commit and found is not None:
                break
        if found is None:
            return None
        values = {key: value for _, (key, value) in rows(self._wal_page(found), 2)}
        first = values.get(APPLIED_FROM.encode())
        if not isinstance(first, int):
            return None
        if self._applied(self._roots["_replicate_scr"]) >= first - 1:
            return None
        self._seen.clear()
        if self._check_identity("_replicate_state") != state:
            return None
        held = self._applied(self._roots["_replicate_scr"])
        return Gap(held, first, b"") if 0 < held < first - 1 else None

    def _applied(self, root: int) -> int:
        page = self._page(root)
        if kind_of(page) != INDEX_LEAF:
            raise NotOurPage("more checkpoint records than stand on a page")
        return max((one for _, row in rows(page, 6) if isinstance(one := row[5], int)), default=0)

    # The database's own word of what it is.

    def _check_identity(self, table: str) -> int:
        """The root page of one of our tables as the database alone has it. NotOurPage if there it is not this region,
        or another one of our tables has moved since."""
        there: dict[str, int] = {}
        for _, row in self._table(1, 4):
            name, root = row[1], row[3]
            if isinstance(name, bytes) and name.startswith(b"_replicate_") and isinstance(root, int):
                there[name.decode("ascii", "replace")] = root
        if any(there.get(name) != root for name, root in self._roots.items()):
            raise NotOurPage("our tables were made, or moved, since the WAL was begun")
        if [row[4] for _, row in self._table(there["_replicate_region"], 5)] != [self._region]:
            raise NotOurPage("the database was another region when the WAL was begun")
        return there[table]

    def _table(self, root: int, columns: int) -> Iterator[tuple[int, list[Value]]]:
        """Every row. NotOurPage also when a page is found twice: in a damaged database the way may lead back."""
        waiting, walked = [root], set[int]()
        while waiting:
            number = waiting.pop()
            if number in walked:
                raise NotOurPage("a page in two places")
            walked.add(number)
            page, is_first = self._page(number), number == 1
            if kind_of(page, is_first=is_first) == TABLE_INNER:
                waiting += [child for _, child in reversed(children(page, is_first=is_first))]
            else:
                yield from rows(page, columns, is_first=is_first)

    # Pages.

    def is_base(self) -> bool:
        """Whether every page that was seen is the base's; see the top of this file. Waits LOOK_AGAIN_S, and reads the
        head of each of the WAL's frames."""
        time.sleep(LOOK_AGAIN_S)
        if any(self._read(number) != before for number, before in self._seen.items()):
            return False
        return not self._is_in_wal()

    def _is_in_wal(self) -> bool:
        header = read_wal_header(self._path)
        if header is None or header.salts != self._header.salts:
            return True
        for index in range(header.frames):
            at = WAL_HEADER_BYTES + index * self._stride
            number, _, _ = self._frame_head(at)
            page = self._seen.get(number)
            if page is not None and number not in self._free and page == self._wal_page(at):
                return True
        after = read_wal_header(self._path)
        return after is None or after.salts != header.salts

    def _page(self, number: int) -> bytes:
        page = self._seen.get(number)
        if page is None:
            page = self._seen[number] = self._read(number)
        return page

    def _read(self, number: int) -> bytes:
        page = os.pread(self._fd, self._page_bytes, (number - 1) * self._page_bytes) if number > 0 else b""
        if len(page) != self._page_bytes:
            raise NotOurPage("the database ends before that page")
        return page

    def _first_frames(self) -> Iterator[tuple[int, int, int, bool]]:
        """(page number, kind of page, place in the WAL, ends a commit) of each frame, from the first one on."""
        for index in range(min(self._header.frames, FIRST_FRAMES_MAX)):
            at = WAL_HEADER_BYTES + index * self._stride
            number, pages, kind = self._frame_head(at)
            yield number, kind if number != 1 else 0, at, pages > 0

    def _frame_head(self, at: int) -> tuple[int, int, int]:
        """Page number, the pages of the database if the frame ends a commit, the page's first byte. NotOurPage: the
        frame is of another WAL."""
        head = os.pread(self._wal_fd, FRAME_HEADER_BYTES + 1, at)
        if len(head) <= FRAME_HEADER_BYTES or head[8:16] != self._header.salts:
            raise NotOurPage("the WAL was begun again")
        number, pages = struct.unpack_from(">II", head)
        return number, pages, head[FRAME_HEADER_BYTES]

    def _wal_page(self, at: int) -> bytes:
        page = os.pread(self._wal_fd, self._page_bytes, at + FRAME_HEADER_BYTES)
        if len(page) != self._page_bytes:
            raise NotOurPage("the WAL ends within a frame")
        return page


def _slot_of(slot: int, values: list[Value]) -> tuple[int, bytes] | None:
    """(seqno, how its record begins); None if the row is not a slot."""
    alias, seqno, record = values
    if alias is not None or not isinstance(seqno, int) or isinstance(record, int):
        return None
    if seqno and (seqno < 0 or seqno % RING_SLOTS != slot):
        return None
    return seqno, record or b""
