"""The history of one row: every change of it, the newest first, through changes of its key, back to its birth.

Guarantees: where an UPDATE has given the row its key, the changes before it are looked for under the key before; the
INSERT that made the row is the last one that is told, and nothing older is read. Of several rows that are asked for it
is the one that was changed last.
Leaves to others: where the changes come from, and how they are shown.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

from msgspec.structs import replace

from replicate.audit.changes import ChangeRecord, head_of, record_of
from replicate.audit.read import Match, chosen_backwards, chosen_changes
from replicate.audit.selection import EVERYTHING, Chooser, KeyValue, Selection, exactly, keys_of
from replicate.model.transaction import DefinitionChange, Op, decode_change


class OfOneTable(Protocol):
    """Transactions with the changes of rows of one table."""

    @property
    def last_seqno(self) -> int: ...

    @property
    def selection(self) -> Selection: ...

    def backwards(self) -> Iterator[Match]: ...

    def of_row(self, key: tuple[KeyValue, ...], columns: tuple[str, ...], last_seqno: int) -> OfOneTable: ...


def row_history(found: OfOneTable, key: tuple[KeyValue, ...], columns: tuple[str, ...] = ()) -> Iterator[ChangeRecord]:
    """Of all that was found the changes of the row that has, or had last, that key, or those values in `columns`.
    JournalDamagedError and its kin."""
    asked = replace(found.selection, key=key, columns=columns)
    last, is_left = found.last_seqno, True
    while is_left:
        is_left, looked_for = False, asked
        for match in found.of_row(asked.key or (), asked.columns, last).backwards():
            definitions = match.chooser.definitions
            chooser = Chooser(asked, definitions)
            # Each change is asked about once: what is asked for is of the table and the operations that were found.
            for change in chosen_backwards(match._replace(chooser=Chooser(EVERYTHING, definitions))):
                if not chooser.takes(*change):
                    continue
                op, ident, argument, values = change
                yield record_of(head_of(match), 0, change, match.chooser)
                if op == Op.INSERT:
                    return
                # Under the key that it had before. Where that is another one, and the key asked for the one before:
                # the row went away from it, and had it until then.
                before = keys_of(definitions[ident], op, argument, values)[0]
                asked = replace(found.selection, key=exactly(before))
                chooser = Chooser(asked, definitions)
            if asked is not looked_for and not _covers(looked_for, asked):
                last, is_left = match.seqno - 1, True
                break


def begin_of_table(defined: Iterable[Match]) -> int:
    """The transaction that has made the one table whose definitions are given, or has given it this name; 0 where that
    is not among them. JournalDamagedError and its kin."""
    for match in defined:
        for change in chosen_changes(match):
            content = decode_change(*change)
            assert isinstance(content, DefinitionChange)
            return match.seqno if content.definition.version == 1 else 0
    return 0


def _covers(looked_for: Selection, asked: Selection) -> bool:
    """Whether what was looked for has all that is asked for."""
    assert looked_for.key is not None
    assert asked.key is not None
    return not looked_for.columns and all(one <= other for one, other in zip(asked.key, looked_for.key, strict=True))
