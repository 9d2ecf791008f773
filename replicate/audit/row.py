"""The history of one row: every change of it, the newest first, through changes of its key, back to its birth.

Guarantees: where an UPDATE has given the row its key, the changes before it are looked for under the key before; the
INSERT that made the row is the last one that is told, and nothing older is read.
Leaves to others: where the changes come from, and how they are shown.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from replicate.audit.changes import ChangeRecord, head_of, record_of
from replicate.audit.read import Match, chosen_backwards
from replicate.audit.selection import KeyValue, exactly, is_key, keys_of
from replicate.model.transaction import Op


def row_history(found: Iterable[Match], key: tuple[KeyValue, ...]) -> Iterator[ChangeRecord]:
    """Of transactions, the newest first, with the changes of rows of one table: those of the row that has, or had last,
    that key. JournalDamagedError and its kin."""
    for match in found:
        for change in chosen_backwards(match):
            op, ident, argument, values = change
            keys = keys_of(match.chooser.definitions[ident], op, argument, values)
            if not any(is_key(key, one) for one in keys):
                continue
            yield record_of(head_of(match), 0, change, match.chooser)
            if op == Op.INSERT:
                return
            # Under the key that it had before. Where that is another one, and the key asked for the one before: the
            # row went away from it, and had it until then.
            key = exactly(keys[0])
