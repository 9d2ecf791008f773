"""`replicate scr`: the synchronization checkpoint records of a site, and of two sites beside each other."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from replicate.cli.common import DOOR, VerbCommand, columns, emit, open_instance, read_printed, with_site

if TYPE_CHECKING:
    from replicate.compare.scr import Array, BothArrays


@click.command(cls=VerbCommand)
@with_site
@click.option(
    "--with-scr", "file", metavar="FILE", help="What `--json scr` printed on another host; - for standard input."
)
def scr(other: str | None, file: str | None) -> int:
    """Print the synchronization checkpoint records: for each origin, how far this site is.

    With another site, both arrays beside each other, and what the secondary would be told if it connected now. Exit
    code 1 where it would be refused.
    """
    from replicate.compare.scr import array_of, compare_with, parse, told
    from replicate.errors import UsageError

    if other is not None and file is not None:
        raise UsageError("--with and --with-scr together make no sense", do="Give one of them")
    opened = open_instance(DOOR)
    if other is None and file is None:
        array = array_of(opened)
        emit(told(array), _array_lines(array))
        return 0
    if other is not None:
        from replicate.instance.instance import Instance
        from replicate.instance.location import resolve_instance

        found = compare_with(opened, Instance.open(resolve_instance(other)))
    else:
        assert file is not None
        found = compare_with(opened, parse(read_printed(file, "scr"), where=file))
    emit(found, _verdict_lines(found))
    return 0 if found.is_well else 1


def _array_lines(array: Array) -> list[str]:
    return [
        f"{array.instance} ({array.role}) at transaction {array.seqno}, its journal from {array.oldest_seqno} on",
        *columns(array.table),
    ]


def _verdict_lines(found: BothArrays) -> list[str]:
    head = (
        "audit name",
        "incarnation",
        "partition",
        f"{found.source} (source)",
        found.secondary,
        "difference",
        "state",
    )
    rows: list[tuple[object, ...]] = [
        (one.audit_name, one.log_file_timestamp, one.partition_id, one.source, one.secondary, one.difference, one.state)
        for one in found.rows
    ]
    return [*columns([head, *rows]), found.text, *([f"do: {found.do}"] if found.do else [])]
