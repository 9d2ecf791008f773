"""`replicate digest` and `replicate compare`: equality at one sequence number."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from replicate.cli.common import DOOR, Verb, columns, emit, open_instance, plain

if TYPE_CHECKING:
    from replicate.compare.compare import InstanceComparison, InstanceDigest
    from replicate.database.digest import Comparison

at_option = click.option(
    "--at",
    type=click.IntRange(0),
    metavar="N",
    help="At transaction N, as soon as it is there; at the last one if not given.",
)
timeout_option = click.option(
    "--timeout", "timeout_s", type=click.FloatRange(0), default=30.0, show_default=True, metavar="SECONDS"
)
VALUE_CHARACTERS_MAX = 60


@click.command(cls=Verb)
@at_option
@timeout_option
def digest(at: int | None, timeout_s: float) -> None:
    """Print a digest of every table at one sequence number."""
    from replicate.compare.compare import digest as digest_instance

    found = digest_instance(open_instance(DOOR), at=at, timeout_s=timeout_s)
    rows: list[tuple[object, ...]] = []
    for region, digests in found.regions:
        rows += [(f"{region}.{table.table}", f"{table.rows} rows", table.digest) for table in digests.tables]
        rows += [(f"{region} schema", "", digests.schema), (f"{region} in all", "", digests.digest)]
    emit(found, [f"{found.instance} at seqno {found.seqno}", *columns(rows)])


@click.command(cls=Verb)
@click.option("--with", "other", metavar="INSTANCE", help="The other instance, on this host: directory or name.")
@click.option(
    "--with-digest",
    "files",
    multiple=True,
    metavar="FILE",
    help="What `--json digest` printed on another host; - for standard input. Given twice: one with the other.",
)
@click.option("--rows", "limit", type=click.IntRange(1), default=10, show_default=True, help="Differing rows to show.")
@at_option
@timeout_option
def compare(other: str | None, files: tuple[str, ...], limit: int, at: int | None, timeout_s: float) -> int:
    """Compare with another instance at one sequence number; exit code 1 if they differ.

    With an instance of another host by its digest, at the number that stands in it. While the primary is being written
    to, choose a number N that comes soon, run `digest --at N` on both hosts before it has come, and compare the two.
    """
    from replicate.errors import UsageError

    if (other is None) == (not files) or len(files) > 2:
        raise UsageError("compare with what?", do="Give either --with INSTANCE, or --with-digest FILE once or twice")
    if other is None:
        return _with_digest(files, at, timeout_s)
    from replicate.compare.compare import compare as compare_instances
    from replicate.instance.instance import Instance

    found = compare_instances(
        open_instance(DOOR), Instance.open(other, needs=DOOR), at=at, timeout_s=timeout_s, limit=limit
    )
    emit({"equal": found.equal, **plain(found)}, _lines(found))
    return 0 if found.equal else 1


def _with_digest(files: tuple[str, ...], at: int | None, timeout_s: float) -> int:
    from replicate.compare.compare import digest as digest_instance
    from replicate.compare.digest import compare_digests
    from replicate.errors import UsageError

    told = [_read_digest(file) for file in files]
    if at is not None and at != told[-1].seqno:
        raise UsageError(f"the digest is of transaction {told[-1].seqno}, not {at}", where=files[-1], do="Omit --at")
    if len(told) == 1:
        told.insert(0, digest_instance(open_instance(DOOR), at=told[0].seqno, timeout_s=timeout_s))
    found = compare_digests(*told)
    verdict = f"equal, {found.tables} tables" if found.equal else "DIFFERENT"
    lines = [f"{found.first} and {found.second} at seqno {found.seqno}: {verdict}"]
    lines += [f"  {d.region} {d.what}: {d.first or 'missing'} | {d.second or 'missing'}" for d in found.differences]
    emit({"equal": found.equal, **plain(found)}, lines)
    return 0 if found.equal else 1


def _read_digest(file: str) -> InstanceDigest:
    from replicate.compare.digest import parse_digest
    from replicate.errors import JournalIOError

    try:
        with click.open_file(file, encoding="utf-8", errors="replace") as stream:
            return parse_digest(stream.read(), where=file)
    except OSError as error:
        do = "Make it on the other host with: replicate -i OTHER --json digest >FILE"
        raise JournalIOError(f"can not be read: {error.strerror}", where=file, do=do) from error


def _lines(found: InstanceComparison) -> Iterator[str]:
    yield f"{found.first} and {found.second} at seqno {found.seqno}: {'equal' if found.equal else 'DIFFERENT'}"
    for region in found.regions:
        if region.comparison is None:
            yield f"  region {region.region} is missing in {region.missing_in}"
        else:
            yield from _region_lines(region.region, region.comparison, found)


def _region_lines(region: str, comparison: Comparison, found: InstanceComparison) -> Iterator[str]:
    for schema in comparison.schema:
        yield f"  {schema.kind} {region}.{schema.name}: {_or_missing(schema.first)} | {_or_missing(schema.second)}"
    for table in comparison.tables:
        reason = f" ({table.reason})" if table.reason else ""
        yield f"  {region}.{table.table}: {table.status.value}{reason}, {table.rows_first} rows"
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
