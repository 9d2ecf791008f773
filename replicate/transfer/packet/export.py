"""Exports what other replicas lack: increments of the journal, cut into packets.

Guarantees: only what is durable here is exported, in the journal's order, byte for byte; a packet is whole and durable
before the epochs move, so a kill in between exports the same again, and never leaves a gap; transactions are never cut,
but large ones, which go on in the next packet. Where an increment begins is compared with what was known of it then: a
journal that has another past is refused. A supplier exports what the target lacks of each origin, as it was written.
Leaves to others: how packets travel, and who imports them.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from replicate.door.door import Door
from replicate.door.recovery.opening import make_chain
from replicate.door.snapshot import door_of
from replicate.errors import DivergedError, JournalMissingError, NotFoundError, UsageError
from replicate.instance.consumers import read_consumer, read_hold
from replicate.instance.instance import STAGE_DIRECTORY, Instance
from replicate.journal.header import SegmentHeader
from replicate.journal.merged_large import WrittenLarge, written_by
from replicate.journal.reader import ChainReader, LargeTransaction
from replicate.journal.record import read_head
from replicate.journal.segment import catalogue_frame, read_exactly
from replicate.limits import FRAME_BYTES_MAX, KIB, MIB
from replicate.model.transaction import Catalogue
from replicate.model.vector import Position
from replicate.pool import control as word
from replicate.security.guarded_file import read_guarded
from replicate.security.sealing import ChunkCipher, new_key, seal
from replicate.security.signing import sign
from replicate.security.tls_files import TlsFiles
from replicate.system.failpoint import hit
from replicate.system.locks import FileLock
from replicate.system.os_errors import io_error
from replicate.transfer.packet.epochs import EpochRow, Epochs
from replicate.transfer.packet.epochs_file import change_epochs, read_epochs
from replicate.transfer.packet.excerpt import excerpt_for, refuse_some_rows, selection_for
from replicate.transfer.packet.format import (
    NO_LARGE,
    PIECE_BYTES,
    TARGETS_MAX,
    BetweenSuppliers,
    Excerpt,
    OriginName,
    PacketSummary,
    SegmentPart,
    Signature,
    version_of,
)
from replicate.transfer.packet.packet_changes import Chosen, Everything, Lacked, Passing
from replicate.transfer.packet.read import SUFFIX
from replicate.transfer.packet.sealed import PacketSealer, plain_bytes_within
from replicate.transfer.packet.supplier_rows import joined, vector_of
from replicate.transfer.packet.suppliers import SuppliersView, look_at_suppliers
from replicate.transfer.packet.told_again import ToldSegments
from replicate.transfer.packet.write import PIECE_OVERHEAD_BYTES, PacketWriter, Sign, unsigned
from replicate.transfer.seed.file import require_free

LOCK_NAME: Final = "packets.lock"
LOCK_TIMEOUT_S: Final = 5.0
PACKET_BYTES_MIN: Final = 8 * MIB
TAIL_BYTES: Final = 128 * KIB
"""Left in a packet for its summary, its signature and its end."""
READ_BYTES: Final = 256 * KIB
NUMBERS_TRIED: Final = 1000
NAMED_MAX: Final = 3
"""Of more targets than these, a packet's name says how many they are."""

Told = Callable[[int, int], None]
"""Is told how many transactions are exported, of how many."""


def quiet(_done: int, _whole: int) -> None:
    """A Told that tells nobody."""


class Exported(Struct, frozen=True):
    """A packet that was made. `last_seqno` below `first_seqno`: a receipt, or a part of a large transaction."""

    path: Path
    number: int
    targets: tuple[str, ...]
    first_seqno: int
    last_seqno: int
    bytes: int
    is_receipt: bool


def signer_of(instance: Instance) -> Sign:
    """Signs by the instance's certificate; nothing where it has none."""
    files = TlsFiles.of(instance.path, instance.config.tls)
    if not files.are_there():
        return unsigned
    return lambda body: Signature(*sign(body, files))


def sealer_of(instance: Instance, target: str, now_s: float) -> PacketSealer:
    """Seals one packet for that peer, whose certificate is here. NotFoundError when it is not, or this instance has
    none; and what sealing raises."""
    files = TlsFiles.of(instance.path, instance.config.tls)
    if not files.are_there():
        raise NotFoundError(
            f"{instance.name} has no certificate, so it knows nobody's",
            where=str(files.certificate),
            do=f"Make some: replicate -i {instance.named} certificate issue {instance.name} --ca DIR",
        )
    path = certificate_of(instance, target)
    try:
        certificate = read_guarded(path, is_secret=False, what=f"the certificate of {target}")
    except NotFoundError as error:
        raise NotFoundError(
            f"the certificate of {target} is not here",
            where=str(path),
            do="Import a receipt that it has signed, or put its certificate.pem there",
        ) from error

    key = new_key()
    return PacketSealer(target, seal(key, certificate, files, now_s, where=str(path)), ChunkCipher(key))


def certificate_of(instance: Instance, target: str) -> Path:
    """Where a peer's certificate is kept, which packets for it are sealed by."""
    return instance.path / "tls" / "peers" / f"{target}.pem"


def packets_lock(instance: Instance) -> FileLock:
    """Held by the process that exports or imports packets here."""
    return FileLock(instance.locks_directory / LOCK_NAME)


def with_live(instance: Instance, epochs: Epochs, position_at: Callable[[int], Position], last_seqno: int) -> Epochs:
    """With what lines and seeds say of registered peers: how far one has told that it is; and that the seed which was
    made for it will bring it there. `position_at` gives the position at a number of our journal, whose last one is
    `last_seqno`."""
    directory = instance.consumers_directory
    for peer in instance.peers:
        consumer, held = read_consumer(directory, peer.name), read_hold(directory, peer.name)
        seeded = held if held is not None and held <= last_seqno else 0
        if consumer is not None and consumer.uuid and not consumer.needs_seed:
            if consumer.acknowledged_wall_ns:
                row = EpochRow(position_at(consumer.acknowledged_seqno), consumer.acknowledged_wall_ns)
                if instance.is_supplier:
                    row = _with_word(epochs.of(peer.name).heard, row)
                epochs = epochs.heard(peer.name, row)
            else:  # filled on this host, and not met on a line since
                seeded = max(seeded, consumer.acknowledged_seqno)
        known = epochs.of(peer.name)
        if seeded and (known.known is None or known.known.seqno < seeded):
            estimated = EpochRow(position_at(seeded), 0)
            epochs = replace(epochs, replicas={**epochs.replicas, peer.name: replace(known, estimated=estimated)})
    return epochs


def _with_word(heard: EpochRow | None, row: EpochRow) -> EpochRow:
    """What a supplier has acknowledged on a line, with what its packets have said before: it has that, too, unless it
    was restored since."""
    if heard is None or row.seqno < heard.seqno:
        return row
    if row.wall_ns <= heard.wall_ns:
        return heard
    chains = joined(heard.position.chains, row.position.chains)
    return EpochRow(Position(row.seqno, vector_of(chains), chains), row.wall_ns)


class ExportRun:
    """One run of exports from an instance, whose door is open meanwhile. For one thread; as a context manager."""

    def __init__(
        self,
        instance: Instance,
        *,
        sign: Sign = unsigned,
        sealer: Callable[[str], PacketSealer] | None = None,
        release: str,
        now_ns: Callable[[], int],
        is_look: bool = False,
    ) -> None:
        """`sign`: as `PacketWriter`; `sealer`: gives that of the next packet, for its target; `now_ns`: the wall
        clock. `is_look`: nothing is exported, so it may be beside one that does."""
        self.instance = instance
        self._sealer = sealer
        self._sign = sign
        self._release = release
        self._now_ns = now_ns
        self._lock = None if is_look else packets_lock(instance)
        self._door: Door | None = None
        self._entered = door_of(instance)
        self._last_seqno = 0
        self._reader = ChainReader(make_chain(instance))
        self._told = ToldSegments(instance.path / STAGE_DIRECTORY / "export")

    def __enter__(self) -> ExportRun:
        """BusyError while packets are exported or imported here; NotFoundError: not seeded."""
        try:
            if self._lock is not None:
                self._lock.acquire(LOCK_TIMEOUT_S, what="the lock of the packets")
                self._told.clear()
            self._door = self._entered.__enter__()
            self._door.sync_to_end()
            self._last_seqno = int(self._door.words[word.LAST_DURABLE_SEQNO])
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._reader.close()
        if self._door is not None:
            if self._lock is not None:
                self._told.clear()
            self._door = None
            self._entered.__exit__(None, None, None)
        if self._lock is not None:
            self._lock.close()

    # What is known.

    @property
    def last_seqno(self) -> int:
        """The last transaction that is exported: it is durable here."""
        return self._last_seqno

    def catalogue_at(self, seqno: int) -> Catalogue:
        """What is in force after transaction `seqno`. JournalMissingError."""
        return self._reader.catalogue_at(seqno + 1)

    def position_at(self, seqno: int) -> Position:
        """Where our journal is at a number. What it does not hold any more, or not yet, has its number alone."""
        if not 0 < seqno <= self._last_seqno:
            return Position(seqno)
        try:
            here = self.catalogue_at(seqno)
        except JournalMissingError:
            return Position(seqno)
        return Position(seqno, here.vector, here.chains)

    def end(self) -> Position:
        """How far this instance is itself: to its last durable transaction."""
        return self.position_at(self._last_seqno)

    def epochs(self) -> Epochs:
        """What is known of the others now."""
        epochs = read_epochs(self.instance.consumers_directory)
        return with_live(self.instance, epochs, self.position_at, self._last_seqno)

    def suppliers(self) -> SuppliersView:
        """Of a supplier: what is known of the others now."""
        assert self._door is not None
        return look_at_suppliers(self.instance, self._door, self.epochs(), self.end())

    def _base(self, names: Sequence[str]) -> Position:
        """Where the next increment for all of these begins. Raises as `base_of`."""
        if not self.instance.is_supplier:
            return min(map(self.base_of, names), key=lambda one: one.last_seqno)
        for name in names:
            self._refuse_some(name)
        return self.suppliers().base(names)

    def base_of(self, name: str) -> Position:
        """Where the next increment for that peer begins. NotFoundError: no such peer, or nothing is known of it;
        UsageError: a packet cannot bring it what it should have; DivergedError; JournalMissingError."""
        instance = self.instance
        instance.peer(name)
        consumer = read_consumer(instance.consumers_directory, name)
        row = self.epochs().of(name).known
        lost = consumer is not None and consumer.needs_seed
        if row is None or (lost and read_hold(instance.consumers_directory, name) is None):
            raise NotFoundError(
                f"{name} was given up, as the journal was kept for it for too long"
                if lost
                else f"nothing is known of what {name} has",
                where=str(instance.path),
                do=f"Seed it: replicate -i {instance.named} seed --to-file FILE --for {name}; or import its receipt "
                f"(there: packet export --to {instance.name} --receipt); or, if you know it: epochs set {name} N",
            )
        if row.seqno > self._last_seqno:
            raise DivergedError(
                f"{name} should have transaction {row.seqno}, and the journal here ends with {self._last_seqno}",
                where=str(instance.path),
                do=f"If this instance was restored from a backup, it must follow {name}, or {name} be seeded again; "
                f"compare them: replicate -i {instance.named} scr --with-scr FILE",
            )
        try:
            here = self.catalogue_at(row.seqno)
        except JournalMissingError as error:
            raise JournalMissingError(
                f"{name} should have transaction {row.seqno}; of what comes after it the journal here has lost some",
                where=error.where,
                do=f"Seed it again: replicate -i {instance.named} seed --to-file FILE --for {name}; or replay an "
                "archive there, and import its receipt",
            ) from error
        known = row.position.chains
        if known and dict(here.chains) != dict(known):
            raise DivergedError(
                f"at transaction {row.seqno}, which {name} should have, the journal here has another past than then",
                where=str(instance.path),
                do=f"Import a receipt of {name}, which says what it has; or seed it again",
            )
        return Position(row.seqno, here.vector, here.chains)

    def _refuse_some(self, name: str) -> None:
        """UsageError where a supplier should give that peer less than all."""
        instance = self.instance
        if instance.partitions_now().keeps_back:
            raise UsageError(
                f"{instance.name} has rows in the partition NONE, which never leave it, and a supplier gives all",
                where=str(instance.path),
                do="Send by a line, which leaves them out",
            )
        if instance.peer(name).partitions is not None:
            raise UsageError(
                f"{name} may have some partitions only, and a supplier gives all",
                where=str(instance.path),
                do=f"Let it have all: replicate -i {instance.named} peer add {name} … --partitions ALL --replace",
            )

    # Exporting.

    def increments(
        self,
        targets: Sequence[str],
        name_of: Callable[[str], Path],
        *,
        max_bytes: int,
        is_one: bool = False,
        told: Told = quiet,
    ) -> Iterator[Exported]:
        """Packets with everything that one of the targets lacks; none, when they lack nothing. Each is given when it is
        durable, and the epochs have moved.

        `name_of`: where a packet of that name goes. `max_bytes`: of one packet. `is_one`: all must fit one packet.
        Raises what `base_of` and the journal raise, UsageError, DiskFullError, JournalIOError; what was given before is
        whole and counts.
        """
        wanted = tuple(dict.fromkeys(targets))
        if not 0 < len(wanted) <= TARGETS_MAX:
            raise UsageError(f"{len(wanted)} targets", do=f"Name 1 to {TARGETS_MAX}")
        refuse_some_rows(self.instance, "a packet says of which partitions it has rows, and not which rows")
        base, goes_on = self._base(wanted), NO_LARGE
        first, inside = base.last_seqno, 0
        if self._sealer is not None:
            max_bytes = plain_bytes_within(max_bytes)
        while base.last_seqno < self._last_seqno:
            made = self._packet(wanted, base, inside, name_of, max_bytes, goes_on)
            base, inside, goes_on = made.end, made.end_inside, made.goes_on
            if self.instance.is_supplier and not inside:
                base = self.suppliers().position(base.chains, base.last_seqno)
            if is_one and base.last_seqno < self._last_seqno:
                raise UsageError(
                    f"one file of {max_bytes} bytes takes up to transaction {made.end.last_seqno} only",
                    where=str(made.exported.path),
                    do="The file is whole. Export again, to another file; or name an --outbox, or a larger --max-bytes",
                )
            told(base.last_seqno - first, self._last_seqno - first)
            yield made.exported

    def receipt(self, targets: Sequence[str], name_of: Callable[[str], Path]) -> Exported:
        """A packet that says how far this instance is, and brings nothing."""
        own = self.end()
        return self._packet(tuple(dict.fromkeys(targets)), own, 0, name_of, PACKET_BYTES_MIN).exported

    def _packet(
        self,
        targets: tuple[str, ...],
        base: Position,
        inside: int,
        name_of: Callable[[str], Path],
        max_bytes: int,
        goes_on: tuple[int, int] = NO_LARGE,
    ) -> _CutPacket:
        epochs = read_epochs(self.instance.consumers_directory)
        number, before = epochs.last_number + 1, epochs.before(targets, base.last_seqno, inside)
        to = "+".join(targets) if len(targets) <= NAMED_MAX else f"{len(targets)}-replicas"
        number, path = _free(number, lambda at: name_of(f"{self.instance.name}.{to}.{at:06d}{SUFFIX}"))
        if self._sealer is not None and len(targets) > 1:
            raise UsageError("a sealed packet is for one target", do="Export to each of them")
        sealer = None if self._sealer is None else self._sealer(targets[0])
        require_free(path.parent, min(max_bytes, PACKET_BYTES_MIN), "a packet")
        content, known = self.instance.content, self.suppliers() if self.instance.is_supplier else None
        excerpt, passing = self._passing(targets, base, known)
        with PacketWriter(path, sealer, version_of(known is not None, excerpt)) as writer:
            cut = _Cut(writer, self._reader, self._header_at, max_bytes - TAIL_BYTES, passing, self._told)
            end, end_inside = cut.run(base, inside, self._last_seqno)
            own, suppliers = self.end(), None
            if known is not None:
                chains = joined(base.chains, end.chains)
                end = Position(end.last_seqno, vector_of(chains), chains)
                met = tuple(map(known.incarnation, targets))
                suppliers = BetweenSuppliers(content.incarnation, goes_on, cut.goes_on, met)
            histories = self.catalogue_at(self._last_seqno).histories
            summary = PacketSummary(
                uuid.uuid4().bytes, content.network, content.uuid, content.name, targets, number, before, base, inside,
                end, end_inside, own,
                tuple(OriginName(one.origin.key, one.name, one.incarnation, one.seqno) for one in histories),
                self._now_ns(), self._release, b"", suppliers, excerpt,
            )  # fmt: skip
            summary = writer.finish(summary, self._sign)
        hit("packet.before_epochs")
        change_epochs(
            self.instance.consumers_directory,
            lambda known: self._as_heard(known, targets).exported(summary, str(path), writer.written_bytes),
        )
        return _CutPacket(
            Exported(
                path, number, targets, summary.first_seqno, end.last_seqno, writer.written_bytes, summary.is_receipt
            ),
            end,
            end_inside,
            cut.goes_on,
        )

    def _passing(
        self, targets: tuple[str, ...], base: Position, known: SuppliersView | None
    ) -> tuple[Excerpt | None, Passing]:
        """What of the journal after `base` goes to these, and what that is an excerpt of. UsageError."""
        if known is not None:
            return None, Lacked(base.chains, known.names)
        if base.last_seqno == self._last_seqno:  # a receipt, or nothing to send
            return None, Everything()
        excerpt = excerpt_for(self.instance, targets, base.last_seqno + 1)
        selection = selection_for(self.instance, excerpt, self.catalogue_at(base.last_seqno).definitions)
        return excerpt, Everything() if selection is None else Chosen(selection)

    def _as_heard(self, known: Epochs, targets: tuple[str, ...]) -> Epochs:
        """What lines say is stored with the export: an estimate below it would be no estimate."""
        live = with_live(self.instance, known, self.position_at, self._last_seqno)
        named = {name: live.replicas[name] for name in targets if name in live.replicas}
        return replace(known, replicas={**known.replicas, **named})

    def _header_at(self, first_seqno: int) -> tuple[SegmentHeader, Catalogue]:
        content, here = self.instance.content, self.catalogue_at(first_seqno - 1)
        if self.instance.is_supplier:  # what goes may be of any origin
            here = replace(here, histories=self.catalogue_at(self._last_seqno).histories)
        origin_seqno, chain = here.chains.get(content.origin.key, (0, 0))
        header = SegmentHeader(
            content.network,
            content.uuid,
            content.incarnation,
            first_seqno,
            self._now_ns(),
            origin_seqno=origin_seqno,
            chain=chain,
        )
        return header, here


def _free(number: int, path_of: Callable[[int], Path]) -> tuple[int, Path]:
    """The next number, from `number` on, whose packet is not there: one that was killed before the epochs moved has
    left its packet, and after a restored backup the epochs are old. Where all of some are there, the last of these."""
    for at in range(number, number + NUMBERS_TRIED):
        if not path_of(at).exists():
            return at, path_of(at)
    return at, path_of(at)


class _CutPacket(Struct, frozen=True):
    exported: Exported
    end: Position
    end_inside: int
    goes_on: tuple[int, int]


class _Cut(Struct):
    """Writes what comes next of the journal, as much as fits `budget` bytes."""

    writer: PacketWriter
    reader: ChainReader
    header_at: Callable[[int], tuple[SegmentHeader, Catalogue]]
    budget: int
    passing: Passing
    told: ToldSegments
    goes_on: tuple[int, int] = NO_LARGE
    """Origin and number of the large transaction that it ends in."""
    _buffer: bytearray = field(default_factory=bytearray)
    _is_open: bool = False
    """An ordinary segment is under way."""

    def run(self, base: Position, inside: int, last_seqno: int) -> tuple[Position, int]:
        """What follows `base` (of its next transaction `inside` bytes are written elsewhere), to `last_seqno` at most:
        where it ends, and so many bytes of the transaction after that."""
        done = base.last_seqno
        self.reader.seek(done + 1)
        end_inside = 0
        while done < last_seqno and self._room() > 0:
            found = self.reader.read(READ_BYTES, last_seqno)
            if found is None:
                break
            if isinstance(found, LargeTransaction):
                placed, path, written = self.passing.large(found), found.path, None
                if isinstance(placed, bytes):
                    source = written_by(found, placed) if placed else None
                    if not isinstance(source, WrittenLarge):
                        self._take(placed, found.seqno)
                        done = found.seqno
                        continue
                    written = source
                elif placed is not None:
                    path = self.told.path_of(placed, found.seqno, path)
                self._flush()
                self._is_open = False
                if written is None:
                    reached, size = self._large(path, found.seqno, inside)
                else:
                    reached, size = self._written(written, inside)
                inside = 0
                if reached < size:
                    end_inside, head = reached, read_head(found.commit_frame)
                    self.goes_on = head.origin, head.origin_seqno
                    break
                done = found.seqno
                continue
            self._take(self.passing.frames(found), found.first_seqno)
            done = found.last_seqno
        self._flush()
        if done == base.last_seqno:
            return base, end_inside
        _, here = self.header_at(done + 1)
        return Position(done, here.vector, here.chains), end_inside

    def _take(self, frames: bytes, first_seqno: int) -> None:
        """Frames of transactions from that number on; b"": none of them goes."""
        if not frames:
            return
        if not self._is_open:
            self._begin(first_seqno)
        self._buffer += frames
        while len(self._buffer) >= PIECE_BYTES:
            self._put(PIECE_BYTES)

    def _room(self) -> int:
        """How many bytes may be read now, so that they surely fit."""
        pieces = len(self._buffer) // PIECE_BYTES + 4
        pending = len(self._buffer) + READ_BYTES + FRAME_BYTES_MAX + pieces * PIECE_OVERHEAD_BYTES
        return self.budget - self.writer.written_bytes - pending

    def _begin(self, first_seqno: int) -> None:
        header, catalogue = self.header_at(first_seqno)
        self.writer.segment(SegmentPart(first_seqno))
        self._buffer += header.pack() + catalogue_frame(catalogue, header)
        self._is_open = True

    def _put(self, count: int) -> None:
        self.writer.piece(bytes(self._buffer[:count]))
        del self._buffer[:count]

    def _flush(self) -> None:
        while self._buffer:
            self._put(min(PIECE_BYTES, len(self._buffer)))

    def _large(self, path: str, seqno: int, inside: int) -> tuple[int, int]:
        """The rest of a large transaction's segment at `path` from byte `inside` on, as much as fits: up to which byte
        it is written, and how many it has."""
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError as error:
            raise io_error(error, "a segment of the journal cannot be read", path) from error
        try:
            size, is_begun = os.fstat(fd).st_size, False
            while inside < size:
                count = min(PIECE_BYTES, size - inside)
                if self.budget - self.writer.written_bytes < count + 4 * PIECE_OVERHEAD_BYTES:
                    break
                if not is_begun:
                    self.writer.segment(SegmentPart(seqno, size, inside))
                    is_begun = True
                self.writer.piece(read_exactly(fd, count, inside, path))
                inside += count
        finally:
            os.close(fd)
        return inside, size

    def _written(self, large: WrittenLarge, inside: int) -> tuple[int, int]:
        """The same of one that was merged here, as its writer wrote it."""
        size, pieces = large.segment(*self.header_at(large.seqno))
        reached, end, is_full = inside, 0, False
        for data in pieces:
            begin, end = end, end + len(data)
            while reached < end and not is_full:
                count = min(PIECE_BYTES, end - reached)
                is_full = self.budget - self.writer.written_bytes < count + 4 * PIECE_OVERHEAD_BYTES
                if is_full:
                    break
                if reached == inside:
                    self.writer.segment(SegmentPart(large.seqno, size, inside))
                self.writer.piece(data[reached - begin : reached - begin + count])
                reached += count
            if is_full:
                break
        return reached, size
