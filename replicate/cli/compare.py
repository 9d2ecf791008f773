"""`replicate digest` and `replicate compare`: equality at one sequence number."""

from __future__ import annotations

import shlex
import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from replicate.cli.common import (
    DOOR,
    LOOKS,
    VerbCommand,
    columns,
    confirm,
    emit,
    has_instance,
    open_instance,
    plain,
    read_printed,
    waiting_option,
)
from replicate.cli.completion_words import instances

if TYPE_CHECKING:
    from replicate.compare.compare import InstanceComparison, InstanceDigest
    from replicate.compare.repair import Repair
    from replicate.instance.instance import Instance
    from replicate.region.sqlite.digest import Comparison

at_option = click.option(
    "--at",
    type=click.IntRange(0),
    metavar="N",
    help="At transaction N, as soon as it is there; at the last one if not given.",
)
timeout_option = waiting_option("How long to wait until that transaction is there.", 30.0)
VALUE_CHARACTERS_MAX = 60


@click.command(cls=VerbCommand)
@at_option
@timeout_option
def digest(at: int | None, timeout_s: float) -> None:
    """Print a digest of every table at one sequence number."""
    from replicate.cli.progress import comparing
    from replicate.compare.compare import digest as digest_instance

    with comparing() as told:
        found = digest_instance(open_instance(DOOR), at=at, timeout_s=timeout_s, told=told)
    rows: list[tuple[object, ...]] = []
    for region, digests in found.regions:
        rows += [
            (f"{region}.{table.table}", f"{table.rows} rows", table.digest)
            if table.digest
            else (f"{region}.{table.table}", "left out", "its partition is not here")
            for table in digests.tables
        ]
        rows += [(f"{region} schema", "", digests.schema), (f"{region} in all", "", digests.digest)]
    waiting = [f"{region} is not here, and waits for its seed" for region in found.waiting]
    emit(found, [f"{found.instance} at seqno {found.seqno}", *columns(rows), *waiting])


@click.command(cls=VerbCommand)
@click.option(
    "--with",
    "other",
    metavar="INSTANCE",
    shell_complete=instances,
    help="The other instance, on this host: directory or name.",
)
@click.option(
    "--with-digest",
    "files",
    multiple=True,
    metavar="FILE",
    help="What `--json digest` printed on another host; - for standard input. Given twice: one with the other.",
)
@click.option(
    "--rows",
    "limit",
    metavar="N",
    type=click.IntRange(1),
    default=10,
    show_default=True,
    help="Differing rows to show.",
)
@at_option
@timeout_option
@click.option("--repair", "is_repair", is_flag=True, help="Make the secondary's rows that differ like the other's.")
@click.option("--dry-run", is_flag=True, help="With --repair: say what would be changed.")
@click.option("--yes", is_flag=True, help="With --repair: do not ask.")
def compare(
    other: str | None,
    files: tuple[str, ...],
    limit: int,
    at: int | None,
    timeout_s: float,
    is_repair: bool,
    dry_run: bool,
    yes: bool,
) -> int:
    """Compare with another instance at one sequence number; exit code 1 if they differ.

    With an instance of another host by its digest, at the number that stands in it. While the primary is being written
    to, choose a number N that comes soon, run `digest --at N` on both hosts before it has come, and compare the two.

    What was found, and when, is noted in the instance named with -i, and with --with in the other one too: `status`
    shows its age.

    With --repair the rows of the secondary that differ are made as they are on the other side, while its Update Process
    stands still, and both are compared again. What was here is in log/repair.jsonl, and in no journal: a third site,
    and a copy of before, do not have the change. Tables whose definitions differ are left alone.
    """
    from replicate.errors import UsageError

    if (is_repair and (other is None or at is not None)) or ((dry_run or yes) and not is_repair):
        raise UsageError(
            "--repair needs --with, takes no --at, and is what --dry-run and --yes are for",
            do="replicate -i SECONDARY compare --with PRIMARY --repair",
        )
    if (other is None) == (not files) or len(files) > 2:
        raise UsageError(
            "no instance is named to compare with",
            do="Give either --with INSTANCE, or --with-digest FILE once or twice",
        )
    if other is None:
        return _with_digest(files, at, timeout_s)
    from replicate.cli.progress import comparing
    from replicate.compare.compare import compare as compare_instances

    first, second = open_instance(DOOR), _other(other)
    if is_repair:
        repaired = _repaired(first, second, timeout_s, dry_run=dry_run, yes=yes)
        if dry_run:
            emit(repaired, _repair_lines(repaired))
            return int(bool(repaired.rows or repaired.left))
    with comparing() as told:
        found = compare_instances(first, second, at=at, timeout_s=timeout_s, limit=limit, told=told)
    if is_repair:
        facts = {"equal": found.equal, **plain(found), "repair": plain(repaired)}
        emit(facts, [*_repair_lines(repaired), *_lines(found)])
    else:
        emit({"equal": found.equal, **plain(found)}, _lines(found))
    _note(first, second.name, found.seqno, found.differs)
    _note(second, first.name, found.seqno, found.differs)
    return 0 if found.equal else 1


def _other(named: str) -> Instance:
    """The instance to compare with. NotFoundError, and as Instance.open."""
    from replicate.errors import NotFoundError
    from replicate.instance.instance import Instance
    from replicate.instance.location import resolve_instance

    path = resolve_instance(named)
    if path.exists():
        return Instance.open(path, needs=DOOR)
    raise NotFoundError(
        f"there is no instance {path.name} on this host by that name",
        where=str(path),
        do=f"Name its directory. Where it is on another host, there: replicate -i {shlex.quote(path.name)} --json "
        "digest >FILE, carry it here, and replicate -i INSTANCE compare --with-digest FILE",
    )


def _repaired(first: Instance, second: Instance, timeout_s: float, *, dry_run: bool, yes: bool) -> Repair:
    from replicate.cli.progress import comparing
    from replicate.compare.repair import repair, sides
    from replicate.system.asking_user import who_asks

    mended, like = sides(first, second)
    if not dry_run:
        confirm(f"the rows of {mended.name} that differ will be made as they are in {like.name}", yes=yes)
    with comparing() as told:
        return repair(first, second, by=who_asks(), dry_run=dry_run, timeout_s=timeout_s, told=told)


def _repair_lines(found: Repair) -> Iterator[str]:
    would, rows = "" if found.is_done else " would be", f"{found.rows} row{'s' * (found.rows != 1)}"
    at = f"as in {found.like} at seqno {found.seqno}"
    if found.rows or found.is_done:
        yield f"{found.mended}: {rows}{would} repaired {at}" + (f"; {found.file} has both images" * found.is_done)
    else:
        yield f"{found.mended}: nothing to repair, {at}"
    for table in found.tables:
        yield f"  {table.table}: {table.changed} changed, {table.added} added, {table.removed} removed"
    for name, why in found.left.items():
        yield f"  {name} is left alone: {why}"


def _with_digest(files: tuple[str, ...], at: int | None, timeout_s: float) -> int:
    from replicate.cli.progress import comparing
    from replicate.compare.compare import digest as digest_instance
    from replicate.compare.digest import compare_digests
    from replicate.errors import UsageError

    told = [_read_digest(file) for file in files]
    if at is not None and at != told[-1].seqno:
        raise UsageError(f"the digest is of transaction {told[-1].seqno}, not {at}", where=files[-1], do="Omit --at")
    opened = open_instance(DOOR if len(told) == 1 else LOOKS) if len(told) == 1 or has_instance() else None
    if len(told) == 1:
        assert opened is not None
        with comparing() as progress:
            told.insert(0, digest_instance(opened, at=told[0].seqno, timeout_s=timeout_s, told=progress))
    found = compare_digests(*told)
    verdict = f"equal, {found.tables} tables" if found.equal else "DIFFERENT"
    lines = [f"{found.first} and {found.second} at seqno {found.seqno}: {verdict}"]
    lines += [f"  {d.region} {d.what}: {d.first or 'missing'} | {d.second or 'missing'}" for d in found.differences]
    lines += [f"  {name}: left out, its rows are not all in both" for name in found.left_out]
    emit({"equal": found.equal, **plain(found)}, lines)
    others = {one.instance for one in told}
    if opened is not None and opened.name in others and str(uuid.UUID(bytes=opened.content.network)) == told[0].network:
        (other,) = others - {opened.name}
        _note(opened, other, found.seqno, found.differs)
    return 0 if found.equal else 1


def _note(instance: Instance, other: str, seqno: int, differs: tuple[str, ...]) -> None:
    """For `status`. What was found stands on standard output already, whatever comes of this."""
    from replicate.compare.last_compare import note_compared

    note_compared(instance, other, seqno, differs)


def _read_digest(file: str) -> InstanceDigest:
    from replicate.compare.digest import parse_digest

    return parse_digest(read_printed(file, "digest"), where=file)


def _lines(found: InstanceComparison) -> Iterator[str]:
    yield f"{found.first} and {found.second} at seqno {found.seqno}: {'equal' if found.equal else 'DIFFERENT'}"
    for region in found.regions:
        if region.comparison is None:
            waits = f": it waits for its seed (replicate -i {region.missing_in} status)" if region.waits else ""
            yield f"  region {region.region} is missing in {region.missing_in}{waits}"
        else:
            yield from _region_lines(region.region, region.comparison, found)


def _region_lines(region: str, comparison: Comparison, found: InstanceComparison) -> Iterator[str]:
    for schema in comparison.schema:
        left_out = " (left out, its element is not in both)" if schema.left_out else ""
        texts = f"{_or_missing(schema.first)} | {_or_missing(schema.second)}"
        yield f"  {schema.kind} {region}.{schema.name}: {texts}{left_out}"
    for table in comparison.tables:
        reason = f" ({table.reason})" if table.reason else ""
        rows = "" if table.status.name == "LEFT_OUT" else f", {table.rows_first} rows"
        yield f"  {region}.{table.table}: {table.status.value}{reason}{rows}"
        for row in table.differences:
            yield f"    row {', '.join(map(_value, row.key))}: {row.status.value}"
            for column in row.columns:
                first, second = _value(column.first), _value(column.second)
                yield f"      {column.column}: {found.first} {first} | {found.second} {second}"


def _or_missing(text: str | None) -> str:
    return "missing" if text is None else " ".join(text.split())


def _value(value: Any) -> str:
    """A value with its type to be seen: 1, 1.0, '1' and x'31' differ."""
    text = f"x'{value.hex()}'" if isinstance(value, bytes) else repr(value)
    return text if len(text) <= VALUE_CHARACTERS_MAX else f"{text[:VALUE_CHARACTERS_MAX]}... ({len(text)} characters)"
