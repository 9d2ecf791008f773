"""Which partitions a secondary has: what is asked for, what is there, and what comes with the next seed.

    instance file: subscription (wanted), held (there, and coming)

Guarantees: what is held is whole: rows of it have come from the secondary's first transaction, or from a seed, on. What
is added to a secondary that has transactions waits for a seed, and the others go on meanwhile; what is removed stays
as it was, and gets no more.
Leaves to others: asking for it (receiver_server/connection.py), and the seed (transfer/seed).
"""

from __future__ import annotations

from collections.abc import Sequence

from replicate.daemon.files import DaemonFiles
from replicate.errors import AlreadyRunningError, NotFoundError, PermissionRefusedError, UsageError
from replicate.instance.instance import Instance
from replicate.journal.chain import Chain
from replicate.limits import PARTITION_DEFAULT, PARTITION_MAX, PARTITION_NONE, PARTITION_STREAM
from replicate.model.elements import DEFINITION, misfit
from replicate.model.partitions import ALL
from replicate.model.subscription import Subscription

RECEIVER = "receiver"


def set_(instance: Instance, names: Sequence[str]) -> None:
    """Want exactly those partitions, by name or number; ALL: whatever there is. UsageError for NONE, NotFoundError for
    a partition that is not known here, PermissionRefusedError for a primary, AlreadyRunningError where the secondary is
    empty and its Receiver Server may be filling it."""
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
        instance.change_subscription(lambda _: Subscription(wanted, wanted))
        return
    known = instance.partitions_now().names
    instance.change_subscription(lambda now: now.wanting(wanted, known))


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
