"""The worlds with partitions proved on planted bugs, as ../plants.py has it: each must be found.

Guarantees: as there. Leaves to others: how a bug is found.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import replicate.door.door
import replicate.door.secondary
import replicate.filters.rows
import replicate.filters.selection
import replicate.filters.wishes
import replicate.instance.file
import replicate.model.column_list
import update_process.routes
from replicate.journal import sections
from replicate.journal.record import DEFINE_MARK, pack_null, read_head
from replicate.limits import PARTITION_NONE
from replicate.model.subscription import Subscription
from replicate.model.transaction import TableDefinition
from replicate.transfer.seed import partition
from tests.simulation.replaced import Change

Selection = replicate.filters.selection.PartitionSelection
RowSelection = replicate.filters.rows.RowSelection


def _none_leaves() -> list[Change]:
    def wants(self: Any, number: int) -> bool:
        return kept(self, number) or self._wanted is None

    kept = Selection.wants
    return [(Selection, "wants", wants)]


def _where_it_was() -> list[Change]:
    """A table that is put into another partition goes on as before."""

    def init(self: Any, wanted: Any, definitions: Any) -> None:
        begin(self, wanted, definitions)
        self.planted = {one.table: one.partition for one in definitions.values()}

    def define(self: Any, table_id: int, values: Any) -> None:
        before = self.planted.get(TableDefinition.unpack(values).table, values[1])
        kept(self, table_id, [values[0], before, *values[2:]])

    begin, kept = Selection.__init__, Selection._define
    return [(Selection, "__init__", init), (Selection, "_define", define)]


def _mixed_goes_whole() -> list[Change]:
    return [(replicate.filters.selection, "trim", lambda frame, _wants: frame)]


def _mixed_goes_not_at_all() -> list[Change]:
    def trim(frame: bytes, wants: Callable[[int], bool]) -> bytes:
        told = kept(frame, wants)
        return told if told is frame else pack_null(read_head(frame), "", ())

    kept = replicate.filters.selection.trim
    return [(replicate.filters.selection, "trim", trim)]


def _first_section_only() -> list[Change]:
    """Of several wanted partitions the first one's rows come, where others are taken out."""

    def trimmed(payload: Any, wants: Callable[[int], bool]) -> Any:
        first = next((one for one in sections.partitions_of(payload) if one and wants(one)), -1)
        return kept(payload, lambda number: number in (0, first))

    kept = sections.trimmed
    return [(replicate.journal.record, "trimmed", trimmed)]


def _large_goes_whole() -> list[Change]:
    def takes_whole(self: Any, commit_frame: bytes, partitions: Any) -> bool:
        return any(map(self.wants, partitions))

    return [(Selection, "takes_whole", takes_whole)]


def _large_is_not_learnt() -> list[Change]:
    return [(Selection, "learn_large", lambda *_: None)]


def _records_stay() -> list[Change]:
    """A partition's checkpoint record is not moved with its rows."""
    return [(update_process.routes.Routes, "partition_of", lambda *_: None)]


def _not_marked() -> list[Change]:
    """A secondary that gives up some of what it had does not say so in its journal."""
    return [(replicate.door.door.Door, "begin_partial", lambda _self: None)]


def _all_rows_leave() -> list[Change]:
    return [(replicate.filters.wishes.BoundWish, "keeps", lambda _self, _image: True)]


def _all_columns_leave() -> list[Change]:
    return [(replicate.model.column_list.BlankedColumns, "shown", lambda _self, image: image)]


def _told_rows_go_not_at_all() -> list[Change]:
    """Of a transaction with a row that does not come nothing does."""

    def told_again(self: Any, frame: bytes) -> bytes | None:
        told = kept(self, frame)
        return told if told is None or DEFINE_MARK in frame else pack_null(read_head(frame), "", ())

    kept = RowSelection._told_again
    return [(RowSelection, "_told_again", told_again)]


def _large_goes_past_the_condition() -> list[Change]:
    def takes_whole(self: Any, commit_frame: bytes, partitions: Any) -> bool:
        return self._partitions is None or self._partitions.takes_whole(commit_frame, partitions)

    return [(RowSelection, "takes_whole", takes_whole)]


def _defined_again_without_its_condition() -> list[Change]:
    """A table that takes another form, or moves, is not the one of the condition any more."""
    return [(RowSelection, "_define_again", lambda *_: None)]


def _applied_before_it_is_held() -> list[Change]:
    return [(replicate.instance.file.InstanceFile, "passes_over", lambda _self, number: number == PARTITION_NONE)]


def _not_brought_forward() -> list[Change]:
    """A copy is put in as it has come."""
    return [(partition, "roll_forward", lambda *_, **__: 0)]


def _one_too_few() -> list[Change]:
    """A copy is brought forward to the transaction before the one at which it is put in."""

    def roll_forward(instance: Any, chain: Any, entry: Any, region: Any, target: int, *others: Any, **only: Any) -> int:
        return kept(instance, chain, entry, region, target - 1, *others, **only)

    kept = partition.roll_forward
    return [(partition, "roll_forward", roll_forward)]


def _held_without_rows() -> list[Change]:
    return [(replicate.door.secondary.ApplySession, "take_rows", lambda *_: 0)]


def _copied_before_its_stream() -> list[Change]:
    """Nobody waits for the stream that brings it."""

    def begun(self: Any, numbers: Any, *others: Any) -> Any:
        return kept(self, numbers, *others).streaming_from(1, numbers)

    kept = Subscription.begun
    return [(Subscription, "begun", begun)]


PLANTS: Final[dict[str, Callable[[], list[Change]]]] = {
    "parts: rows in NONE leave": _none_leaves,
    "parts: a moved table goes as before": _where_it_was,
    "parts: a transaction over several partitions goes whole": _mixed_goes_whole,
    "parts: nothing goes of one that is not wanted whole": _mixed_goes_not_at_all,
    "parts: of what is left the first partition goes": _first_section_only,
    "parts: a large transaction goes whole for one of its partitions": _large_goes_whole,
    "parts: what a large transaction defines is not learnt": _large_is_not_learnt,
    "parts: a partition's record comes after its rows": _records_stay,
    "parts: a journal does not say that it has not all": _not_marked,
    "parts: rows beyond a condition leave": _all_rows_leave,
    "parts: columns that are not listed leave": _all_columns_leave,
    "parts: nothing goes of a transaction with a row beyond a condition": _told_rows_go_not_at_all,
    "parts: a large transaction goes past a condition": _large_goes_past_the_condition,
    "parts: a table in another form has no condition": _defined_again_without_its_condition,
    "parts: what is being loaded is applied before it is held": _applied_before_it_is_held,
    "parts: a copy is not brought forward": _not_brought_forward,
    "parts: a copy is brought forward by one transaction too few": _one_too_few,
    "parts: a partition is held without its rows": _held_without_rows,
    "parts: a copy is from before the stream that brings what comes": _copied_before_its_stream,
}


FOUND: Final[dict[str, tuple[str, int]]] = {
    "parts: rows in NONE leave": ("parts-safety", 13),
    "parts: a moved table goes as before": ("parts-safety", 7),
    "parts: a transaction over several partitions goes whole": ("parts-liveness", 2),
    "parts: nothing goes of one that is not wanted whole": ("parts-liveness", 3),
    "parts: of what is left the first partition goes": ("parts-safety", 16),
    "parts: a large transaction goes whole for one of its partitions": ("parts-liveness", 9),
    "parts: what a large transaction defines is not learnt": ("parts-safety", 48),
    "parts: a partition's record comes after its rows": ("parts-safety", 3),
    "parts: a journal does not say that it has not all": ("parts-liveness", 7),
    "parts: rows beyond a condition leave": ("parts-liveness", 3),
    "parts: columns that are not listed leave": ("parts-liveness", 11),
    "parts: nothing goes of a transaction with a row beyond a condition": ("parts-liveness", 11),
    "parts: a large transaction goes past a condition": ("parts-liveness", 11),
    "parts: a table in another form has no condition": ("parts-liveness", 3),
    "parts: what is being loaded is applied before it is held": ("parts-liveness", 2),
    "parts: a copy is not brought forward": ("parts-liveness", 14),
    "parts: a copy is brought forward by one transaction too few": ("parts-liveness", 14),
    "parts: a partition is held without its rows": ("parts-liveness", 2),
    "parts: a copy is from before the stream that brings what comes": ("parts-liveness", 14),
}
"""The first world that finds each."""
