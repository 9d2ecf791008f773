"""Taking an instance back to a common point: what it has beyond it is written to a file, and undone by before-images.

    file of what is lost, durable · marker · pools retired · each region, piece by piece · journal cut after the point
    · durable mark, consumers, archive, kept seeds lowered · incarnation raised · marker gone

Guarantees: nothing is undone before the file is durable; whatever is killed, the same command goes on and ends the
same; while the marker stands nobody opens the instance's door; a schema change on the way is refused before anything is
touched, and so is a point that the journal does not reach back to. Memory holds a piece of the journal.
Leaves to others: taking back (undo_transactions.py), what is on the way (rollback_survey.py), which point is common
(source_refusal.py, or who gives it), the role (an instance that is rolled back is secondary).
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from replicate.audit.show import shown_between
from replicate.door.recovery.opening import ROLLBACK_MARKER, begin_journal, lower_consumers, make_chain
from replicate.door.recovery.recovery import log_recovery
from replicate.errors import (
    DamagedError,
    JournalMissingError,
    NotSupportedError,
    PermissionRefusedError,
    ReplicateError,
    UsageError,
)
from replicate.instance.archive_mark import archived_seqno, note_archived
from replicate.instance.instance import Instance
from replicate.instance.writing_locks import commit_locked, regions_locked
from replicate.journal.backwards import offset_after
from replicate.journal.catalogue import catalogue_before
from replicate.journal.chain import Chain
from replicate.journal.durable import SIDECAR_NAME, DurableSidecar
from replicate.lost.keep import Kept, keep_range
from replicate.lost.peers_lack import Owner
from replicate.model.transaction import Catalogue, History
from replicate.model.vector import Position
from replicate.pool import control as word
from replicate.pool.shared_memory import PoolKind, retire
from replicate.region.protocol import ends_of, scr_rows
from replicate.roles.change_of_role import LOCK_TIMEOUT_S, standing_still
from replicate.roles.daemons_down import daemons_down
from replicate.roles.rollback_survey import Surveyed, survey
from replicate.roles.source_refusal import forget_verdict, look_at_verdict, may_be_named, proven_point
from replicate.roles.superseded import give_way
from replicate.roles.undo_transactions import undo_region
from replicate.system.failpoint import hit
from replicate.system.files import read_private, remove_file, replace_file, sync_directory
from replicate.transfer.packet.epochs_file import change_epochs, read_epochs
from replicate.transfer.seed.file import read_header
from replicate.transfer.seed.incoming import DIRECTORY as SEED_DIRECTORY

ROLLBACK: Final = "rollback"
FORMAT: Final = 1


class RolledBack(Struct, frozen=True):
    """From `last` to `to`. `kept`: where the transactions stand, None when none of them carried data. `is_done`: False
    of a dry run. `because`: who said that `to` is the last common one, "" where it was named."""

    instance: str
    to: int
    last: int
    found: Surveyed
    kept: Kept | None = None
    is_done: bool = True
    because: str = ""


class _Marker(Struct, frozen=True):
    """What the marker holds. `csn`: the last one before, below which no later one may be."""

    to: int
    last: int
    csn: int
    file: str

    def pack(self) -> bytes:
        made = {"format": FORMAT, "to": self.to, "last": self.last, "csn": self.csn, "file": self.file}
        return (json.dumps(made) + "\n").encode()


def _nobody(_: str) -> None:
    pass


def rollback(
    instance: Instance,
    to: int | None,
    *,
    dry_run: bool = False,
    timeout_s: float = LOCK_TIMEOUT_S,
    tell: Callable[[str], None] = _nobody,
    by: str = "",
) -> RolledBack:
    """Take the secondary `instance` back to its transaction `to` (None: where one that was killed went, else where the
    source that refused it says that somebody took over, or where the one that superseded it did; `tell` is told before
    anything is touched). `by`: the daemon that does it by itself. Daemons that run stand aside.

    Raises PermissionRefusedError (a primary, or one that follows another and is to go back to a point that no record
    proves), UsageError (no such point, or another one is under way), DivergedError
    (what the source said is not so here),
    JournalMissingError (the journal does not reach back so far), NotSupportedError (schema changes on the way),
    ConflictError (a row is not as the journal has it: the marker stays), AlreadyRunningError, BusyError and what files
    raise.
    """
    instance.reload()
    if not dry_run:
        give_way(instance, timeout_s=timeout_s)  # one that is superseded may still be primary
    if dry_run and not (instance.path / ROLLBACK_MARKER).exists():
        point, because = _needed(instance, to, timeout_s, tell, is_look=True)
        last, found = _look(instance, point, timeout_s)[:2]
        return RolledBack(instance.name, point, last, found, is_done=False, because=because)
    with daemons_down(instance, ROLLBACK, by=by, patience_s=timeout_s):
        instance.reload()  # another command may have changed its role before this one had the locks
        begun = _read_marker(instance)
        if begun is None:
            point, because = _needed(instance, to, timeout_s, tell)
            done, begun = _begin(instance, point, timeout_s)
            done = replace(done, because=because)
        else:
            done = _going_on(instance, begun, to)
            if dry_run:
                return replace(done, is_done=False)
        if begun is not None:
            _carry_out(instance, begun, timeout_s)
            log_recovery(instance, ROLLBACK, {"to": done.to, "last": done.last, "file": begun.file})
        fence = instance.content.fence
        if fence is not None and done.to <= fence.seqno:
            instance.fence_is_settled()
    return done


def _needed(
    instance: Instance, to: int | None, timeout_s: float, tell: Callable[[str], None], *, is_look: bool = False
) -> tuple[int, str]:
    """The point, and who says so. Raises as `rollback`."""
    fence = instance.content.fence
    instance.refuse_supplier("what it has more than others goes to them, and is never taken back")
    if instance.role == "primary" and fence is None:
        raise PermissionRefusedError(
            f"instance {instance.name} is primary: what it has may be all that there is",
            where=str(instance.path),
            do=f"If another site is primary now: replicate -i {instance.named} demote, and then this again",
        )
    said = look_at_verdict(instance)
    with standing_still(instance, timeout_s) as door:
        last, histories = int(door.words[word.LAST_SEQNO]), door.catalogue_now().histories
    if to is not None:
        is_proven = to >= last or fence is not None or may_be_named(instance, said, histories)
        if not is_proven and not _is_empty(make_chain(instance), to, last):
            raise _unproven(instance, to, histories)
        return to, ""
    if fence is not None and (said is None or not said.ended_by):  # one that cannot say where is no better word
        point = fence.seqno
        because = f"{fence.name} took over after transaction {point}, and this journal proves it"
    else:
        point, because = proven_point(instance, last)
    is_ = "would be" if is_look else "is"
    tell(f"{because}: what {instance.name} has more, up to {last}, {is_} taken back")
    return point, because


def _is_empty(chain: Chain, to: int, last: int) -> bool:
    """Whether nothing but records of incarnations stands after `to`: they are nobody's data."""
    if to + 1 < chain.oldest_seqno():
        return False
    found = survey(shown_between(chain, to + 1, last, parts=False))
    return not found.transactions and not found.barred_at


def _unproven(instance: Instance, to: int, histories: tuple[History, ...]) -> PermissionRefusedError:
    named = instance.named
    return PermissionRefusedError(
        f"{instance.name} follows {histories[-1].name}, and nothing proves that what it has after {to} is to go: no "
        "site has said that it took over before that",
        where=str(instance.path),
        do=f"Nothing was changed. Have the primary's Source Server connect, or import a packet of it here: where "
        f"another site took over, its refusal says so, and up to where; then replicate -i {named} rollback. Where the "
        f"primary was restored from a backup, this site has what that one lost: on the primary, replicate -i "
        f"{histories[-1].name} replica restore. To fill this one again: replicate -i {named} seed --restart",
    )


# Before anything is touched.


def _look(instance: Instance, to: int, timeout_s: float) -> tuple[int, Surveyed, int]:
    """The journal's last number, what stands after `to`, and the last csn. Raises as `rollback`."""
    with standing_still(instance, timeout_s) as door:
        last, csn = int(door.words[word.LAST_SEQNO]), int(door.words[word.LAST_CSN])
    chain = make_chain(instance)
    if to > last:
        raise UsageError(
            f"the last transaction of {instance.name} is {last}: there is nothing after {to}",
            where=str(instance.path),
            do="Name an earlier one",
        )
    if to + 1 < chain.oldest_seqno():
        raise JournalMissingError(
            f"the journal begins with transaction {chain.oldest_seqno()}: it cannot be taken back to {to}",
            where=str(instance.path),
            do=f"Seed it again: {instance.way_out}",
            seqno=to + 1,
        )
    return last, survey(shown_between(chain, to + 1, last, parts=True)) if to < last else Surveyed(0, {}), csn


def _begin(instance: Instance, to: int, timeout_s: float) -> tuple[RolledBack, _Marker | None]:
    """Everything up to the marker; None when there is nothing to do."""
    last, found, csn = _look(instance, to, timeout_s)
    if to == last:
        return RolledBack(instance.name, to, last, found), None
    kept = None
    if found.transactions:
        kept = keep_range(Owner.of(instance), cause=ROLLBACK, first=to + 1, last=last)
        hit("rollback.lost_written")
    if found.barred_at:
        where = "" if kept is None else f"What would be lost is in {kept.file.path}. "
        raise NotSupportedError(
            f"transaction {found.barred_at} cannot be taken back: {found.barred_by}",
            where=str(instance.path),
            do=f"Nothing was changed. {where}Seed it again: replicate -i {instance.named} seed --restart",
            seqno=found.barred_at,
        )
    begun = _Marker(to, last, csn, "" if kept is None else str(kept.file.path))
    with standing_still(instance, timeout_s) as door, door.locked(timeout_s):
        replace_file(instance.path / ROLLBACK_MARKER, begun.pack())
        hit("rollback.marked")
        _retire(instance)
    return RolledBack(instance.name, to, last, found, kept), begun


def _going_on(instance: Instance, begun: _Marker, to: int | None) -> RolledBack:
    if to is not None and to != begun.to:
        raise UsageError(
            f"a rollback to {begun.to} is under way",
            where=str(instance.path),
            do=f"Finish it: replicate -i {instance.named} rollback; then go further back",
        )
    return RolledBack(instance.name, begun.to, begun.last, Surveyed(0, {}))


def _retire(instance: Instance) -> None:
    for kind in (PoolKind.RECEIVE, PoolKind.JOURNAL):
        retire(kind, instance.content.uuid)


def _read_marker(instance: Instance) -> _Marker | None:
    path = instance.path / ROLLBACK_MARKER
    try:
        facts = json.loads(read_private(path))
        return _Marker(int(facts["to"]), int(facts["last"]), int(facts["csn"]), str(facts["file"]))
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise DamagedError(
            "the mark of a rollback under way is not readable",
            where=str(path),
            do=f"Seed it again: replicate -i {instance.named} seed --restart",
        ) from error


# After the marker: each step may have been done before.


def _carry_out(instance: Instance, begun: _Marker, timeout_s: float) -> None:
    chain = make_chain(instance)
    with regions_locked(instance, timeout_s):
        with commit_locked(instance, timeout_s):
            _retire(instance)
        known = catalogue_before(chain, begun.to + 1)
        position = Position(begun.to, known.vector, known.chains)
        rows = scr_rows(position, begun.csn, ends_of(known.histories, begun.to))
        do = f"Somebody has written past the guards. Seed it again: replicate -i {instance.named} seed --restart"
        for entry in instance.regions:
            undo_region(entry, chain, begun.to, known.definitions, rows, do)
            hit("rollback.region_undone")
        _cut_journal(instance, chain, position, known, timeout_s)
        with commit_locked(instance, timeout_s):
            _lower_the_rest(instance, begun.to)
            instance.raise_incarnation()
            hit("rollback.before_end")
            remove_file(instance.path / ROLLBACK_MARKER, "the mark of a rollback under way could not be removed")
            forget_verdict(instance)


def _cut_journal(instance: Instance, chain: Chain, position: Position, known: Catalogue, timeout_s: float) -> None:
    to = position.last_seqno
    numbers = chain.first_seqnos()
    if numbers[0] > to and chain.find(numbers[0]).header.adopted:  # no part of it can stay
        begin_journal(instance, position, known)
        hit("rollback.cut")
        return
    with commit_locked(instance, timeout_s):
        for first_seqno in reversed(numbers):
            if first_seqno > max(to, numbers[0]):
                os.unlink(chain.path_of(first_seqno))
                hit("rollback.unlinked")
                sync_directory(chain.directory)
        first_seqno, offset = offset_after(chain, to)
        if offset:
            with chain.open(first_seqno, writable=True) as segment:
                hit("rollback.before_cut")
                segment.cut(offset)
        hit("rollback.cut")
        sidecar = DurableSidecar(instance.journal_directory / SIDECAR_NAME)
        try:
            sidecar.reset(to)
        finally:
            sidecar.close()


def _lower_the_rest(instance: Instance, to: int) -> None:
    """What others have of this journal beyond `to`, or might be given of it, is no part of it any more."""
    lower_consumers(instance, to)
    with suppress(DamagedError):  # who exports says so
        if any(one.estimated is not None for one in read_epochs(instance.consumers_directory).replicas.values()):
            change_epochs(instance.consumers_directory, lambda epochs: epochs.back_to(to))
    if (archived_seqno(instance) or 0) > to:
        note_archived(instance, to)
    for path in (instance.path / SEED_DIRECTORY).glob("*.seed"):
        if _is_beyond(path, to):
            path.unlink(missing_ok=True)


def _is_beyond(seed: Path, to: int) -> bool:
    try:
        return read_header(seed).seqno > to
    except ReplicateError:
        return True  # it could not be installed
