"""Running the operator's own schema changes on a secondary that does not get them with the stream.

Guarantees: all statements are run or none is, under the lock of the Update Process, by the same guards by which it runs
those of the stream; what would come with the stream, and what is no schema change, is refused by name before anything
is changed. When it returns the change is on the disk: rows that come after it find it there after a power loss.
Leaves to others: whether the tables fit what comes next, which the Update Process looks at, column by column, before
the first row.
"""

from __future__ import annotations

from typing import NamedTuple

from replicate.daemon.files import DaemonFiles
from replicate.door.recovery.opening import close_door
from replicate.door.secondary import open_apply_session
from replicate.errors import NotSupportedError, PermissionRefusedError, UsageError
from replicate.instance.instance import Instance
from replicate.model.elements import PLACED, left_out
from replicate.region.sqlite.apply.rows import RowApplier
from replicate.region.sqlite.checkpoint import sync_wal
from replicate.region.sqlite.definable import check_travelling
from replicate.region.sqlite.sql.elements import element_of_text
from replicate.region.sqlite.sql.statements import split


class SchemaRun(NamedTuple):
    """What was run, and where. `own`: the audit elements that do not come with the stream."""

    region: str
    statements: int
    own: list[str]


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
    name = region or ("main" if len(instance.regions) != 1 else instance.regions[0].name)
    entry = instance.region(name)
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


def _require_secondary(instance: Instance) -> None:
    if instance.role != "secondary":
        raise PermissionRefusedError(
            f"instance {instance.name} is {instance.told_role}: its schema is changed by an application, and the "
            "stream tells it",
            where=str(instance.path),
            do="Connect with replicate.connect, and change it there",
        )


def _check(instance: Instance, text: str, own: list[str], where: str) -> None:
    try:
        check_travelling(text, where=where)
    except NotSupportedError as error:
        raise UsageError(error.what, where=where, do="Leave it out; nothing was changed") from error
    element = element_of_text(text)
    if element not in PLACED:
        raise UsageError("it writes rows, and is no schema change", where=where, do="Leave it out; nothing was changed")
    if element not in own:
        raise UsageError(
            f"it is of {element}, which {instance.name} gets with the stream: its own would bar the next one",
            where=where,
            do=f"Make it on the primary; or say where {element} is (replicate -i {instance.named} partition element "
            f"{element} NAME), and do not subscribe to that",
        )
