"""Reading the change stream of an open transaction again: what was captured so far, change by change.

Guarantees: the changes come in their order, whatever the pieces are in which the bytes are given; memory holds one
change at a time.
Leaves to others: what is done with them, and the stream of a frame or a journal (journal/, which trusts nobody).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgpack

from replicate.limits import MIB
from replicate.model.transaction import Op, TableDefinition

ROW_OPS: Final = (Op.INSERT, Op.UPDATE, Op.DELETE)
_VALUE_BYTES_MAX: Final = 1024 * MIB

Image = tuple[Any, ...] | None


def changes_in(pieces: Iterable[bytes]) -> Iterator[tuple[int, int, Any, Any]]:
    """(op, table id, argument, values) of every change in `pieces`, bytes of ours that were captured just now."""
    unpacker = msgpack.Unpacker(
        max_buffer_size=_VALUE_BYTES_MAX, max_str_len=_VALUE_BYTES_MAX, max_bin_len=_VALUE_BYTES_MAX
    )
    begun: list[Any] = []
    for piece in pieces:
        unpacker.feed(piece)
        for element in unpacker:
            begun.append(element)
            if len(begun) == 4:
                op, number, argument, values = begun
                begun.clear()
                yield op, number, argument, values


def images_of(definition: TableDefinition, op: int, argument: Any, values: list[Any]) -> tuple[Image, Image]:
    """The row before and after one change of ROW_OPS; None where there is none."""
    if op == Op.INSERT:
        return None, tuple(values)
    if op == Op.DELETE:
        return tuple(values), None
    length = definition.image_length
    mask = argument if isinstance(argument, int) else int.from_bytes(argument, "little")
    before = values[-length:]
    after, changed = list(before), iter(values)
    for ordinal in range(length):
        if mask >> ordinal & 1:
            after[ordinal] = next(changed)
    return tuple(before), tuple(after)


def rows_named(
    pieces: Iterable[bytes], known: Iterable[TableDefinition], names: Iterable[str]
) -> Iterator[tuple[str, int]]:
    """(table, rowid) of every row of the rowid tables `names` that the stream tells of; a row may come several times.

    `known`: the definitions in force before the stream; it has the later ones itself.
    """
    wanted = frozenset(names)
    definitions = {one.table_id: one for one in known if one.table in wanted}
    for op, number, argument, values in changes_in(pieces):
        if op == Op.DEFINE and values[3] in wanted:
            definitions[number] = TableDefinition.unpack(values)
        definition = definitions.get(number) if op in ROW_OPS else None
        if definition is not None and not definition.without_rowid:
            for image in images_of(definition, op, argument, values):
                if image is not None:
                    yield definition.table, image[definition.key[0]]
