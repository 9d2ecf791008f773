"""Journals for tests: frames with true chain hashes, and small chains of segments on the disk.

Guarantees: everything is a function of its arguments; two calls make equal bytes.
Leaves to others: any database.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgpack
import pytest

from replicate.audit.query import Query, find
from replicate.audit.show import EVERY, ShownTransaction, told
from replicate.journal.chain import Chain
from replicate.journal.durable import SIDECAR_NAME, DurableSidecar
from replicate.journal.header import SegmentHeader
from replicate.journal.record import history_payload, pack_frame, read_head
from replicate.journal.segment import SegmentFile
from replicate.journal.spool import Spool
from replicate.journal.walk import walk
from replicate.model.transaction import Catalogue, Column, History, Kind, Op, TableDefinition
from replicate.model.vector import Origin, SynchronizationVector
from tests.harness.changed_frames import null_payload

NETWORK = bytes(range(16))
INSTANCE = bytes(range(16, 32))
ORIGIN = Origin(INSTANCE, 1)


def make_definition(
    table: str = "customer", version: int = 1, columns: int = 3, *, rowid: bool = False
) -> TableDefinition:
    """A plain table definition with a key on its first value."""
    return TableDefinition(
        region="main",
        partition=1,
        owner="main",
        table=table,
        version=version,
        columns=tuple(Column(f"c{n}", "TEXT", False, "BINARY") for n in range(columns)),
        key=(0,),
        rowid=rowid,
        strict=False,
        without_rowid=False,
    )


def insert_payload(values: list[object], table_id: int = 0x8000_0001) -> tuple[bytes, int]:
    """The payload of one INSERT."""
    return b"".join(map(msgpack.packb, (int(Op.INSERT), table_id, 0, values))), 4


def define_payload(definition: TableDefinition) -> tuple[bytes, int]:
    """The payload of one DEFINE."""
    parts = (int(Op.DEFINE), definition.table_id, definition.version, definition.pack())
    return b"".join(map(msgpack.packb, parts)), 4


@dataclass
class FrameMaker:
    """Numbers frames of one origin as a writer would."""

    next_seqno: int = 1
    origin: int = ORIGIN.key
    origin_seqno: int = 0
    chain: int = 0
    mark: int = 0
    ended: dict[int, tuple[int, int]] = field(default_factory=dict)

    def _make(self, kind: Kind, payload: tuple[bytes, int], origin_seqno: int) -> bytes:
        frame, self.chain = pack_frame(
            kind, self.next_seqno, self.mark, self.chain, self.origin, origin_seqno, self.next_seqno << 16, *payload
        )
        self.origin_seqno = origin_seqno
        self.next_seqno += 1
        return frame

    def transaction(self, value: object = None, payload: tuple[bytes, int] | None = None) -> bytes:
        """One TRANSACTION frame; its one change inserts (seqno, value)."""
        return self._make(Kind.TRANSACTION, payload or insert_payload([self.next_seqno, value]), self.origin_seqno + 1)

    def transactions(self, count: int, value: object = None) -> bytes:
        """That many, one after the other."""
        return b"".join(self.transaction(value) for _ in range(count))

    def null(self, reason: str = "void") -> bytes:
        return self._make(Kind.NULL, null_payload(reason, (1,)), self.origin_seqno + 1)

    def history(self, incarnation: int = 1) -> bytes:
        """A HISTORY frame that opens another origin; the maker goes on as that origin."""
        history = History(INSTANCE, "alpha", incarnation, self.origin, SynchronizationVector(), "test")
        self.ended[self.origin] = (self.origin_seqno, self.chain)
        self.origin, self.chain = history.origin.key, 0
        return self._make(Kind.HISTORY, history_payload(history), 0)

    def large(self, spool: Spool, partitions: tuple[int, ...] = (1,)) -> bytes:
        """The LARGE frame that commits `spool`."""
        return self._make(Kind.LARGE, spool.commit_payload(partitions), self.origin_seqno + 1)


def header_after(
    current: SegmentHeader, *, end_offset: int, last_seqno: int, origin_seqno: int, chain: int
) -> SegmentHeader:
    """The header of the segment right after `current`, which ended at `end_offset` with `last_seqno`."""
    return SegmentHeader(
        network=current.network,
        instance=current.instance,
        incarnation=current.incarnation,
        first_seqno=last_seqno + 1,
        created_wall_ns=2_000,
        previous_first_seqno=current.first_seqno,
        previous_last_seqno=last_seqno,
        previous_end_offset=end_offset,
        previous_check=current.check,
        origin_seqno=origin_seqno,
        chain=chain,
    )


@dataclass
class ToyJournal:
    """A writer without locks, pools and regions: frames go to a chain in `directory`."""

    directory: Path
    maker: FrameMaker = field(default_factory=FrameMaker)
    catalogue: Catalogue = field(default_factory=Catalogue)

    def __post_init__(self) -> None:
        self.directory.mkdir(exist_ok=True)
        self.chain = Chain(self.directory, network=NETWORK, instance=INSTANCE)
        header = SegmentHeader(NETWORK, INSTANCE, 1, self.maker.next_seqno, 1_000)
        self.segment: SegmentFile = self.chain.create_first(header, self.catalogue)
        self.end_offset = self.segment.read_catalogue()[1]
        self.sidecar = DurableSidecar.create(self.directory / SIDECAR_NAME)

    @property
    def last_seqno(self) -> int:
        return self.maker.next_seqno - 1

    def append(self, data: bytes) -> int:
        """Append frames; the offset where they begin."""
        begin = self.end_offset
        self.end_offset = self.segment.append(begin, data)
        return begin

    def write(self, count: int, value: object = None) -> None:
        """Append that many transactions."""
        self.append(self.maker.transactions(count, value))

    def _catalogue_here(self) -> Catalogue:
        maker = self.maker
        chains = {**self.catalogue.chains, **maker.ended, maker.origin: (maker.origin_seqno, maker.chain)}
        vector = self.catalogue.vector.raised(maker.origin, 0, maker.origin_seqno)
        return self.catalogue.at(vector, chains)

    def switch(self) -> None:
        """Begin the next segment."""
        maker = self.maker
        self.catalogue = self._catalogue_here()
        if not self.segment.header.adopted:
            self.segment.sync()
        header = header_after(
            self.segment.header,
            end_offset=self.end_offset,
            last_seqno=self.last_seqno,
            origin_seqno=maker.origin_seqno,
            chain=maker.chain,
        )
        following = self.chain.create_first(header, self.catalogue)
        self.segment.close()
        self.segment = following
        self.end_offset = following.read_catalogue()[1]

    def adopt(self, stream: bytes) -> bytes:
        """Commit one large transaction with that change stream; its LARGE frame. `switch` must follow."""
        spool = Spool.create(self.directory, self.maker.origin)
        spool.write(stream)
        spool.finish()
        self.catalogue = self._catalogue_here()
        header = header_after(
            self.segment.header,
            end_offset=self.end_offset,
            last_seqno=self.last_seqno,
            origin_seqno=self.maker.origin_seqno,
            chain=self.maker.chain,
        )
        frame = self.maker.large(spool)
        self.segment.close()
        spool.adopt(header, frame, self.catalogue)
        self.segment = self.chain.open(read_head(frame).seqno, writable=True)
        self.end_offset = self.segment.read_catalogue()[1]
        return frame

    def close(self) -> None:
        self.segment.close()
        self.sidecar.close()


def frame_places(chain: Chain, first_seqno: int) -> dict[int, int]:
    """Of each frame in the segment that begins with that seqno, its own seqno and the offset where it begins."""
    with chain.open(first_seqno) as segment:
        _, begin = segment.read_catalogue()
        data = segment.read_some(segment.scan().end_offset - begin, begin)
    return {head.seqno: begin + offset for offset, head in walk(data)}


def show_chain(
    chain: Chain, query: Query = EVERY, *, parts: bool = False, marks_are_ours: bool = True
) -> Iterator[ShownTransaction]:
    """As `show_journal`, of a journal without an instance."""
    return told(find(chain, query, marks_are_ours=marks_are_ours), parts=parts)


def flip(path: Path, offset: int, mask: int = 0x01) -> None:
    """Flip bits of one byte of a file."""
    with open(path, "r+b") as file:
        file.seek(offset)
        byte = file.read(1)
        file.seek(offset)
        file.write(bytes([byte[0] ^ mask]))


def mounted_read_only(monkeypatch: pytest.MonkeyPatch, directory: Path) -> None:
    """From now on what opens a file of `directory` to write is refused, as on a read-only mount (root too)."""
    opens = os.open

    def refusing(path: str | os.PathLike[str], flags: int, *rest: Any, **named: Any) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT) and Path(path).is_relative_to(directory):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)
        return opens(path, flags, *rest, **named)

    monkeypatch.setattr(os, "open", refusing)
