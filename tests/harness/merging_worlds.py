"""Random worlds of suppliers that write the same tables at once, with real journals and regions, and what their
transactions must come to.

Guarantees: a world is decided by its seed, its count and its shape alone; each supplier carries only over its links,
tells what it has seen and forgets what everybody has, as its Update Process does. At the end nobody lacks anything.
Leaves to others: daemons, the wire (supplier_street.py); sites in memory, a hundred times as quick (merging_sites.py).
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

from replicate.door.recovery.opening import make_chain
from replicate.door.secondary import ApplySession
from replicate.door.snapshot import door_of
from replicate.journal.merged_large import as_its_writer_wrote, told_and_written
from replicate.journal.reader import ChainReader, LargeTransaction
from replicate.journal.record import as_written, decode, decode_changes, read_head
from replicate.journal.walk import walk
from replicate.model.transaction import RowChange
from replicate.region.sqlite.mergeable import column_groups
from replicate.region.sqlite.open import open_region
from tests.harness.suppliers import Suppliers, run, shared
from tests.simulation.suppliers.climate import SHAPES, links_of

CASES = [(2, "line"), *((count, shape) for count in (3, 4, 5) for shape in SHAPES if (count, shape) != (3, "star"))]
"""How many, and how they are linked. Three in a star are three in a line."""
UNIQUE = (
    "CREATE TABLE named (id TEXT PRIMARY KEY, name TEXT UNIQUE, mail TEXT, n INTEGER DEFAULT 0) WITHOUT ROWID",
    "CREATE UNIQUE INDEX by_mail ON named (mail COLLATE NOCASE)",
)


BY_KEY = (UNIQUE[0].removesuffix(" WITHOUT ROWID"), UNIQUE[1])
"""As most people declare it: with a hidden rowid, which each site gives for itself."""
PARTIAL = (
    BY_KEY[0].replace(" UNIQUE", ""),
    *(
        "CREATE UNIQUE INDEX by_name ON named (lower(name)) WHERE n > 0",
        "CREATE UNIQUE INDEX by_mail ON named (mail || name)",
    ),
)
SCHEMAS, SUMS, WHOLE = (UNIQUE, BY_KEY, PARTIAL), ("ta.n",), ("ta",)


def is_whole(seed: int) -> bool:
    """Whether rows of ta are merged whole in that world."""
    return seed % 4 >= 2


def folded(
    made: Suppliers, table: str = "ta", *, sums: Sequence[str] = (), by_row: bool = False
) -> list[tuple[Any, ...]]:
    """What all transactions of the table come to, one after the other by time and origin, no matter who had seen what:
    columns that one constraint names are written together. `sums`: its columns to which they add; `by_row`:
    rows are written whole."""
    found: list[tuple[tuple[int, int], Sequence[Any]]] = []
    instance = made.by["a"]
    with door_of(instance) as door:
        tables = {table_id: one for table_id, one in door.catalogue_now().definitions.items() if one.table == table}
    reader = ChainReader(make_chain(instance), 1)
    while (batch := reader.read(1 << 20, made.last_seqno("a"))) is not None:
        if isinstance(batch, LargeTransaction):
            large, head = batch, read_head(batch.commit_frame)
            batch = as_its_writer_wrote(large) or large
        if isinstance(batch, LargeTransaction):
            content = decode_changes([one for written, _ in told_and_written(large) for one in written])
            found.append(((head.csn, head.origin), content))
            continue
        for offset, head in walk(batch.data):
            frame = batch.data[offset : offset + head.frame_bytes]
            content = decode(as_written(frame) or frame).content
            found.append(((head.csn, head.origin), content))
    reader.close()
    by_id = {}
    for one, definition in tables.items():
        with closing(open_region(instance.region(definition.region).path, readonly=True)) as connection:
            by_id[one] = column_groups(connection, definition, by_row=by_row, sums=sums)
    values: dict[Any, list[Any]] = {}
    there: set[Any] = set()
    for _, content in sorted(found, key=lambda one: one[0]):
        for change in content:
            if not isinstance(change, RowChange) or change.table_id not in tables:
                continue
            before, after, groups = change.before, change.after, by_id[change.table_id]
            moved = before is not None and after is not None and before[0] != after[0]
            if before is not None and (after is None or moved):
                there.discard(before[0])
                row = values.setdefault(before[0], list(before))
                row[:] = [0 if group < 0 else one for one, group in zip(row, groups, strict=True)]
            if after is not None:
                is_new = before is None or moved
                nothing = [0 if group < 0 else one for one, group in zip(after, groups, strict=True)]
                row = values.setdefault(after[0], nothing)
                written = set(groups) if is_new else {groups[ordinal] for ordinal in change.changed}
                for ordinal, group in enumerate(groups):
                    if group in written:
                        old = 0 if is_new or before is None else before[ordinal]
                        row[ordinal] = row[ordinal] + after[ordinal] - old if group < 0 else after[ordinal]
                there.add(after[0])
    return sorted(tuple(values[key]) for key in there)


def random_statement(rng: random.Random) -> str:
    key, value = rng.randint(1, 4), rng.randint(1, 10**6)
    return rng.choice(
        [
            f"INSERT OR IGNORE INTO ta VALUES ({key}, 'i{value}', {value})",
            f"UPDATE ta SET v = 'v{value}' WHERE id = {key}",
            f"UPDATE ta SET n = {value} WHERE id = {key}",
            f"UPDATE ta SET n = n + {value % 9}",
            f"UPDATE ta SET v = 'b{value}', n = {value} WHERE id >= {key}",
            f"DELETE FROM ta WHERE id = {key}",
            f"UPDATE OR IGNORE ta SET id = {rng.randint(1, 4)} WHERE id = {key}",
            f"INSERT OR REPLACE INTO ta VALUES ({key}, 'r{value}', {value})",
        ]
    )


def random_name(rng: random.Random) -> str:
    key, name, mail = (rng.choice("pqrs") for _ in range(3))
    return rng.choice(
        [
            f"INSERT OR IGNORE INTO named VALUES ('{key}', '{name}', '{mail}', {rng.randint(1, 99)})",
            f"UPDATE OR IGNORE named SET name = '{name}' WHERE id = '{key}'",
            f"UPDATE OR IGNORE named SET mail = '{mail.upper()}' WHERE id = '{key}'",
            f"UPDATE OR IGNORE named SET n = {rng.randint(1, 99)} WHERE id = '{key}'",
            f"DELETE FROM named WHERE name = '{name}'",
            f"UPDATE OR IGNORE named SET id = '{name}' WHERE id = '{key}'",
            f"INSERT OR REPLACE INTO named VALUES ('{key}', '{name}', '{mail}', 0)",
            f"UPDATE named SET name = CASE WHEN id = '{key}' THEN NULL ELSE name END",
        ]
    )


FILLER = "CREATE TABLE filler (id TEXT PRIMARY KEY, v)"
COUNT_TO_40 = "WITH RECURSIVE c (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM c WHERE i < 40)"


def made_large(statements: Sequence[str], name: str) -> list[str]:
    """The same in a large transaction, of which they are in several parts."""
    fill = f"INSERT INTO filler {COUNT_TO_40} SELECT '{name}' || i, '{'x' * 15_000}' FROM c"
    return [*statements[:1], fill, *statements[1:2], "DELETE FROM filler", *statements[2:]]


class DiedError(BaseException):
    """An Update Process ends here, as one that is killed does."""


@contextmanager
def dying_between_regions() -> Iterator[None]:
    """In the block what is applied dies after the COMMIT in the first region, before the others have it."""

    def commit(self: ApplySession, _seqno: int) -> None:
        self._open[0].region.commit()
        raise DiedError

    before = ApplySession._commit_regions
    ApplySession._commit_regions = commit  # type: ignore[method-assign]
    try:
        with suppress(DiedError):
            yield
    finally:
        ApplySession._commit_regions = before  # type: ignore[method-assign]


def world(
    directory: Path, seed: int, count: int, shape: str, *, large: random.Random | None = None, is_apart: bool = False
) -> Suppliers:
    """They write and carry at random, and come to rest. `large`: draws which transactions are. `is_apart`: each has two
    regions, many a transaction changes both, and many a one who applies dies between them."""
    rng = random.Random(f"{shape} of {count}: {seed}")
    schema = (*SCHEMAS[seed % 3], FILLER) if large is not None else SCHEMAS[seed % 3]
    whole = WHOLE if is_whole(seed) else ()
    schema, apart = ((), schema) if is_apart else (schema, ())
    made = shared(directory, count, schema=schema, apart=apart, sums=SUMS if seed % 2 else (), whole=whole)
    if large is not None:
        made.pool_bytes *= 4
    links = links_of(shape, made.names)
    ways = [*links, *((end, start) for start, end in links)]
    for _ in range(12 * count):
        drawn = rng.random()
        if drawn < 0.5:
            name = rng.choice(made.names)
            what = [rng.choice([random_statement, random_name])]
            if is_apart:
                what = [random_statement, random_name]
            statements = [rng.choice(what)(rng) for _ in range(rng.randint(1, 3))]
            is_large = large is not None and large.random() < 0.4
            run(made, name, *(made_large(statements, name) if is_large else statements))
        elif drawn < 0.6:
            made.tend(rng.choice(made.names))
        else:
            with dying_between_regions() if is_apart and rng.random() < 0.4 else nullcontext():
                made.carry(*rng.choice(ways), most=rng.choice([1, 2, 5, None]))
    made.level(ways)
    return made


def assert_as_folded(made: Suppliers, seed: int) -> None:
    """All have the same, which is what their transactions come to."""
    made.assert_converged()
    for table in ("ta", "named"):
        is_ta = table == "ta"
        wanted = folded(made, table, sums=["n"] if seed % 2 and is_ta else (), by_row=is_ta and is_whole(seed))
        assert made.rows(made.names[-1])[table] == wanted, table
