"""Whether a commit on a supplier changes only what this supplier may write now (model/writers.py, told_fences.py).

Guarantees: asked with the locks of the commit's regions held, so the answer holds until the commit is over. A change of
the schema passes where nobody else writes anything, or while all others stand aside for us. A table moves only out of,
and into, partitions that nobody else writes. While another one has us stand aside, and after we were said to be gone
for good, no row is changed. A key that is another supplier's to give is refused in tables that several write. What
names the writers is read again when it may have changed.
Leaves to others: how a partition changes its writer, and how others come to stand aside (admin/schema_run.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from replicate.door.door import Door, gone_for_good
from replicate.door.fenced_schema import with_fence
from replicate.door.region_part import RegionPart
from replicate.errors import NotSupportedError, NotWriterError
from replicate.instance.instance import Instance
from replicate.journal.record import unpacker
from replicate.model.transaction import Op
from replicate.model.writers import Writers
from replicate.pool import control as word
from replicate.region.protocol import CapturedChanges

_OF_TABLES: Final = frozenset(map(int, (Op.INSERT, Op.UPDATE, Op.DELETE, Op.SEQUENCE, Op.DEFINE)))
"""What is of one table. (A DEFINE without a statement moves it to another partition.)"""
_OF_ROWS: Final = _OF_TABLES - {int(Op.DEFINE)}
_BARRED: Final = _OF_TABLES | {int(Op.SCHEMA)}
"""What waits while others stand aside, and is refused of one that is gone for good."""


class WriterCheck:
    """One per session."""

    def __init__(self, instance: Instance) -> None:
        self._own = instance.content.uuid
        self._seen = -1
        self._known: list[tuple[RegionPart, Writers]] = []
        """Of the regions that the last commit changes."""
        self._read: dict[RegionPart, Writers] = {}
        """Of all that were asked since `_seen`."""

    @property
    def was_shared(self) -> bool:
        """Whether several have ever written one partition, as it was known at the last `refuse_others`."""
        return any(writers.was_shared for _, writers in self._known)

    def merges(self, captured: CapturedChanges) -> bool:
        """Whether it changes what several write. After `refuse_others`."""
        return any(writers.merged(captured.partitions) for _, writers in self._known)

    def with_fence(self, captured: CapturedChanges, parts: Sequence[RegionPart], door: Door) -> CapturedChanges:
        """The changes, of the schema among them, with what is told after them (fenced_schema.py). `parts`: all regions
        of the session. After `refuse_others`."""
        return with_fence(captured, self._known, parts, door)

    def refuse_others(self, captured: CapturedChanges, parts: Sequence[RegionPart], door: Door) -> None:
        """NotWriterError for a commit that changes what another supplier writes, or what nobody may change meanwhile;
        NotSupportedError for a key that is another one's to give."""
        generation = door.words[word.WRITERS_GENERATION]
        if generation != self._seen or [part for part, _ in self._known] != list(parts):
            if generation != self._seen:
                self._read.clear()
            self._known = [(part, self._writers_of(part)) for part in parts]
            self._seen = generation
        for part, writers in self._known:
            if writers.is_gone(self._own) and not _BARRED.isdisjoint(_ops(captured)):
                raise self._gone(part, writers, door)
            is_fenced = self._is_fenced(captured, part, writers, door)
            if captured.schema_changed and Op.SCHEMA in _ops(captured):
                if not is_fenced and not writers.all_by(self._own):
                    raise self._schema(part, writers, door)
            elif captured.schema_changed and (moved := writers.merged(captured.partitions)):
                raise self._moved(part, writers, moved[0], door)
            others = writers.not_of(self._own, captured.partitions)
            if others and not (_OF_ROWS if is_fenced else _OF_TABLES).isdisjoint(_ops(captured)):
                raise self._rows(part, writers, others[0], door)
            if not writers.merged(captured.partitions):
                continue
            if (found := part.region.counted_out(writers, self._own)) is not None:
                raise self._counted_out(part, *found, door)

    def _writers_of(self, part: RegionPart) -> Writers:
        known = self._read.get(part)
        if known is None:
            known = self._read[part] = part.region.writers()
        return known

    def _is_fenced(self, captured: CapturedChanges, part: RegionPart, writers: Writers, door: Door) -> bool:
        """Whether all others stand aside for us. NotWriterError where a fence bars us from writing."""
        if not writers.fences.open(writers.retired):
            return False
        known = suppliers_known(door, writers)
        fencer = writers.fences.bars(self._own, known, writers.retired)
        if fencer is not None and not _BARRED.isdisjoint(_ops(captured)):
            raise self._fenced(part, writers, fencer, known, door)
        return fencer is None

    def _fenced(
        self, part: RegionPart, writers: Writers, fencer: bytes, known: frozenset[bytes], door: Door
    ) -> NotWriterError:
        who = name_of(door, fencer)
        if fencer != self._own:
            return NotWriterError(
                f"{who} changes the schema, and all other suppliers stand aside meanwhile",
                where=part.where,
                do=f"Try again later. Where that takes too long, end it there: replicate -i {who} schema unfence",
                writer=who,
            )
        awaited = writers.fences.awaited(fencer, known, writers.retired)
        told = ", ".join(sorted(name_of(door, one) for one in awaited))
        return NotWriterError(
            f"{who} has all other suppliers stand aside, and waits for {told}",
            where=part.where,
            do=f"Look: replicate -i {door.instance.named} schema status; or end it: replicate -i {door.instance.named} "
            "schema unfence",
            writer=who,
        )

    def _rows(self, part: RegionPart, writers: Writers, partition: int, door: Door) -> NotWriterError:
        writer = name_of(door, writers.of(partition))
        partition_name = door.instance.partitions_now().name(partition)
        return NotWriterError(
            f"partition {partition_name} is written by {writer}, not by {door.instance.name}",
            where=part.where,
            do=f"Write it there; or have it given: replicate -i {writer} partition give {partition_name} "
            f"{door.instance.name}",
            writer=writer,
            partition=partition_name,
        )

    @staticmethod
    def _gone(part: RegionPart, writers: Writers, door: Door) -> NotWriterError:
        heir = name_of(door, writers.heir(door.instance.content.uuid))
        return gone_for_good(door.instance, part.where, heir or "another supplier")

    @staticmethod
    def _moved(part: RegionPart, writers: Writers, partition: int, door: Door) -> NotWriterError:
        name = door.instance.partitions_now().name(partition)
        others = sorted(name_of(door, one) for one in writers.others(partition))
        leave = "; ".join(f"replicate -i {one} partition leave {name}" for one in others)
        return NotWriterError(
            f"a table is moved into, or out of, partition {name}, which {', '.join(others)} writes, too",
            where=part.where,
            do=f"Have it left first, there: {leave}; then share it again",
            partition=name,
        )

    @staticmethod
    def _counted_out(part: RegionPart, table: str, counter: int, door: Door) -> NotSupportedError:
        return NotSupportedError(
            f"table {table} has got key {counter}, which is another supplier's to give",
            where=part.where,
            do="Let SQLite choose the keys of that table. If it has chosen this one, it has used up those of "
            f"{door.instance.name}: its Update Process gives it more; start it: replicate -i {door.instance.named} "
            "update start",
            table=table,
        )

    def _schema(self, part: RegionPart, writers: Writers, door: Door) -> NotWriterError:
        shared = (one for number in writers.sharing for one in writers.others(number))
        all_of_them = {*writers.by.values(), *shared} - {self._own}
        others = sorted(name_of(door, one) for one in all_of_them)
        told, verb = ", ".join(others) or "nobody", "write" if len(others) > 1 else "writes"
        return NotWriterError(
            f"the schema is changed where everything is written, and {told} {verb} here, too",
            where=part.where,
            do=f"Have them stand aside for the change: replicate -i {door.instance.named} schema run FILE; or schema "
            "fence, and schema unfence after it (`replicate help suppliers`)",
            writer=told,
        )


def suppliers_known(door: Door, writers: Writers) -> frozenset[bytes]:
    """As `Writers.known`, by the records that are here."""
    return writers.known(one.instance for one in door.catalogue_now().histories)


def name_of(door: Door, instance: bytes) -> str:
    """What an instance is called, by the records that open its incarnations; its UUID where there is none."""
    found = [one.name for one in door.catalogue_now().histories if one.instance == instance]
    return found[-1] if found else instance.hex()


def _ops(captured: CapturedChanges) -> frozenset[int]:
    """The kinds of its changes; of a large transaction, which is not read for that, all. Asked for what is refused
    otherwise."""
    if captured.spool is not None:
        return frozenset(map(int, Op))
    stream = unpacker()
    stream.feed(captured.payload)
    return frozenset(list(stream)[0::4])
