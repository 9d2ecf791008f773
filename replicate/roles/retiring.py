"""A supplier that is gone for good: what it wrote becomes another one's, and nobody waits for it any more.

Who is told of it says so to all (`retiring`), and offers to have what the one that is gone wrote. Each of the others
takes nothing more from that one, and says so (`parted`: update_process/gone_suppliers.py). Who has heard all of them
has all that anybody ever took from it, and says that it is retired.

Guarantees: each step is a transaction; the same call again, here or on another site, does what is missing. What one
that is gone had written, and somebody has, comes to all before it is retired.
Leaves to others: who has heard what (model/writers.py), connections (receiver_server/).
"""

from __future__ import annotations

import time
from contextlib import closing
from typing import Final

from msgspec import Struct

from replicate.door.door import Door
from replicate.door.snapshot import door_of
from replicate.door.writer_check import suppliers_known
from replicate.errors import ConfigurationError
from replicate.instance.instance import Instance
from replicate.model.transaction import PARTED, RETIRED, RETIRING
from replicate.model.writers import REST, Writers
from replicate.region.kind import KIND
from replicate.roles.partition_writers import held_session, names_of, say, supplier_door, supplier_named

LOOK_S: Final = 0.2


class Retiring(Struct, frozen=True):
    """One that is gone. `heir`: who gets, or has got, what it wrote; `awaited`: those that still may take something
    from it, by name. `is_retired`: nothing of it comes any more."""

    name: str
    heir: str
    awaited: tuple[str, ...]
    is_retired: bool


def retire(instance: Instance, name: str, *, timeout_s: float) -> Retiring:
    """Say that a supplier is gone for good, and have what it wrote be written here; wait up to `timeout_s` for the
    others. Nothing is said where it is retired, or another one has said it already.

    NotPrimaryError (no supplier), NotFoundError (no such supplier), ConfigurationError (this one itself, or this one is
    gone by what others say), BusyError, and what a commit raises."""
    deadline_s = time.monotonic() + timeout_s
    with supplier_door(instance) as door:
        gone, own = supplier_named(door, name), door.instance.content.uuid
        if gone == own:
            raise ConfigurationError(
                f"{name} is this one",
                where=str(instance.path),
                do="Say it on another supplier; what is to go is converted first: instance convert --role secondary",
            )
        with held_session(door, timeout_s) as session:
            writers = session.parts[0].region.writers()
            if writers.is_gone(own):
                raise ConfigurationError(
                    f"{instance.name} itself is gone, by what the others have said",
                    where=str(instance.path),
                    do="Make it again, and seed it: replicate help suppliers",
                )
            if gone not in writers.retired and not writers.heir(gone):
                say(door, session, REST, [RETIRING, gone, own])
        while True:
            found = next(one for one in gone_of(instance) if one.name == name)
            if found.is_retired or time.monotonic() >= deadline_s:
                return found
            time.sleep(LOOK_S)


def gone_of(instance: Instance) -> list[Retiring]:
    """All that are gone, by name."""
    entry = instance.regions[0]
    with door_of(instance) as door, closing(KIND.reader(entry.path, region=entry.uuid)) as opened:
        names, writers = names_of(door), opened.writers()
        known = suppliers_known(door, writers)
    found = []
    for gone in {*writers.retiring, *writers.retired}:
        awaited = sorted(names.get(one, one.hex()) for one in writers.awaited(gone, known))
        is_retired = gone in writers.retired
        heir = names.get(writers.heir(gone), "")
        found.append(Retiring(names.get(gone, gone.hex()), heir, () if is_retired else tuple(awaited), is_retired))
    return sorted(found, key=lambda one: one.name)


def part(door: Door, gone: bytes, *, timeout_s: float) -> None:
    """Say that this one takes nothing more from one that is gone: nothing from it is on its way here any more. Raises
    what a commit raises."""
    own = door.instance.content.uuid
    with held_session(door, timeout_s) as session:
        if gone in session.parts[0].region.writers().to_part(own):
            say(door, session, REST, [PARTED, gone, own])


def finish(door: Door, gone: bytes, *, timeout_s: float) -> None:
    """Say that one is retired, where that is this one's to say. Raises what a commit raises."""
    own = door.instance.content.uuid
    with held_session(door, timeout_s) as session:
        writers = session.parts[0].region.writers()
        if gone in writers.to_retire(own, suppliers_known(door, writers)):
            say(door, session, REST, [RETIRED, gone, own])


def writers_of(instance: Instance) -> Writers:
    """Which supplier writes what, as the region says it now. Raises what opening it raises."""
    entry = instance.regions[0]
    with closing(KIND.reader(entry.path, region=entry.uuid)) as opened:
        return opened.writers()
