"""Which partitions a secondary has: what is asked for, what is there, and what comes with the next seed.

    instance file: subscription (wanted), held (there, and coming); rows, held_rows: the same of single tables

Guarantees: what is held is whole: rows of it have come from the secondary's first transaction, or from a seed, on. What
is added to a secondary that has transactions waits for a seed, and the others go on meanwhile; what is removed stays
as it was, also when power goes, and gets no more. The journal says from the first transaction on that is not whole that
it is none of all.
Leaves to others: asking for it (receiver_server/connection.py), and the seed (transfer/seed).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from msgspec.structs import replace

from replicate.daemon.files import DaemonFiles
from replicate.door.partial_journal import mark_partial
from replicate.errors import AlreadyRunningError, DamagedError, NotFoundError, PermissionRefusedError, UsageError
from replicate.filters.wishes import parse_wish
from replicate.instance.instance import Instance
from replicate.journal.chain import Chain
from replicate.limits import (
    PARTITION_DEFAULT,
    PARTITION_MAX,
    PARTITION_NONE,
    PARTITION_STREAM,
    ROWS_BYTES_MAX,
    ROWS_MAX,
)
from replicate.model.elements import DEFINITION, misfit
from replicate.model.partitions import ALL
from replicate.model.subscription import Rows, Subscription, Table
from replicate.region.kind import KIND
from replicate.region.sqlite.schema_copy import reading
from replicate.region.sqlite.virtual_tables import shadow_tables
from replicate.system.failpoint import hit
from replicate.transfer.seed.rows import definitions_here, require_fit, tables_by_partition

RECEIVER = "receiver"


def set_(instance: Instance, names: Sequence[str]) -> None:
    """Want exactly those partitions, by name or number; ALL: whatever there is. UsageError for NONE, NotFoundError for
    a partition that is not known here, PermissionRefusedError for a primary, AlreadyRunningError where the secondary is
    empty and its Receiver Server may be filling it, JournalIOError when a region cannot be synced."""
    _require_secondary(instance)
    wanted = None if [name.upper() for name in names] == [ALL] else numbers_of(instance, names)
    if wanted is not None:
        _require_definitions(instance, wanted)
    if _is_empty(instance):
        if wanted != instance.content.held and DaemonFiles(instance.path, RECEIVER).lock.probe() is not None:
            raise AlreadyRunningError(
                "the Receiver Server may be filling this instance",
                where=str(instance.path),
                do=f"Stop it first: replicate -i {instance.named} receiver stop",
            )
        instance.change_subscription(lambda now: replace(now, wanted=wanted).seeded())
        return
    known = _known(instance)
    if wanted is not None and not instance.content.is_partial:
        # Where there is no journal to go on with, the seed that begins one says so itself.
        with suppress(NotFoundError, DamagedError):
            mark_partial(instance)  # before the first transaction comes that is not whole
            hit("subscription.marked")
    before = instance.content.choice
    if before.wanting(wanted, known).frozen != before.frozen:
        _sync_what_stays(instance)
    instance.change_subscription(lambda now: now.wanting(wanted, known))


def _known(instance: Instance) -> set[int]:
    """All partitions that may have rows here, of a secondary with all of them: those of which nobody has told a name,
    too, as where packets come."""
    tables = tables_by_partition(instance) if instance.content.held is None else ()
    return {*instance.partitions_now().names, *tables} - {PARTITION_NONE}


def _sync_what_stays(instance: Instance) -> None:
    """When power goes, the journal here brings nothing back of what is not held any more."""
    for entry in instance.regions:
        KIND.sync(entry.path)


def add(instance: Instance, names: Sequence[str]) -> None:
    """Want those, too. As `set_`."""
    now = _wanted(instance)
    set_(instance, [str(number) for number in sorted({*now, *numbers_of(instance, names)})])


def remove(instance: Instance, names: Sequence[str]) -> None:
    """Want those no more. As `set_`; UsageError when none would be left, or for all of them."""
    now = _wanted(instance)
    left = sorted(set(now) - set(numbers_of(instance, names)))
    if not left:
        raise UsageError(
            "no partition would be left",
            where=str(instance.path),
            do=f"Stop its Receiver Server, or remove the instance: replicate -i {instance.named} instance remove",
        )
    set_(instance, [str(number) for number in left])


def filter_(instance: Instance, table: str, wish: str | None, *, is_ahead: bool = False) -> Table:
    """Want of that table (TABLE, or REGION.TABLE) what the text says (model/table_wish.py); None: all of it. What is
    wanted comes with the next copy of its rows; until then those are asked for that were copied. `is_ahead`: the table
    is another one at the source by now, so only that copy says whether the wish fits. Region and name.

    UsageError for a wish that cannot be read, or does not fit the table as it is here; for a table that is not here,
    where there are any, or has no rows of its own; and where all wishes together are too much for a hello.
    PermissionRefusedError and AlreadyRunningError as `set_`."""
    _require_secondary(instance)
    if wish is not None:
        wish = parse_wish(wish).text
    is_empty = _is_empty(instance)
    if is_empty and DaemonFiles(instance.path, RECEIVER).lock.probe() is not None:
        raise AlreadyRunningError(
            "the Receiver Server may be filling this instance",
            where=str(instance.path),
            do=f"Stop it first: replicate -i {instance.named} receiver stop",
        )
    key = _key(instance, table, wish, is_ahead=is_ahead)
    if wish is not None:
        _require_room({**instance.content.rows, key: wish})

    def change(now: Subscription) -> Subscription:
        made = now.filtering(key, wish)
        return made.seeded() if is_empty else made

    instance.change_subscription(change)
    return key


def _key(instance: Instance, table: str, wish: str | None, *, is_ahead: bool) -> Table:
    """Region and name. Where no region is here nothing is known of tables, nor of a region that is not named."""
    named, dot, name = table.partition(".")
    asked = (named, name) if dot else ("", table)
    if wish is None:
        for key in (asked, ("", table)):
            found = [one for one in instance.content.rows if one == key or (not key[0] and one[1] == key[1])]
            if len(found) == 1:
                return found[0]
        raise NotFoundError(
            f"no rows or columns of table {table} are chosen" if not found else f"table {table} is in several regions",
            where=str(instance.path),
            do=f"See which are: replicate -i {instance.named} subscription filter",
        )
    if not instance.regions:
        named_so = [one for one in instance.content.rows if not dot and one[1] == table]
        return named_so[0] if len(named_so) == 1 else asked
    known = definitions_here(instance)
    if dot and named not in {entry.name for entry in instance.regions}:
        asked = "", table
    if is_ahead:
        named_so = [(one.region, one.table) for one in known if one.table == asked[1] and asked[0] in ("", one.region)]
        return named_so[0] if len(named_so) == 1 else asked
    try:
        key = require_fit(instance, asked, wish, known)
    except UsageError as error:
        also = f"{error.do}. If it is another one at the source by now: the same command with --ahead"
        raise UsageError(error.what, where=error.where, do=also) from error
    with reading(instance.region(key[0]).path) as connection:
        if key[1] in shadow_tables(connection):
            raise UsageError(
                f"table {table} is kept by a virtual table, and makes sense as a whole",
                where=str(instance.path),
                do="Name an ordinary table",
            )
    return key


def _require_room(rows: Rows) -> None:
    size = sum(len(text.encode()) for key, wish in rows.items() for text in (*key, wish))
    if len(rows) > ROWS_MAX or size > ROWS_BYTES_MAX:
        raise UsageError(
            f"{len(rows)} tables with conditions or columns of {size} bytes are more than a hello holds: {ROWS_MAX} "
            f"tables, {ROWS_BYTES_MAX} bytes",
            do="Say them shorter; or have a column that tells which rows are wanted",
        )


def _wanted(instance: Instance) -> tuple[int, ...]:
    """What is wanted now, of a secondary that does not want all. UsageError, PermissionRefusedError."""
    _require_secondary(instance)
    now = instance.content.subscription
    if now is None:
        raise UsageError(
            f"{instance.name} has all partitions",
            where=str(instance.path),
            do=f"Say which are wanted: replicate -i {instance.named} subscription set NAME…",
        )
    return now


def numbers_of(instance: Instance, names: Sequence[str]) -> tuple[int, ...]:
    """The numbers of partitions, by name or number, ascending. UsageError for NONE, and for none at all;
    NotFoundError."""
    known = instance.partitions_now()
    found = set()
    for name in names:
        is_number = name.isdigit() and PARTITION_DEFAULT <= int(name) <= PARTITION_MAX
        try:
            number = int(name) if is_number else known.number(name)
        except NotFoundError as error:
            if name.isdigit():
                raise NotFoundError(
                    f"there is no partition {name}", do=f"Give a number from {PARTITION_DEFAULT} to {PARTITION_MAX}"
                ) from error
            raise NotFoundError(
                f"{instance.name} knows no partition {name}: each instance has names of its own",
                where=str(instance.path),
                do=f"Say its number, which `partition list` shows on the primary; or name it here, too: replicate -i "
                f"{instance.named} partition create {name} --id NUMBER",
            ) from error
        if number == PARTITION_NONE:
            raise UsageError("rows of tables in NONE never leave their instance", do="Name a partition")
        found.add(number)
    if not found:
        raise UsageError("no partition is named", do="Name one, or ALL")
    return tuple(sorted(found))


def _require_definitions(instance: Instance, wanted: Sequence[int]) -> None:
    """UsageError for indexes or triggers without the tables that they are of."""
    known = instance.partitions_now()
    if element := misfit(known.elements, (PARTITION_STREAM, *wanted).__contains__):
        raise UsageError(
            f"{element} would come (partition {known.name(known.place_of(element))}) without DEFINITION: nothing tells "
            "that the tables are there which it is of",
            where=str(instance.path),
            do=f"Subscribe to partition {known.name(known.place_of(DEFINITION))}, too; or have {element} elsewhere",
        )


def _is_empty(instance: Instance) -> bool:
    """Whether no transaction has ever come here."""
    return not instance.regions and not instance.waiting and not Chain(instance.journal_directory).first_seqnos()


def _require_secondary(instance: Instance) -> None:
    if instance.role != "secondary":
        raise PermissionRefusedError(
            f"instance {instance.name} is primary: it has all partitions",
            where=str(instance.path),
            do="Name a secondary with -i; here, replicate -i INSTANCE partition assign says what belongs to which",
        )
