"""Before something is removed that holds transactions: where no peer has them, it is refused, or they are written to a
file first.

Guarantees: nothing of the instance is changed. Without `force` the refusal says how many they are, which, and the
commands that show them, send them, or go on without; with `force` the file is durable before this returns. Where an
earlier command has written them already, that file is enough: what was interrupted is repeated with one file.
The file lies beside the instance's directory, so that it outlives it.
Leaves to others: what is removed after it (admin/region_release.py, admin/instance_removal.py).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from replicate.audit.show import shown_between
from replicate.daemon.last_run import start_again
from replicate.errors import UndeliveredError
from replicate.instance.instance import Instance
from replicate.lost.file import PART_SUFFIX, SUFFIX, LostFile, LostHead, find_lost, write_lost
from replicate.lost.peers_lack import LostReading, Owner, Unreadable, acknowledged, identity, look
from replicate.lost.undelivered import Undelivered
from replicate.system.locks import FileLock
from replicate.system.os_errors import io_error

LOCK_TIMEOUT_S: Final = 30.0


class Kept(Struct, frozen=True):
    """Where the transactions stand that would have been lost. `to_seqno` None: nobody knows how far they go."""

    file: LostFile
    from_seqno: int
    to_seqno: int | None

    def lines(self) -> list[str]:
        """For people."""
        to = "on" if self.to_seqno is None else f"to {self.to_seqno}"
        count = self.file.transaction_count
        what = f"{count} transaction{'' if count == 1 else 's'} that would be lost (from {self.from_seqno} {to})"
        lines = [f"{what}: in {self.file.path}"]
        for one in self.file.unreadable:
            until = "on" if one["to"] is None else f"to {one['to']}"
            lines.append(f"not in it, since it cannot be read: {one['from']} {until} ({one['why']})")
        return lines

    def facts(self) -> dict[str, Any]:
        """For --json."""
        return {
            "file": self.file.path,
            "transactions": self.file.transaction_count,
            "from": self.from_seqno,
            "to": self.to_seqno,
            "unreadable": list(self.file.unreadable),
        }


def keep_lost(instance: Instance, *, cause: str, again: str, force: bool) -> Kept | None:
    """`keep_lost_of` an instance whose file is well."""
    return keep_lost_of(Owner.of(instance), cause=cause, again=again, force=force)


def keep_lost_of(owner: Owner, *, cause: str, again: str, force: bool) -> Kept | None:
    """See to it that no transaction goes with this instance; where those that would stand now, None if there are none.

    `cause`: what is about to happen, for the file. `again`: the command with its force, for the error. Raises
    UndeliveredError (there are some, or a peer lacks what another has, and no `force`), FormatUnknownError,
    DiskFullError, JournalIOError, PermissionRefusedError, BusyError.
    """
    found = look(owner)
    if not found.is_lost:
        if found.behind and not force:
            raise _refused(owner, found, again)
        return None
    with _locked(owner):
        head = _head(owner, found, cause)
        written = find_lost(lost_files(owner.path), head)
        if written is None:
            if not force:
                raise _refused(owner, found, again)
            reading = LostReading(owner, found)
            path = owner.path.with_name(_name(owner.path, head))
            written = write_lost(path, head, reading.transactions(), lambda: map(_facts, reading.unreadable))
        return Kept(written, head.from_seqno, head.to_seqno)


def keep_range(owner: Owner, *, cause: str, first: int, last: int) -> Kept:
    """See to it that the transactions from `first` to `last` of its journal, all of which are well, stand in a file;
    `cause` takes them back. Raises what reading the journal and writing the file do."""
    peers = tuple((name, acknowledged(owner, name)) for name in owner.peers)
    head = replace(_of(owner, cause), from_seqno=first, known_seqno=last, peers=peers, common=first - 1)
    with _locked(owner):
        written = find_lost(lost_files(owner.path), head)
        if written is None:
            path = owner.path.with_name(_name(owner.path, head))
            written = write_lost(path, head, shown_between(owner.chain, first, last, parts=True), tuple)
        return Kept(written, first, last)


@contextmanager
def _locked(owner: Owner) -> Iterator[None]:
    lock = FileLock(owner.path / "locks" / "lost.lock")
    try:
        lock.acquire(LOCK_TIMEOUT_S, what="the file of lost transactions")
        yield
    finally:
        lock.close()


def _of(owner: Owner, cause: str) -> LostHead:
    return LostHead(
        cause=cause,
        role=owner.role,
        instance=owner.name,
        uuid=identity(owner.uuid),
        network=identity(owner.network),
        incarnation=owner.incarnation,
        from_seqno=0,
        known_seqno=0,
        peers=(),
    )


def _head(owner: Owner, found: Undelivered, cause: str) -> LostHead:
    return replace(
        _of(owner, cause),
        from_seqno=found.first_lost_seqno,
        known_seqno=found.end_seqno,
        peers=tuple((peer.name, peer.acknowledged_seqno) for peer in found.peers),
        is_open=found.is_open,
    )


def _name(path: Path, head: LostHead) -> str:
    to = "" if head.to_seqno is None else f"-{head.to_seqno}"
    return f"{path.name}-lost-{head.from_seqno}{to}{SUFFIX}"


def lost_files(path: Path) -> list[Path]:
    """The whole files of this instance that are there. What a killed writer left of one goes."""
    prefix = f"{path.name}-lost-"
    try:
        names = os.listdir(path.parent)
        for name in names:
            if name.startswith(f".{prefix}") and name.endswith(f"{SUFFIX}{PART_SUFFIX}"):
                os.unlink(path.with_name(name))
    except OSError as error:
        raise io_error(error, "the directory that the instance is in cannot be used", str(path.parent)) from error
    return [path.with_name(name) for name in names if name.startswith(prefix) and name.endswith(SUFFIX)]


def _facts(one: Unreadable) -> dict[str, Any]:
    return {"from": one.first_seqno, "to": one.last_seqno, "why": one.why}


def _refused(owner: Owner, found: Undelivered, again: str) -> UndeliveredError:
    command = f"replicate -i {owner.named}"
    do = []
    first = found.first_lost_seqno if found.is_lost else min(peer.acknowledged_seqno for peer in found.behind) + 1
    if max(first, found.oldest_seqno) <= found.readable_seqno:
        do.append(f"To look at them: {command} journal show --from {max(first, found.oldest_seqno)}")
    if found.received_seqno > found.last_seqno:
        do.append(f"To apply what was received: {start_again(owner, 'update')}, then update stop")
    lacking = [peer.name for peer in found.peers if peer.acknowledged_seqno < found.last_seqno]
    to_file = f"{command} rollback --to N"
    if owner.was_demoted:
        do.append(f"To have them in a file: {to_file}, the last one that the new primary has")
    for name in () if owner.was_demoted else lacking:
        do.append(
            f"To send them: {start_again(owner, f'source-{name}')}, and source stop when status has no backlog; "
            f"or, if {name} is not to have them: {command} peer remove {name}"
        )
    wrote = ", which writes what no peer has to a file first" if found.is_lost else ""
    if again == to_file and owner.was_demoted:
        do[-1] += "; then the same command again"
    else:
        do.append(f"To go on without: {again}{wrote}")
    return UndeliveredError(
        found.told(),
        where=str(owner.path),
        do=". ".join(do),
        first_seqno=first,
        last_seqno=found.end_seqno,
    )
