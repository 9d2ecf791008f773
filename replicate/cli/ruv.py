"""`replicate ruv`: the replication update vector of a site, and of two sites beside each other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click
from msgspec import to_builtins

from replicate.cli.common import DOOR, VerbCommand, columns, emit, open_instance, read_printed, with_site

if TYPE_CHECKING:
    from replicate.compare.ruv import BothRuvs, Ruv
    from replicate.compare.seen_by import SeenBy


@click.command(cls=VerbCommand)
@with_site
@click.option(
    "--with-ruv", "file", metavar="FILE", help="What `--json ruv` printed on another host; - for standard input."
)
@click.option("--told", "by_all", is_flag=True, help="On a supplier: what each other one has told that it has.")
def ruv(other: str | None, file: str | None, by_all: bool) -> int:
    """Print the replication update vector: of each origin, the last transaction that this site has.

    With another site, both vectors, the least of both, and what each supplier would send the other if it connected now.
    Exit code 1 where one of them would be refused."""
    from replicate.compare.ruv import compare_ruvs, parse, ruv_of, told
    from replicate.errors import UsageError

    if (other is not None) + (file is not None) + by_all > 1:
        raise UsageError("--with, --with-ruv and --told together make no sense", do="Give one of them")
    opened = open_instance(DOOR)
    if by_all:
        from replicate.compare.seen_by import seen_by

        rows = seen_by(opened)
        emit([to_builtins(one) for one in rows], _by_all(rows))
        return 0
    here = ruv_of(opened)
    if other is None and file is None:
        emit(told(here), _own(here))
        return 0
    if other is not None:
        from replicate.instance.instance import Instance
        from replicate.instance.location import resolve_instance

        there = ruv_of(Instance.open(resolve_instance(other)))
    else:
        assert file is not None
        there = parse(read_printed(file, "ruv"), where=file)
    found = compare_ruvs(here, there)
    emit(found, _both(found))
    return 0 if found.is_well else 1


def _own(found: Ruv) -> list[str]:
    head = ("origin", "incarnation", "last", "held from")
    rows: list[tuple[object, ...]] = [(one.name, one.incarnation, one.last, one.held_from) for one in found.origins]
    return [f"{found.instance} ({found.role}) at transaction {found.seqno}", *columns([head, *rows])]


def _by_all(rows: Sequence[SeenBy]) -> list[str]:
    head = ("supplier", *rows[0].last, "lacks")
    lines = columns([head, *((one.name, *one.last.values(), one.lacks) for one in rows)])
    return lines if rows[1:] else [*lines, "no partition is shared: nobody tells what he has"]


def _both(found: BothRuvs) -> list[str]:
    head = ("origin", "incarnation", found.here, found.there, "both", f"{found.there} is")
    rows: list[tuple[object, ...]] = [
        (
            one.name,
            one.incarnation,
            _number(one.ours),
            _number(one.theirs),
            found.minimum.get(f"{one.name} {one.incarnation}", 0),
            one.relation,
        )
        for one in found.origins
    ]
    lines = columns([head, *rows])
    for one in found.directions:
        lines += [one.text, *([f"do: {one.do}"] if one.do else [])]
    return lines


def _number(number: int) -> str:
    return "-" if number < 0 else str(number)
