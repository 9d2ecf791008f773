"""Running the operator's schema changes: on a secondary those that it does not get with the stream, on a supplier
those of all suppliers, while the others stand aside.

Guarantees: all statements are run or none is; what is no schema change is refused by name before anything is changed.
On a secondary they are run under the lock of the Update Process, by the same guards by which it runs those of the
stream, and are on the disk on return. On a supplier each is tried before anybody stands aside for it, and all are one
transaction, which lets the others write again: the same call after a kill goes on.
Leaves to others: whether the tables fit what comes next, which the Update Process looks at, column by column, before
the first row; standing aside (roles/schema_fence.py).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any, NamedTuple

from replicate.daemon.files import DaemonFiles
from replicate.door.recovery.opening import close_door
from replicate.door.secondary import open_apply_session
from replicate.errors import NotSupportedError, NotWriterError, PermissionRefusedError, ReplicateError, UsageError
from replicate.instance.instance import Instance
from replicate.model.elements import PLACED, left_out
from replicate.model.told_fences import ToldFence
from replicate.region.sqlite.allowed_definitions import check_travelling
from replicate.region.sqlite.apply.rows import RowApplier
from replicate.region.sqlite.checkpoint import sync_wal
from replicate.region.sqlite.sql.elements import element_of_text
from replicate.region.sqlite.sql.statements import split
from replicate.roles.schema_fence import fence, fences, unfence


class SchemaRun(NamedTuple):
    """What was run, and where. `own`: the audit elements that do not come with the stream."""

    region: str
    statements: int
    own: list[str]


class FencedRun(NamedTuple):
    """What was run on a supplier, and the transaction. `stays_fenced`: the others stand aside still, as somebody had
    said before."""

    region: str
    statements: int
    seqno: int
    stays_fenced: bool


def own_elements(instance: Instance) -> list[str]:
    """The audit elements that this instance does not get, as far as it has been told where they are."""
    return left_out(instance.partitions_now().elements, instance.content.holds)


def run_schema(instance: Instance, text: str, *, where: str, region: str | None = None) -> SchemaRun:
    """Run the statements of `text`, which came from `where`, in a region (the one there is, else main).

    PermissionRefusedError for a primary; UsageError for what comes with the stream, what is no schema change, and what
    fails (nothing is changed then); AlreadyRunningError while the Update Process runs; what opening the regions raises.
    """
    _require_secondary(instance)
    own = own_elements(instance)
    texts = list(split(text))
    for number, one in enumerate(texts, 1):
        _check(instance, one, own, f"{where}, statement {number}")
    if not texts:
        raise UsageError("no statement stands there", where=where, do="Write the schema changes into it")
    entry = instance.region(_region_named(instance, region))
    with DaemonFiles(instance.path, "update").lock.kept_down("schema run"):
        session = open_apply_session(instance)
        try:
            session.begin()
            rows = session.rows[entry.name]
            assert isinstance(rows, RowApplier)
            rows.change_own(texts)
            session.keep(defines=True)
        finally:
            session.close()
            close_door(session.door)
        sync_wal(entry.path)
    return SchemaRun(entry.name, len(texts), own)


def run_fenced(
    instance: Instance,
    text: str,
    connect: Callable[[str], Any],
    *,
    where: str,
    timeout_s: float,
    region: str | None = None,
    waits: Callable[[ToldFence], None] | None = None,
) -> FencedRun:
    """Run the statements of `text`, which came from `where`, on a supplier, once all others stand aside, for up to
    `timeout_s`. `connect`: opens an application's connection to a region. `region`: the one that is changed (None: main
    where there are several). Where `fence` was called before, the fence stays; else it ends with this. `waits`: as for
    `fence`.

    UsageError for what is no schema change, and what fails; NotSupportedError for what suppliers cannot share, or is
    not replicated: nothing is changed then, and nobody stands aside for it. Raises as `fence`, and what a commit
    raises."""
    texts = list(split(text))
    for number, one in enumerate(texts, 1):
        _check_travels(one, f"{where}, statement {number}")
    if not texts:
        raise UsageError("no statement stands there", where=where, do="Write the schema changes into it")
    name = _region_named(instance, region)
    with closing(connect(name)) as connection:
        _run_all(connection, texts, where)
        connection.rollback()
    deadline_s = time.monotonic() + timeout_s
    while True:
        left_s = max(0.0, deadline_s - time.monotonic())
        is_once = fence(instance, timeout_s=left_s, is_once=True, waits=waits).is_once
        try:
            with closing(connect(name)) as connection:
                for entry in instance.regions:  # each is told, in the same transaction, that the fence has ended
                    if entry.name != name:
                        connection.attach(entry.name, f"region_{entry.region_id}")
                _run_all(connection, texts, where)
                connection.commit()
                return FencedRun(name, len(texts), connection.last_seqno, not is_once)
        except (UsageError, NotSupportedError):
            if is_once:
                unfence(instance, timeout_s=timeout_s)
            raise
        except NotWriterError:
            # One more supplier was heard of since all stood aside: it is waited for, too.
            if not any(one.is_own and not one.is_closed for one in fences(instance)):
                raise


def _region_named(instance: Instance, region: str | None) -> str:
    """The one that is meant. NotFoundError where it is not there."""
    name = region or ("main" if len(instance.regions) != 1 else instance.regions[0].name)
    return instance.region(name).name


def _run_all(connection: Any, texts: Sequence[str], where: str) -> None:
    connection.execute("BEGIN IMMEDIATE")
    for number, text in enumerate(texts, 1):
        try:
            connection.execute(text)
        except ReplicateError:
            raise
        except connection.Error as error:
            raise UsageError(
                f"the statement fails: {error}",
                where=f"{where}, statement {number}",
                do="Nothing was changed: correct the file, and run it again",
            ) from error


def _require_secondary(instance: Instance) -> None:
    if instance.role != "secondary":
        raise PermissionRefusedError(
            f"instance {instance.name} is {instance.told_role}: its schema is changed by an application, and the "
            "stream tells it",
            where=str(instance.path),
            do="Connect with replicate.connect, and change it there",
        )


def _check(instance: Instance, text: str, own: list[str], where: str) -> None:
    element = _check_travels(text, where)
    if element not in own:
        raise UsageError(
            f"it is of {element}, which {instance.name} gets with the stream: its own would bar the next one",
            where=where,
            do=f"Make it on the primary; or say where {element} is (replicate -i {instance.named} partition element "
            f"{element} NAME), and do not subscribe to that",
        )


def _check_travels(text: str, where: str) -> str:
    """The audit element of a schema change. UsageError for what is none, or cannot be run on two sites alike."""
    try:
        check_travelling(text, where=where)
    except NotSupportedError as error:
        raise UsageError(error.what, where=where, do="Leave it out; nothing was changed") from error
    element = element_of_text(text)
    if element not in PLACED:
        raise UsageError("it writes rows, and is no schema change", where=where, do="Leave it out; nothing was changed")
    return element
