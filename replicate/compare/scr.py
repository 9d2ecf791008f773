"""Synchronization checkpoint records: how far a site is, origin by origin, and what two such arrays say of each other.

One record for each incarnation that has written the journal (its *origin*): the origin's own number of its last
transaction here, and the number that this site has for it. Where partitions are in use, one more for each of them.

Guarantees: the verdict is that of `resync.decide`, which answers a secondary that connects: no second rule. What an
array of another host leaves open is said to be open, never hoped. An array of another network is refused.
Leaves to others: connections; what the operator is told beside the verdict (cli/scr.py).
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from typing import Any, Final

from msgspec import Struct, to_builtins
from msgspec.structs import replace

from replicate.compare.scr_partitions import LastInPartition, last_of_each, last_within, stored_in
from replicate.door.recovery.opening import make_chain
from replicate.door.restart_view import view_for
from replicate.door.snapshot import door_of
from replicate.errors import (
    DamagedError,
    FormatUnknownError,
    InternalError,
    ReplicateError,
    UsageError,
    WrongNetworkError,
)
from replicate.instance.instance import Instance
from replicate.limits import PARTITION_DEFAULT, PARTITION_NONE, PARTITION_STREAM
from replicate.model.partitions import ONLY_DEFAULT
from replicate.model.transaction import Catalogue, History
from replicate.model.vector import U64_MAX, Chains, Position, SynchronizationVector
from replicate.region.protocol import ends_of
from replicate.wire.message import Restart
from replicate.wire.resync import (
    Decision,
    Diverged,
    JournalMissing,
    RollbackFirst,
    SecondaryAhead,
    SourceView,
    StartAt,
    decide,
)

FORMAT: Final = 1
WITH_PARTITIONS: Final = 2
"""Format of an array with records of partitions."""
DEFAULT: Final = "DEFAULT"
STREAM: Final = "ALL"
"""What the records of whole origins are of, where partitions are in use."""
NOT_HELD: Final = "not held"
EVEN: Final = "even"
DIVERGED: Final = "diverged"
_DO: Final = "Print it again there: replicate -i OTHER --json scr >FILE"


class Record(Struct, frozen=True):
    """`audit_name`: the instance that wrote; `log_file_timestamp`: which incarnation of it. `global_commit_id`: its own
    number of its last transaction here; `local_commit_id`: ours. `chain`: hash over all of it up to there, in
    hexadecimal. `took_over_from`: key of the origin before it, `took_over_at`: how much of that one counts."""

    audit_name: str
    partition_id: str
    global_commit_id: int
    log_file_timestamp: int
    local_commit_id: int
    chain: str
    instance: str
    begins: int
    took_over_from: int
    took_over_at: int


class PartitionRecord(Struct, frozen=True):
    """The last transaction of a partition here, as `Record` has it of an origin. Of a secondary that was just seeded it
    is the seed's: everything up to there is in it. `is_held`: its rows are here."""

    audit_name: str
    partition_id: str
    global_commit_id: int
    log_file_timestamp: int
    local_commit_id: int
    number: int
    is_held: bool


class Array(Struct, frozen=True):
    """Of one site: `seqno` is its last transaction, `oldest_seqno` the first one that its journal holds. `partitions`:
    none where all tables are in DEFAULT."""

    instance: str
    uuid: str
    network: str
    role: str
    seqno: int
    oldest_seqno: int
    records: tuple[Record, ...]
    format: int = FORMAT
    partitions: tuple[PartitionRecord, ...] = ()

    @property
    def table(self) -> list[tuple[object, ...]]:
        """As people see it, its head first: the record of each origin, then of each partition."""
        head = ("audit name", "incarnation", "partition", "global commit", "local commit")
        records: tuple[Record | PartitionRecord, ...] = (*self.records, *self.partitions)
        return [
            head,
            *(
                (
                    one.audit_name,
                    one.log_file_timestamp,
                    _told_partition(one),
                    one.global_commit_id,
                    one.local_commit_id,
                )
                for one in records
            ),
        ]


class BothRecords(Struct, frozen=True):
    """One origin on both sides: the numbers of its last transaction, 0 where it is not known. `state`: even, behind by
    N, ahead by N, or diverged."""

    audit_name: str
    partition_id: str
    log_file_timestamp: int
    source: int
    secondary: int
    difference: int
    state: str


class BothArrays(Struct, frozen=True):
    """`is_well`: the secondary is level, or goes on from where it is. `is_proven`: by the hashes of both; False where
    only the other host can tell."""

    source: str
    secondary: str
    rows: tuple[BothRecords, ...]
    text: str
    do: str
    is_well: bool
    is_proven: bool = True


def _told_partition(one: Record | PartitionRecord) -> str:
    is_held = isinstance(one, Record) or one.is_held
    return one.partition_id if is_held else f"{one.partition_id} ({NOT_HELD})"


def array_of(instance: Instance) -> Array:
    """How far it is. Raises what opening its door raises (NotFoundError: not seeded)."""
    with door_of(instance) as door:
        viewed = view_for(door, Restart(U64_MAX))
        return _array(instance, viewed.source, _partitions(instance, viewed.source, viewed.here))


def _partitions(instance: Instance, view: SourceView, catalogue: Catalogue) -> tuple[PartitionRecord, ...]:
    """None where all tables are in DEFAULT. Of a partition that no transaction in the journal changes, the record says
    what the journal's beginning does; where some partitions are held only, what the regions say, if that is more. Of
    one that is not held they alone know: what the journal here has of it, nobody has applied."""
    content, position = instance.content, view.position
    used = {one.partition for one in catalogue.in_force().values()} - {PARTITION_NONE}
    known = instance.partitions_now()
    if used <= {PARTITION_DEFAULT} and content.held is None and known == ONLY_DEFAULT:
        return ()
    used |= set(known.elements.values())
    named = {one.origin.key: one for one in view.histories}
    found = last_of_each(make_chain(instance), position.last_seqno, {one for one in used if content.holds(one)})
    stored = stored_in(instance.regions) if content.held is not None else {}
    histories = sorted(view.histories, key=lambda one: one.seqno)
    newest = histories[-1]
    ends = ends_of(histories[-1:] if instance.is_supplier else histories, position.last_seqno)
    records = []
    for number in sorted(used | set(known.names)):
        last = found.get(number) or _before_the_journal(position, ends, number)
        if number in stored and (stored[number].seqno > last.seqno or not content.holds(number)):
            last = stored[number]
        by = named.get(last.origin, newest)
        records.append(
            PartitionRecord(
                by.name,
                known.name(number),
                last.origin_seqno,
                by.incarnation,
                last.seqno,
                number,
                content.holds(number),
            )
        )
    return tuple(records)


def _before_the_journal(position: Position, ends: Mapping[int, int], number: int) -> LastInPartition:
    """Of a partition that no transaction in the journal changes: what a seed or the journal's beginning says. `ends`:
    of origins that have written alone, in their order."""
    told = {key: last for (key, partition), last in position.vector.items() if partition == number}
    for key in reversed([one for one in ends if one in told]):
        return LastInPartition(0, ends[key] - (position.vector.last(key) - told[key]), key, told[key])
    return LastInPartition(0, 0, *next(iter(told.items()), (0, 0)))


def _array(instance: Instance, view: SourceView, partitions: tuple[PartitionRecord, ...] = ()) -> Array:
    position, histories = view.position, sorted(view.histories, key=lambda one: one.seqno)
    records = []
    for place, history in enumerate(histories):
        key = history.origin.key
        last, chain = position.chains.get(key, (position.vector.last(key), 0))
        ends = histories[place + 1].seqno - 1 if place + 1 < len(histories) else position.last_seqno
        records.append(
            Record(
                history.name,
                STREAM if partitions else DEFAULT,
                last,
                history.incarnation,
                ends,
                f"{chain:016x}" if key in position.chains else "",
                history.instance.hex(),
                history.seqno,
                history.previous_origin,
                history.base.last(history.previous_origin) if history.previous_origin else 0,
            )
        )
    content = instance.content
    network = str(uuid.UUID(bytes=content.network))
    return Array(
        content.name, content.uuid.hex(), network, content.role, position.last_seqno, view.oldest_seqno, tuple(records),
        WITH_PARTITIONS if partitions else FORMAT, partitions,
    )  # fmt: skip


def told(array: Array) -> dict[str, Any]:
    """The array as `--json scr` prints it, and `parse` reads it."""
    facts: dict[str, Any] = to_builtins(array)
    if not array.partitions:
        del facts["partitions"]
    return facts


# As a file of the other host has it.


def parse(text: str, *, where: str) -> Array:
    """An array that `--json scr` has printed. DamagedError, FormatUnknownError."""
    try:
        facts: dict[str, Any] = json.loads(text)
        number = facts["format"]
        if type(number) is not int or number not in (FORMAT, WITH_PARTITIONS):
            raise FormatUnknownError(
                f"the array has format {str(number)[:20]}, this release knows {FORMAT} and {WITH_PARTITIONS}",
                where=where,
                do=_DO,
            )
        partitions = [] if number == FORMAT else facts.pop("partitions")
        kept = tuple(PartitionRecord(**_checked(PartitionRecord, one)) for one in partitions)
        records = tuple(Record(**_checked(Record, one)) for one in facts.pop("records"))
        array = replace(Array(**_checked(Array, facts | {"records": records})), partitions=kept)
        _position(array)  # or no origins, or no numbers of theirs
        return array
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, InternalError) as error:
        raise DamagedError(f"this is no array of checkpoint records: {error}", where=where, do=_DO) from None


_IN_HEX: Final[dict[type, tuple[str, ...]]] = {Record: ("chain", "instance"), Array: ("uuid",)}


def _checked(kind: type, facts: Mapping[str, Any]) -> dict[str, Any]:
    known = {name: told for name, told in kind.__annotations__.items() if kind is not Array or name != "partitions"}
    if facts.keys() != known.keys():
        raise ValueError(f"not the fields of {kind.__name__}")
    for name, value in facts.items():
        well = {
            "int": type(value) is int and 0 <= value <= U64_MAX,
            "str": type(value) is str,
            "bool": type(value) is bool,
        }
        if not well.get(str(known[name]), True):
            raise ValueError(f"{name} is {value!r}"[:80])
    for name in _IN_HEX.get(kind, ()):
        bytes.fromhex(facts[name])
    return dict(facts)


def _key(record: Record) -> int:
    return _history(record).origin.key


def _history(record: Record) -> History:
    base = SynchronizationVector({(record.took_over_from, PARTITION_STREAM): record.took_over_at})
    return History(
        bytes.fromhex(record.instance), record.audit_name, record.log_file_timestamp, record.took_over_from,
        base if record.took_over_from else SynchronizationVector(), "", record.begins,
    )  # fmt: skip


def _position(array: Array) -> Position:
    numbers = {(_key(one), PARTITION_STREAM): one.global_commit_id for one in array.records if one.global_commit_id}
    chains: Chains = {_key(one): (one.global_commit_id, int(one.chain, 16)) for one in array.records if one.chain}
    return Position(array.seqno, SynchronizationVector(numbers), chains)


# Two of them.


def compare_with(here: Instance, other: Instance | Array) -> BothArrays:
    """What the two are to each other. Raises WrongNetworkError, UsageError (the same instance), and as `array_of`."""
    ours, theirs = array_of(here), other if isinstance(other, Array) else array_of(other)
    if ours.network != theirs.network:
        raise WrongNetworkError(
            f"{theirs.instance} is of network {theirs.network}, {ours.instance} of {ours.network}",
            do="Name a site of this network",
        )
    if ours.uuid == theirs.uuid:
        raise UsageError("an instance is always even with itself", do="Name the other site")
    is_source = _is_source(here, ours, theirs)
    source, secondary = (ours, theirs) if is_source else (theirs, ours)
    at = _position(secondary)
    restart = Restart(secondary.seqno + 1, at.vector, at.chains)
    live = here if is_source else other if isinstance(other, Instance) else None
    if live is None:
        made = _by_arrays(source, secondary, restart)
        return replace(made, rows=(*made.rows, *by_numbers(source, secondary))) if made.is_well else made
    with door_of(live) as door:
        view = view_for(door, restart).source
        made = verdict_of(_array(live, view, source.partitions), secondary, decide(restart, view))
        if not made.is_well or not source.partitions:
            return made
        lacks = last_within(make_chain(live), restart.next_seqno, view.position.last_seqno)
    return replace(made, rows=(*made.rows, *by_counts(source, secondary, lacks)))


def by_counts(source: Array, secondary: Array, lacks: Mapping[int, LastInPartition]) -> list[BothRecords]:
    """A row for each partition of the source, where the secondary is in step up to its end and `lacks` these of what
    comes after it. Pure."""
    held = {one.number: one for one in secondary.partitions}
    rows = []
    for ours in source.partitions:
        theirs, last = held.get(ours.number), lacks.get(ours.number)
        is_level = last is None and (theirs is None or theirs.is_held)
        has = ours.global_commit_id if is_level else _told(theirs, ours)
        rows.append(_of_partition(ours, theirs, has, last.count if last else 0))
    return rows


def by_numbers(source: Array, secondary: Array) -> list[BothRecords]:
    """The same by two arrays alone. How many transactions of a partition are between two numbers they do not tell, so
    the difference is one of numbers of the origin. Pure."""
    held = {one.number: one for one in secondary.partitions}
    rows = []
    for ours in source.partitions:
        theirs = held.get(ours.number)
        has = _told(theirs, ours)
        rows.append(_of_partition(ours, theirs, has, ours.global_commit_id - has, " at most"))
    return rows


def _told(theirs: PartitionRecord | None, ours: PartitionRecord) -> int:
    """What was seeded is said to be as far as the seed, which may be beyond the partition's last."""
    return min(theirs.global_commit_id if theirs else 0, ours.global_commit_id)


def _of_partition(
    ours: PartitionRecord, theirs: PartitionRecord | None, has: int, lacks: int, more: str = ""
) -> BothRecords:
    is_held = theirs is None or theirs.is_held
    state = (f"behind by {lacks}{more}" if lacks else EVEN) if is_held else NOT_HELD
    return BothRecords(
        ours.audit_name, ours.partition_id, ours.log_file_timestamp, ours.global_commit_id, has, lacks, state
    )


def _is_source(here: Instance, ours: Array, theirs: Array) -> bool:
    """The primary is; of two secondaries, the one that has the other as a peer; else the other one."""
    if "primary" in (ours.role, theirs.role):
        return ours.role == "primary"
    return any(peer.name == theirs.instance for peer in here.peers)


def _by_arrays(source: Array, secondary: Array, restart: Restart) -> BothArrays:
    """The same where the source is on another host: its array has only the end of its journal."""
    position = _position(source)
    histories = tuple(map(_history, source.records))
    is_behind = restart.next_seqno <= position.last_seqno
    before = None if is_behind else position
    decision = decide(restart, SourceView(position, source.oldest_seqno, histories, before))
    made = verdict_of(source, secondary, decision)
    if is_behind and isinstance(decision, JournalMissing) and restart.next_seqno >= source.oldest_seqno:
        text = f"{secondary.instance} is behind; whether its past is the source's, only {source.instance} can prove"
        do = f"There: replicate -i {source.instance} scr --with-scr FILE, with what `--json scr` prints here"
        return replace(made, text=text, do=do, is_well=True, is_proven=False)
    return made


def verdict_of(source: Array, secondary: Array, decision: Decision) -> BothArrays:
    """The rows and the words for a decision. Pure."""
    diverged = {decision.origin} if isinstance(decision, Diverged) else set()
    common: dict[int, int] = {}
    if isinstance(decision, RollbackFirst):
        common = {decision.origin: decision.common_origin_seqno, **dict(decision.others)}
    ours, theirs = ({_key(one): one for one in array.records} for array in (source, secondary))
    rows = []
    for key in dict.fromkeys((*ours, *theirs)):
        record = ours.get(key) or theirs[key]
        here, there = (side[key].global_commit_id if key in side else 0 for side in (ours, theirs))
        least = min(here, common.get(key, here))
        state = DIVERGED if key in diverged else _state(least if there > least else here, there)
        rows.append(
            BothRecords(
                record.audit_name,
                STREAM if source.partitions else DEFAULT,
                record.log_file_timestamp,
                here,
                there,
                abs(here - there),
                state,
            )
        )
    text, do = _words(source, secondary, decision)
    return BothArrays(source.instance, secondary.instance, tuple(rows), text, do, isinstance(decision, StartAt))


def _state(source: int, secondary: int) -> str:
    if source == secondary:
        return EVEN
    return f"behind by {source - secondary}" if source > secondary else f"ahead by {secondary - source}"


def _words(source: Array, secondary: Array, decision: Decision) -> tuple[str, str]:
    if isinstance(decision, StartAt):
        if decision.seqno > source.seqno:
            return f"both are even, at transaction {source.seqno}", ""
        count = source.seqno + 1 - decision.seqno
        return f"{secondary.instance} is behind by {count}, and goes on at transaction {decision.seqno}", ""
    error: ReplicateError = decision.error()
    kinds = {SecondaryAhead: "ahead, and refused", RollbackFirst: "ahead, and refused", Diverged: DIVERGED}
    kind = kinds.get(type(decision), "behind what the source holds, and must be seeded")
    do = error.do.replace("SECONDARY", secondary.instance).replace("PRIMARY", source.instance)
    return f"{secondary.instance} is {kind}: {error.what}", do
