"""`replicate audit show|count|row|follow|undo|redo`: what a journal holds, for people, programs and spreadsheets."""

from __future__ import annotations

import os
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from replicate.cli.common import LOOKS, Noun, columns, csns_between, emit, emit_lines, open_instance, wants_json
from replicate.cli.completion_words import partitions as known_partitions
from replicate.cli.completion_words import recorded_elements, tables_of_journal
from replicate.cli.engine import sessions_for
from replicate.errors import DamagedError, UsageError

if TYPE_CHECKING:
    from replicate.audit.changes import ChangeRecord
    from replicate.audit.query import Matches, Query
    from replicate.audit.read import Match
    from replicate.audit.stretches import StretchMatches
    from update_process.replay.audited import SparkFound
    from update_process.replay.command import SparkSessions

    Found = Matches | StretchMatches

POLL_S = 0.2
FORMATS = ("text", "jsonl", "csv", "parquet")
Verb = Callable[..., Any]

_OPTIONS = (
    click.option("--from", "first_seqno", type=click.IntRange(1), metavar="SEQNO", help="First transaction."),
    click.option("--to", "last_seqno", type=click.IntRange(1), metavar="SEQNO", help="Last transaction."),
    click.option("--since", metavar="TIME", help="Committed then or later: ISO 8601, a date, or how long ago (-2h)."),
    click.option("--until", metavar="TIME", help="Committed then or earlier. A time without an offset is UTC."),
    click.option(
        "--origin",
        "origins",
        multiple=True,
        metavar="NAME[/INCARNATION]",
        help="Committed by that instance; several may be named, as with all that follows.",
    ),
    click.option("--comment", metavar="TEXT", help="Only transactions with a log comment that contains it."),
    click.option("--op", "ops", multiple=True, metavar="OP", help="insert, update, delete, schema, comment …"),
    click.option(
        "--table",
        "tables",
        multiple=True,
        metavar="TABLE",
        shell_complete=tables_of_journal,
        help="Only changes of that table, or REGION.TABLE.",
    ),
    click.option(
        "--partition",
        "partitions",
        multiple=True,
        metavar="NAME",
        shell_complete=known_partitions,
        help="Only changes of tables in that partition, by its name or number.",
    ),
    click.option(
        "--element",
        "elements",
        multiple=True,
        metavar="NAME",
        shell_complete=recorded_elements,
        help="Only changes of that audit element: DATA, COMMENT, DEFINITION, STORAGE, SECTION.",
    ),
    click.option(
        "--key",
        "keys",
        metavar="VALUE,…",
        help="Only of the row with that key, before or after the change, or with COLUMN=VALUE,…",
    ),
)
_JOURNALS = click.option(
    "--journal",
    "journals",
    multiple=True,
    metavar="PATH",
    help="Read a segment file, a directory of them, or an archive, instead of -i INSTANCE; several may be named.",
)
_ENGINE = click.option(
    "--engine",
    type=click.Choice(["local", "spark"]),
    help="Of one archive: who looks where it is [local; spark with a --master, or under spark-submit].",
)
_MASTER = click.option("--master", metavar="URL", help="Spark's master [all cores of this machine].")
_OUT = click.option(
    "--out", type=click.Path(path_type=Path), metavar="FILE", help="Write there, readable by you alone."
)

_WITH_TRIGGERS = click.option(
    "--with-triggers",
    is_flag=True,
    help="Let your triggers write besides; then leave out what they wrote the first time (--table).",
)


def selecting(verb: Verb) -> Verb:
    """The options that say which transactions, and which of their changes. The verb is given them as a Query."""
    from functools import wraps

    @wraps(verb)
    def asked(
        first_seqno: int | None,
        last_seqno: int | None,
        since: str | None,
        until: str | None,
        origins: tuple[str, ...],
        comment: str | None,
        ops: tuple[str, ...],
        tables: tuple[str, ...],
        partitions: tuple[str, ...],
        elements: tuple[str, ...],
        keys: str | None,
        **rest: Any,
    ) -> Any:
        from replicate.audit.query import Query

        query = Query(
            first_seqno,
            last_seqno,
            *csns_between(since, until),
            tables,
            origins=origins,
            ops=ops,
            key=None if keys is None else _words(keys),
            comment=comment,
            partitions=tuple(map(_partition, partitions)),
            elements=elements,
        )
        query.check()
        return verb(query=query, **rest)

    made: Verb = asked
    for option in reversed(_OPTIONS):
        made = option(made)
    return made


def _partition(word: str) -> int:
    """A partition's number: its own, or by the names that the instance has."""
    from replicate.model.partitions import ONLY_DEFAULT

    if word.isdigit():
        return int(word)
    known = ONLY_DEFAULT if word.upper() in ("DEFAULT", "NONE") else open_instance(LOOKS).content.partitions
    return known.number(word)


def _words(text: str) -> tuple[str, ...]:
    """Values with commas between them; one that holds a comma stands in quotation marks."""
    import csv

    return tuple(next(csv.reader([text], skipinitialspace=True), [""]))


def reading(verb: Verb) -> Verb:
    """The options that say where it is read, and by whom. The verb is given them as AskedJournals."""
    from functools import wraps

    @wraps(verb)
    def told(journals: tuple[str, ...], engine: str | None, master: str | None, **rest: Any) -> Any:
        return verb(journals=AskedJournals(journals, sessions_for(engine, master)), **rest)

    made: Verb = told
    for option in (_MASTER, _ENGINE, _JOURNALS):
        made = option(made)
    return made


class AskedJournals(NamedTuple):
    """What --journal names, and Spark's sessions where that is asked."""

    names: tuple[str, ...]
    spark: SparkSessions | None


@contextmanager
def _by_spark(journals: AskedJournals, query: Query, row: tuple[str, ...] | None = None) -> Iterator[SparkFound]:
    from update_process.replay.audited import SparkFound

    assert journals.spark is not None
    if query.elements:
        raise UsageError("Spark does not tell audit elements apart", do="Leave --engine out, or say --op schema")
    if len(journals.names) != 1:
        raise UsageError("Spark is asked about one archive", do="Name it with --journal; or leave --engine out")
    with tempfile.TemporaryDirectory(prefix="replicate-audit-") as stage, journals.spark() as spark:
        yield SparkFound(spark, journals.names[0], query, Path(stage), row)


@contextmanager
def _found(asked: AskedJournals, query: Query, row: tuple[str, ...] | None = None) -> Iterator[Found]:
    """What is asked for, wherever it is read. `row`: the key of the one row whose history is asked for."""
    journals = asked.names
    if asked.spark is not None:
        with _by_spark(asked, query, row) as found:
            yield found.matches
        return
    from replicate.audit.sources import find_in_directory, find_in_files, find_in_instance

    if not journals:
        yield _noted(find_in_instance(open_instance(LOOKS, copy_too=True), query))
        return
    paths = [Path(name) for name in journals]
    if all(path.is_file() for path in paths):
        yield _noted(find_in_files(paths, query))
        return
    from update_process.replay.backlog import is_archive, journal_directory

    if len(paths) == 1 and not is_archive(journals[0]):
        yield _noted(find_in_directory(journal_directory(paths[0]), query))
        return
    from update_process.replay.audited import find_in_journals

    with tempfile.TemporaryDirectory(prefix="replicate-audit-") as stage:
        yield find_in_journals(journals, query, Path(stage))


def _noted(found: Matches) -> Matches:
    """Say of a journal that it has not all: what it shows nobody takes for the whole."""
    from replicate.audit.sources import is_partial
    from replicate.journal.header import PARTIAL

    if is_partial(found.chain):
        click.echo(f"Note: the journal is of {PARTIAL}.", err=True)
    return found


def _quietly() -> None:
    """Decoding makes millions of tuples and no circle: the collector would take a third of the time."""
    import gc

    gc.set_threshold(200_000, 50, 100)


@click.group(cls=Noun)
def audit() -> None:
    """Look into what was committed: whose, when, which rows, from what to what; and take it back.

    Reads a live instance (-i), or with --journal segment files, directories of them, and archives. It takes no lock.
    """


@audit.command()
@selecting
@reading
@click.option("--last", "last_count", type=click.IntRange(1), metavar="N", help="Of all that, only the last N.")
@click.option("--newest-first", is_flag=True, help="The newest transaction first.")
@click.option(
    "--format", "kind", type=click.Choice(FORMATS), help="text, jsonl (as journal show --json), csv, parquet."
)
@click.option("--columns", metavar="NAME,…", help="Of CSV and Parquet: these, in this order.")
@_OUT
def show(
    query: Query,
    journals: AskedJournals,
    last_count: int | None,
    newest_first: bool,
    kind: str | None,
    columns: str | None,
    out: Path | None,
) -> None:
    """Show transactions and their changes, a line for each change."""
    from msgspec.structs import replace

    kind = kind or ("jsonl" if wants_json() else "text")
    if kind == "parquet" and out is None:
        raise UsageError("Parquet is a file", do="Name it with --out FILE")
    if columns is not None and kind not in ("csv", "parquet"):
        raise UsageError("--columns is for CSV and Parquet", do="Add --format csv")
    named = _columns(columns)
    if kind == "parquet":
        from replicate.audit.parquet import check_parquet

        check_parquet()  # before anything is read
    _quietly()
    with _found(journals, replace(query, last_count=last_count)) as found:
        matches = found.backwards() if newest_first else iter(found)
        if kind == "parquet":
            from replicate.audit.parquet import write_parquet

            assert out is not None
            count = write_parquet(out, named, _cells(matches, named, newest_first=newest_first))
            emit({"rows": count, "file": str(out)}, [f"{out}: {count} changes"])
        elif kind == "jsonl":
            _print(_json_lines(matches), out)
        elif kind == "csv":
            _print(_csv_lines(matches, named, newest_first=newest_first), out)
        else:
            lines = _text_lines(matches, newest_first=newest_first, is_file=out is not None)
            first = next(lines, None)
            _print(lines if first is None else chain([first], lines), out)
            if first is None:
                click.echo("Note: the journal holds nothing of that.", err=True)


def _columns(text: str | None) -> tuple[str, ...]:
    from replicate.audit.record_lines import COLUMNS

    named = COLUMNS if text is None else tuple(name.strip() for name in text.split(","))
    unknown = [name for name in named if name not in COLUMNS]
    if unknown:
        raise UsageError(f"there is no column {unknown[0]!r}", do=f"There is {', '.join(COLUMNS)}")
    return named


def _records(matches: Iterable[Match], *, newest_first: bool) -> Iterator[ChangeRecord]:
    from replicate.audit.changes import records_backwards, records_of

    for match in matches:
        yield from records_backwards(match) if newest_first else records_of(match)


def _cells(matches: Iterable[Match], columns: tuple[str, ...], *, newest_first: bool) -> Iterator[list[Any]]:
    from replicate.audit.record_lines import cells_of

    for record in _records(matches, newest_first=newest_first):
        cells = cells_of(record)
        yield [cells[name] for name in columns]


def _csv_lines(matches: Iterable[Match], columns: tuple[str, ...], *, newest_first: bool) -> Iterator[str]:
    from replicate.audit.record_lines import csv_line

    yield csv_line(columns)
    yield from map(csv_line, _cells(matches, columns, newest_first=newest_first))


def _json_lines(matches: Iterable[Match]) -> Iterator[str]:
    import json

    from replicate.audit.show import document, told

    for shown in told(matches, parts=True):
        yield json.dumps(document(shown))


def _text_lines(matches: Iterable[Match], *, newest_first: bool = False, is_file: bool = False) -> Iterator[str]:
    text = _text(is_file=is_file)
    seqno = 0
    for record in _records(matches, newest_first=newest_first):
        if record.seqno != seqno:
            seqno = record.seqno
            yield text.head(record)
        yield text.line(record)


def _text(*, is_file: bool = False) -> Any:
    from replicate.audit.record_lines import Text

    is_screen = sys.stdout.isatty() and not is_file
    width = shutil.get_terminal_size().columns if is_screen else 0
    return Text(width, colour=is_screen and "NO_COLOR" not in os.environ)


def _print(lines: Iterable[str], out: Path | None, *, at_once: bool = False) -> None:
    if out is None:
        emit_lines(lines, at_once=at_once)
        return
    from replicate.system.os_errors import io_error

    try:
        fd = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with open(fd, "w", encoding="utf-8", newline="") as file:
            if stat.S_ISREG(os.fstat(fd).st_mode):
                os.fchmod(fd, 0o600)  # one that was there may be read by others
            file.writelines(f"{line}\n" for line in lines)
    except OSError as error:
        raise io_error(error, "the file cannot be written", str(out)) from error


@audit.command()
@selecting
@reading
@click.option(
    "--by", default="table,op", metavar="WHAT,…", help="table, op, origin, partition; minute, hour or day [table,op]."
)
@click.option("--plot", "picture", type=click.Path(path_type=Path), metavar="FILE", help="Draw FILE.png or FILE.svg.")
def count(query: Query, journals: AskedJournals, by: str, picture: Path | None) -> None:
    """Count transactions and changes. --plot draws the changes over time by table (--by hour,table)."""
    from replicate.audit.count import Counts, in_order

    words = tuple(word.strip() for word in by.split(","))
    if picture is not None:
        from replicate.logs.picture import check_picture

        check_picture(picture)
        span = next((word for word in words if word in ("minute", "hour", "day")), "hour")
        words = (span, "table")
    counts = Counts(words)
    damage = None
    _quietly()
    if journals.spark is not None:
        with _by_spark(journals, query) as asked:
            rows = asked.counted(words)
    else:
        with _found(journals, query) as found:
            try:
                counts.add(found.frames())
            except DamagedError as error:  # what was counted is told first
                damage = error
        rows = list(counts.rows())
    if "partition" in words and not journals.names:
        rows = in_order(_named(rows, words.index("partition")))
    if picture is not None:
        from replicate.audit.picture import draw

        draw(rows, words[0], picture)
        emit({"picture": str(picture)}, [f"{picture}: {sum(int(str(row[-1])) for row in rows)} changes"])
    else:
        from replicate.audit.record_lines import printable

        names = (*words, "transactions", "changes")
        lines = columns(
            [names, *(tuple(printable(str(cell)) for cell in row) for row in rows)],
            numbers={at for at in range(len(names)) if rows and all(isinstance(row[at], int) for row in rows)},
        )
        emit([dict(zip(names, row, strict=True)) for row in rows], lines)
    if damage is not None:
        raise damage


def _named(rows: Iterable[tuple[object, ...]], at: int) -> Iterator[tuple[object, ...]]:
    """Partitions by the names that the instance has for them."""
    known = open_instance(LOOKS).content.partitions
    for row in rows:
        number = str(row[at])
        yield (*row[:at], known.name(int(number)) if number.isdigit() else number, *row[at + 1 :])


@audit.command()
@click.argument("table", shell_complete=tables_of_journal)
@click.argument("key", nargs=-1, required=True)
@reading
@click.option("--format", "kind", type=click.Choice(("text", "jsonl", "csv")), help="text, jsonl or csv.")
def row(table: str, key: tuple[str, ...], journals: AskedJournals, kind: str | None) -> int:
    """Show the history of one row, the newest change first, through changes of its KEY, back to its birth.

    KEY has a value for each column of the table's key, or says COLUMN=VALUE of any columns: then it is the row that
    had that last. Exit code 1 if the journal holds no change of such a row.
    """
    from replicate.audit.query import Query
    from replicate.audit.record_lines import COLUMNS, cells_of, csv_line
    from replicate.audit.row import row_history
    from replicate.audit.selection import image_names, row_named

    kind = kind or ("jsonl" if wants_json() else "text")
    query = Query(tables=(table,), ops=("insert", "update", "delete"))
    _quietly()
    with _found(journals, query, key) as found:
        (name,) = found.selection.tables
        definition = found.known().in_force()[name]
        values, columns = row_named(key, definition)
        history = row_history(found, values, columns)
        text = _text()
        last: ChangeRecord | None = None

        def lines() -> Iterator[str]:
            import json

            nonlocal last
            seqno = 0
            if kind == "csv":
                yield csv_line(COLUMNS)
            for record in history:
                last = record
                if kind == "csv":
                    yield csv_line(list(cells_of(record).values()))
                elif kind == "jsonl":
                    yield json.dumps(cells_of(record))
                else:
                    if record.seqno != seqno:
                        seqno = record.seqno
                        yield text.head(record)
                    yield text.line(record)

        emit_lines(lines())
    if last is None:
        names = image_names(definition)
        told = key if columns else [f"{names[at]}={word}" for at, word in zip(definition.key, key, strict=True)]
        click.echo(f"Note: the journal holds no change of {table} [{', '.join(told)}].", err=True)
        return 1
    if last.op != "insert":
        click.echo(f"Note: the row is older than {_oldest(table, journals, found.first_seqno)}.", err=True)
    return 0


def _oldest(table: str, journals: AskedJournals, first_seqno: int) -> str:
    """What a row without a birth is older than: perhaps the name of its table, which had another one before."""
    from replicate.audit.query import Query
    from replicate.audit.row import begin_of_table

    if journals.spark is None:  # whose session would have to begin again
        with _found(journals, Query(tables=(table,), ops=("define",))) as found:
            seqno = begin_of_table(found)
        if seqno > first_seqno:
            return f"transaction {seqno}, with which {table} begins here, under this name"
    return f"transaction {first_seqno}, the first that is here"


@audit.command()
@selecting
@click.option("--format", "kind", type=click.Choice(("text", "jsonl", "csv")), help="text, jsonl or csv.")
@click.option("--count", "limit", type=click.IntRange(1), metavar="N", help="End after N transactions.")
def follow(query: Query, kind: str | None, limit: int | None) -> None:
    """Show new transactions of a live instance as they come, until Ctrl-C. With --from those since then, too."""
    from replicate.audit.follow import Follower
    from replicate.audit.record_lines import COLUMNS, csv_line
    from replicate.cli.standard_output import is_reader_gone

    if query.last_seqno is not None:
        raise UsageError("--to has no meaning for what is yet to come", do="End it with Ctrl-C, or say --count N")
    kind = kind or ("jsonl" if wants_json() else "text")
    follower = Follower(open_instance(LOOKS), query)
    if kind == "csv" and not emit_lines([csv_line(COLUMNS)], at_once=True):
        return
    left = limit
    try:
        while not is_reader_gone(of_output=True):
            for match in follower.new():
                if kind == "jsonl":
                    lines = _json_lines([match])
                elif kind == "csv":
                    lines = map(csv_line, _cells([match], COLUMNS, newest_first=False))
                else:
                    lines = _text_lines([match])
                if not emit_lines(lines, at_once=True):
                    return
                if left is not None:
                    left -= 1
                    if not left:
                        return
            time.sleep(POLL_S)
    finally:
        follower.close()


def _script(query: Query, journals: AskedJournals, out: Path | None, *, is_undo: bool, with_triggers: bool) -> None:
    from replicate.audit.sql import Script

    _quietly()
    with _found(journals, query) as found:
        known = found.known().in_force()
        in_force = {(one.region, one.table): one for one in known.values()}
        script = Script(in_force, is_undo=is_undo, with_triggers=with_triggers)

        def records() -> Iterator[ChangeRecord]:
            return _records(found.backwards() if is_undo else iter(found), newest_first=is_undo)

        _, count = script.check(records())
        if not count:
            raise UsageError("no row is changed by what is asked for", do="Look first: replicate audit show")
        _print(script.lines(records()), out)


@audit.command()
@selecting
@reading
@_OUT
@_WITH_TRIGGERS
def undo(query: Query, journals: AskedJournals, out: Path | None, with_triggers: bool) -> None:
    """Print SQL that takes changes back, the last one first; it stops where a row is not as they left it.

    Run it through replicate.connect() on the primary. Schema changes, and rows of tables that were changed since,
    are refused.
    """
    _script(query, journals, out, is_undo=True, with_triggers=with_triggers)


@audit.command()
@selecting
@reading
@_OUT
@_WITH_TRIGGERS
def redo(query: Query, journals: AskedJournals, out: Path | None, with_triggers: bool) -> None:
    """Print SQL that does changes again, the first one first; it stops where a row is not as it was before them."""
    _script(query, journals, out, is_undo=False, with_triggers=with_triggers)
