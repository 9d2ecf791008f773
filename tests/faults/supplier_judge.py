"""The judgement of three suppliers at rest: all have the same, nothing that was acknowledged is gone, and of two values
that were written at once the one that is not there was kept aside.

Guarantees: tables are told by what the journals hold alone (harness/merge_oracle.py), journals by what writers were
told. What was found is printed. Where journals no longer reach back to their beginning, the tables alone are judged.
Leaves to others: that all is at rest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from msgspec.structs import replace

from replicate.door.recovery.opening import make_chain
from replicate.door.snapshot import door_of
from replicate.errors import JournalMissingError
from replicate.instance.instance import Instance
from replicate.journal.chain import Chain
from replicate.journal.merged_large import as_its_writer_wrote, told_and_written
from replicate.journal.reader import ChainReader, LargeTransaction
from replicate.journal.record import FrameBatch, as_written, decode, decode_changes
from replicate.journal.walk import walk
from replicate.limits import PARTITION_STREAM
from replicate.model.merged_row import same_value
from replicate.model.seen import merged_told
from replicate.model.transaction import Resolved, RowChange, Seen, TableDefinition, Transaction
from replicate.model.vector import Origin
from replicate.pool import control as word
from replicate.region.sqlite.row_stamps import read_merged
from tests.faults.supplier_writer import COUNTED, ORDINALS, Acknowledged
from tests.harness.command_line import in_environment
from tests.harness.merge_oracle import Change, Event, Value, folded, to_keep
from tests.harness.supplier_street import NAMES, SupplierStreet, reading

LOST: Final = "suppliers: acknowledged and lost"
DIVERGED: Final = "suppliers: diverged"
UNRECORDED: Final = "suppliers: conflicts not recorded"
STOPPED: Final = "suppliers: stopped by name"
NOT_LEVEL: Final = "suppliers: not level"
JUDGED_ZERO: Final = (LOST, DIVERGED, UNRECORDED)
TOLD: Final = 5
"""So many of what was found are printed of each kind."""


def judge(street: SupplierStreet, told: Mapping[tuple[str, int], Acknowledged], figures: Counter[str]) -> None:
    """`told`: by site and writer. Adds to `figures`."""
    tables = {name: street.rows(name) for name in NAMES}
    for name in NAMES[1:]:
        for table, rows in tables["a"].items():
            here = tables[name][table]
            if here != rows:
                differing = [row for row in here if row not in rows] + [row for row in rows if row not in here]
                _note(figures, DIVERGED, [f"{name} and a differ in {table}: {row}" for row in differing] or ["order"])
    for name, of_site in tables.items():
        for (site, writer), acknowledged in told.items():
            there = {number for of, number, *_ in of_site[f"t{site}"] if of == writer}
            lacking = [number for number in range(1, acknowledged.last + 1) if number not in there]
            _note(figures, LOST, [f"{name} lacks number {one} of writer {writer} of {site}" for one in lacking])
        _judge_counted(name, of_site, figures)
    with in_environment(street.environment):
        found, forked, removed = read_events(street)
    _note(figures, DIVERGED, forked)
    if found is None:
        figures["suppliers: judged by the tables alone"] += 1
        return
    figures["suppliers: transactions judged"] += len(found)
    _judge_shared(street, found, tables, told, figures)
    kept = set().union(*(kept_at(street.paths_of(name)) for name in NAMES))
    _note(figures, UNRECORDED, [f"nobody has kept {one}, of a row that gave way" for one in removed if one not in kept])


def _judge_counted(name: str, tables: Mapping[str, Sequence[Any]], figures: Counter[str]) -> None:
    """Each counter of a site is what all transactions that are there have added to it."""
    come_to: Counter[str] = Counter()
    for site in NAMES:
        for _, _, _, counter, added in tables[f"t{site}"]:
            come_to[counter] += added
    text = "{}: counter {} is {}, and its transactions come to {}"
    wrong = [one for one in tables[COUNTED] if one[1] != come_to[one[0]]]
    _note(figures, DIVERGED, [text.format(name, counter, n, come_to[counter]) for counter, n in wrong])


def _judge_shared(
    street: SupplierStreet,
    found: Sequence[Event],
    tables: Mapping[str, Mapping[str, Sequence[Any]]],
    told: Mapping[tuple[str, int], Acknowledged],
    figures: Counter[str],
) -> None:
    journalled = {(change.row[0], value) for event in found for change in event.changes for value in change.image or ()}
    for (site, writer), acknowledged in told.items():
        gone = [one for one in acknowledged.values if one not in journalled]
        _note(figures, LOST, [f"no journal has {value} in {table}, of {writer} of {site}" for table, value in gone])
    wanted = folded(found)
    for name in NAMES:
        for table in sorted(ORDINALS.keys() & tables[name].keys()):
            shown = {(table, row[0]): tuple(row) for row in tables[name][table]}
            expected = {row: image for row, image in wanted.items() if row[0] == table}
            wrong = [row for row in {*shown, *expected} if shown.get(row) != expected.get(row)]
            text = "{}: {} is {}, and its transactions come to {}"
            _note(figures, DIVERGED, [text.format(name, row, shown.get(row), expected.get(row)) for row in wrong])
    needed = [one for one in to_keep(found) if one[1] in ORDINALS.get(one[0][0], ()) and one[2] is not None]
    figures["suppliers: values lost in merges"] += len(needed)
    for name in NAMES:
        kept = kept_at(street.paths_of(name))
        figures["suppliers: conflicts kept"] += len(kept)
        missing = [one for one in needed if one not in kept]
        _note(figures, UNRECORDED, [f"{name} has not kept {value} of {row}" for row, _, value in missing])


def kept_at(paths: Sequence[Path]) -> set[tuple[Any, int, Any]]:
    """Of each merge at a site, whose databases these are, the values that were lost: row, ordinal, value."""
    found = set()
    for path in paths:
        with reading(path) as connection:
            for one in read_merged(connection):
                merged, lost = one.merged, one.merged.lost
                key = merged.key[0]
                ordinals = range(len(lost.values)) if lost.what in ("unique", "delete") else lost.ordinals
                found |= {((merged.table, key), ordinal, lost.values[ordinal]) for ordinal in ordinals}
    return found


def _note(figures: Counter[str], name: str, found: Sequence[str]) -> None:
    figures[name] += len(found)
    for text in found[:TOLD]:
        print(f"{name}: {text}", flush=True)
    if len(found) > TOLD:
        print(f"{name}: and {len(found) - TOLD} more", flush=True)


# What the journals hold.


def read_events(street: SupplierStreet) -> tuple[list[Event] | None, list[str], list[Value]]:
    """All transactions that any of them holds, as they were written; None where some are held no longer. What two of
    them hold under one number that is not the same. Of rows that gave way the values that are written once: but for
    those that a site has removed which was restored since, as it may alone have kept them, with its files."""
    known: dict[tuple[int, int], Transaction] = {}
    forked: list[str] = []
    bases: dict[int, Mapping[int, int]] = {}
    incarnations: dict[bytes, Origin] = {}
    tables: dict[int, TableDefinition] = {}
    for name in NAMES:
        instance = Instance.open(street.by[name])
        with door_of(instance) as door:
            catalogue = door.catalogue_now()
            last = int(door.words[word.LAST_SEQNO])
        tables |= catalogue.definitions
        for history in catalogue.histories:
            base = {of: number for (of, partition), number in history.base.items() if partition == PARTITION_STREAM}
            bases[history.origin.key] = base
            newest = incarnations.setdefault(history.instance, history.origin)
            if history.incarnation > newest.incarnation:
                incarnations[history.instance] = history.origin
        for one in transactions(instance, last):
            before = known.setdefault((one.origin, one.origin_seqno), one)
            if before.chain != one.chain:
                forked.append(f"number {one.origin_seqno} of one origin is another transaction at {name}")
    living = {one.key for one in incarnations.values()}
    numbers: dict[int, list[int]] = {}
    for origin, number in known:
        numbers.setdefault(origin, []).append(number)
    if any(min(one) > 1 or len(one) != max(one) - min(one) + 1 for one in numbers.values()):
        return None, forked, []
    removed = [value for one in known.values() if one.origin in living for value in _removed(one, tables)]
    return list(_events(known, bases, tables)), forked, removed


def _removed(one: Transaction, tables: Mapping[int, TableDefinition]) -> Iterator[Value]:
    """What a transaction takes away that only removes rows for their unique values."""
    if any(isinstance(change, Resolved) for change in one.content):
        for change in one.content:
            if isinstance(change, RowChange) and change.before is not None:
                table = tables[change.table_id].table
                for ordinal in ORDINALS[table]:
                    if change.before[ordinal] is not None:
                        yield (table, change.before[0]), ordinal, change.before[ordinal]


def transactions(instance: Instance, last: int) -> Iterator[Transaction]:
    """What its journal holds, as it was written. Where it is pruned meanwhile, once more from its present beginning:
    what was given already may come again."""
    while True:
        chain = make_chain(instance)
        try:
            yield from _transactions(chain, chain.first_seqnos()[0], last)
        except JournalMissingError:
            continue
        return


def _transactions(chain: Chain, first: int, last: int) -> Iterator[Transaction]:
    with closing(ChainReader(chain, first)) as reader:
        while (batch := reader.read(1 << 20, last)) is not None:
            if isinstance(batch, LargeTransaction):
                yield _large(batch)
                continue
            assert isinstance(batch, FrameBatch)
            for offset, head in walk(batch.data):
                frame = batch.data[offset : offset + head.frame_bytes]
                yield decode(as_written(frame) or frame)


def _large(found: LargeTransaction) -> Transaction:
    """As its writer made it, with its changes."""
    written = as_its_writer_wrote(found) or found
    if isinstance(written, FrameBatch):
        return decode(written.data)
    changes = decode_changes([one for changes, _ in told_and_written(found) for one in changes])
    return replace(decode(written.commit_frame), content=changes)


def _events(
    known: Mapping[tuple[int, int], Transaction],
    bases: Mapping[int, Mapping[int, int]],
    tables: Mapping[int, TableDefinition],
) -> Iterator[Event]:
    """In the order of each origin, so that what one tells holds from there on."""
    seen: dict[int, Mapping[int, int]] = dict(bases)
    for (origin, number), one in sorted(known.items()):
        for change in one.content:
            if isinstance(change, Seen):
                seen[change.teller] = merged_told(seen.get(change.teller, {}), change.told)
        changes = [made for change in one.content if isinstance(change, RowChange) for made in _made(change, tables)]
        yield Event(one.csn, origin, number, seen.get(origin, {}), tuple(changes))


def _made(change: RowChange, tables: Mapping[int, TableDefinition]) -> Iterator[Change]:
    """A change of a key is two: a row goes, and one comes."""
    definition = tables[change.table_id]
    if definition.table not in ORDINALS:
        return
    before, after = change.before, change.after
    is_moved = before is not None and after is not None and not same_value(before[0], after[0])
    if before is not None and (after is None or is_moved):
        yield Change((definition.table, before[0]), None)
    if after is not None:
        written = range(len(after)) if before is None or is_moved else change.changed
        yield Change((definition.table, after[0]), tuple(after), frozenset(written))
