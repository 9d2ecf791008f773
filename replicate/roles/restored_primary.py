"""A single primary whose files are older than what its peers have of it: it gets that back before it writes again.

    what the restored copy began · file: since when · secondary, restoring · that life taken back, kept in a file
    each peer: by a line its Source Server brings all, by packets its answer to our receipt does · primary

Guarantees: from `ask` on no application's transaction gets a number here before `settle_answers` finds that each peer
has answered since, and that nothing is with any of them that is not here; whatever is killed, the same calls go on.
What was committed since the copy was restored stands in a durable file before it is taken back.
Leaves to others: the change of role (promote_demote.py), going back (rollback.py), how what peers have comes here;
suppliers (restored_supplier.py); what is still on its way to a peer, which no peer can tell.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from replicate.audit.show import shown_between
from replicate.daemon.files import DaemonFiles
from replicate.daemon.last_heard import read_facts
from replicate.door.recovery.opening import ROLLBACK_MARKER, make_chain
from replicate.door.snapshot import door_of
from replicate.errors import ConfigurationError, PermissionRefusedError, ReplicateError
from replicate.instance.instance import Instance
from replicate.lost.keep import Kept
from replicate.model.vector import SynchronizationVector
from replicate.pool import control as word
from replicate.roles.change_of_role import LOCK_TIMEOUT_S, become_secondary
from replicate.roles.daemons_down import daemons_down
from replicate.roles.promote_demote import Promoted, promote
from replicate.roles.rollback import rollback
from replicate.roles.rollback_survey import survey
from replicate.roles.source_refusal import look_at_verdict
from replicate.system.files import read_private, remove_file, replace_file
from replicate.transfer.packet.epochs_file import read_epochs

NAME: Final = "restoring.json"
FORMAT: Final = 1
RESTORING: Final = "replica restore"
LOOK_S: Final = 0.2
"""Between two looks for the answers of peers."""


class Restoring(Struct, frozen=True):
    """Since when (Unix nanoseconds) it waits; `to`: the last transaction that stays; `answered`: peers whose answer is
    here, and what each had."""

    since_ns: int
    to: int
    answered: dict[str, int]


class BackFrom(Struct, frozen=True):
    """`last`: of the journal before; `kept`: where stands what was committed since, None where that was nothing."""

    to: int
    last: int
    kept: Kept | None = None


def begun_since(instance: Instance) -> tuple[int, int, int]:
    """Of a primary: after which transaction the life of the restored copy begins, the last of its journal, and how many
    transactions with data stand in between. None do where it was not found to be restored."""
    with door_of(instance) as door:  # by this it is found out
        last, histories = int(door.words[word.LAST_SEQNO]), door.catalogue_now().histories
    instance.reload()
    newest = histories[-1] if histories else None
    if not instance.content.is_restored or newest is None or newest.origin.key != instance.content.origin.key:
        return last, last, 0
    to = newest.seqno - 1
    return to, last, survey(shown_between(make_chain(instance), to + 1, last, parts=False)).transactions


def ask(instance: Instance, *, timeout_s: float = LOCK_TIMEOUT_S) -> BackFrom:
    """Have the instance wait for what its peers have of it; one that does so already goes on with what was not done.

    Raises ConfigurationError (it has no peer), PermissionRefusedError (a secondary; one that is superseded),
    AlreadyRunningError, BusyError, NotSupportedError (a schema change since it was restored), and what the changes
    raise: given again, it goes on."""
    instance.reload()
    _refuse(instance)
    if instance.role == "primary":
        to, last, _ = begun_since(instance)
        _note(instance, Restoring(time.time_ns(), to, {}))
        with daemons_down(instance, RESTORING, patience_s=timeout_s):
            become_secondary(instance, timeout_s=timeout_s, restoring=True)
        instance.reload()
    asked = _read(instance)
    if (instance.path / ROLLBACK_MARKER).exists():
        done = rollback(instance, None, timeout_s=timeout_s)
        return BackFrom(done.to, done.last, done.kept)
    with door_of(instance) as door:
        last, histories = int(door.words[word.LAST_SEQNO]), door.catalogue_now().histories
    newest = histories[-1]
    if asked is None or newest.instance != instance.content.uuid or newest.seqno != asked.to + 1 or last == asked.to:
        return BackFrom(last, last)
    done = rollback(instance, asked.to, timeout_s=timeout_s)
    instance.reload()
    return BackFrom(done.to, done.last, done.kept)


def _refuse(instance: Instance) -> None:
    content, where = instance.content, str(instance.path)
    if content.fence is not None:
        raise PermissionRefusedError(
            f"{content.fence.name} took over from {instance.name}, and is primary: what it had comes from there",
            where=where,
            do=f"replicate -i {instance.named} rollback, then let it follow",
        )
    if instance.role == "secondary" and not content.is_restoring:
        raise PermissionRefusedError(
            f"{instance.name} is secondary: it gets what it lacks from its source",
            where=where,
            do=f"By a line it asks by itself; by packets: replicate -i {instance.named} packet export --to NAME "
            "--receipt",
        )
    if not instance.peers:
        raise ConfigurationError(
            f"no peer of {instance.name} is registered: nobody is known who could have what it had",
            where=where,
            do=f"replicate -i {instance.named} peer add NAME HOST:PORT, or --packets",
        )


def settle_answers(instance: Instance, *, wait_s: float = 0.0) -> tuple[str, ...]:
    """Which peers have not answered since it waits, or have more than is here. `wait_s`: so long a line is looked at;
    what comes by packets is there or is not. What is found is kept."""
    asked = _read(instance) or Restoring(time.time_ns(), 0, {})
    deadline_s, first = time.monotonic() + wait_s, dict[str, int]()
    while True:
        here, last = _here(instance)
        answered = asked.answered | dict.fromkeys(_by_packets(instance, asked, here), last)
        answered |= dict.fromkeys((*_by_line(instance, last, first), *_by_refusal(instance, here)), last)
        if answered != asked.answered:
            asked = replace(asked, answered=answered)
            _note(instance, asked)
        awaited = tuple(peer.name for peer in instance.peers if peer.name not in answered)
        if not awaited or time.monotonic() >= deadline_s:
            return awaited
        time.sleep(LOOK_S)


def end(instance: Instance, *, finish: Callable[[], int], timeout_s: float, force: bool = False) -> Promoted:
    """It is primary again. All have answered, or `force`. Raises as `promote`: it waits still then."""
    made = promote(
        instance, finish=finish, timeout_s=timeout_s, expect=None if force else _here(instance)[1], force=force,
        is_restored=True,
    )  # fmt: skip
    _forget(instance)
    return made


def _here(instance: Instance) -> tuple[SynchronizationVector, int]:
    with door_of(instance) as door, door.locked():
        position = door.position()
        return position.vector, position.last_seqno


def _by_packets(instance: Instance, asked: Restoring, here: SynchronizationVector) -> list[str]:
    """Peers of which a packet that was made since says that they have nothing more. By their clocks: one that was made
    before brings what it brings, and is no answer."""
    replicas = read_epochs(instance.consumers_directory).replicas
    found = []
    for peer in instance.peers:
        heard = replicas[peer.name].heard if peer.name in replicas else None
        if heard is not None and heard.wall_ns > asked.since_ns and _covers(here, heard.position.vector):
            found.append(peer.name)
    return found


def _covers(here: SynchronizationVector, theirs: SynchronizationVector) -> bool:
    return all(here.last(origin) >= theirs.last(origin) for origin in theirs.origins())


def _by_line(instance: Instance, last: int, first: dict[str, int]) -> list[str]:
    """The peer whose stream comes in now, where all that it has told of is applied. It counts by a word that it has
    said after it was first seen here (`first`: when, by name): the one before may be another's."""
    status = DaemonFiles(instance.path, "receiver").read_status()
    if status is None or not status.is_running:
        first.clear()
        return []
    facts: Mapping[str, Any] = status.facts
    name, told = str(facts.get("source") or ""), read_facts(facts)[1]
    if facts.get("is_streaming") is not True or told is None or all(peer.name != name for peer in instance.peers):
        first.clear()
        return []
    if name not in first:
        first.clear()
        first[name] = time.monotonic_ns()
    source_last = facts.get("source_last_seqno")
    is_level = isinstance(source_last, int) and source_last <= last
    return [name] if is_level and told.monotonic_ns > first[name] else []


def _by_refusal(instance: Instance, here: SynchronizationVector) -> list[str]:
    """The source that has refused us since, as it has less: nobody took over in its journal from an origin of which it
    has less than we, so that journal is the beginning of ours."""
    said = look_at_verdict(instance)
    has_less = said is not None and not said.ended_by and 0 < said.common < here.last(said.origin)
    return [said.source] if said is not None and has_less else []


def steps_for(instance: Instance, awaited: tuple[str, ...]) -> list[str]:
    """What brings back what those have."""
    here, lines = f"replicate -i {instance.named}", []
    for peer in instance.peers:
        if peer.name not in awaited:
            continue
        there = f"replicate -i {peer.name}"
        if peer.by_packets:
            lines.append(
                f"{peer.name}, here: {here} packet export --to {peer.name} --receipt; there: {there} peer add "
                f"{instance.name} --packets (unless it is), packet import, packet export --to {instance.name}; here: "
                f"{here} packet import"
            )
        else:
            lines.append(
                f"{peer.name}, here: {here} receiver start, and update start; there: {there} peer add "
                f"{instance.name} HOST:PORT (unless it is), {there} source start --peer {instance.name}, or source "
                f"activate --peer {instance.name}; afterwards: {there} source deactivate --peer {instance.name}"
            )
    return lines


def taken_over(instance: Instance) -> str:
    """Who has taken over meanwhile, and is followed; "" for nobody. It waits for nobody then, from now on."""
    with door_of(instance) as door:
        newest = door.catalogue_now().histories[-1]
        if newest.instance == instance.content.uuid:
            return ""
        with door.locked():
            instance.restoring_is_over()
    _forget(instance)
    return newest.name


def _forget(instance: Instance) -> None:
    if (instance.path / NAME).exists():
        remove_file(instance.path / NAME, "the file of what is waited for could not be removed")


def _note(instance: Instance, restoring: Restoring) -> None:
    made = {"format": FORMAT, "since_ns": restoring.since_ns, "to": restoring.to, "answered": restoring.answered}
    replace_file(instance.path / NAME, (json.dumps(made) + "\n").encode())


def _read(instance: Instance) -> Restoring | None:
    """None where it is gone, or is not readable: all are waited for then, from now on."""
    try:
        facts = json.loads(read_private(instance.path / NAME))
        if facts["format"] != FORMAT:
            return None
        answered = {str(name): int(last) for name, last in facts["answered"].items()}
        return Restoring(int(facts["since_ns"]), int(facts["to"]), answered)
    except (OSError, ReplicateError, ValueError, KeyError, TypeError, AttributeError):
        return None
