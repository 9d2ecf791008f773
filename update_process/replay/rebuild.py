"""`replicate rebuild` as a function: a new secondary as it was at one transaction, from a base copy and journals.

The base copy is a seed file of the network, for whichever instance it was made: the journals (an archive, usually) hold
what came after it, so no primary has to have kept it.

Guarantees: before anything is changed it is known that the base copy is of this network, that it is not younger than
what was asked for, and that the journals say to hold everything between. Killed before the base copy is in its place
the secondary is marked as being seeded, and the same command does it again; killed later it stands at the end of a
piece, is marked as being rebuilt from that base copy, and the same command goes on from there.
Leaves to others: the command line; how a replay works.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from msgspec import Struct

from replicate.door.partial_journal import mark_partial
from replicate.door.recovery.opening import SEEDING_MARKER
from replicate.errors import AlreadyExistsError, NotFoundError
from replicate.filters.whose_words import Content, note_content, read_content
from replicate.instance.instance import REBUILDING_MARKER, Instance
from replicate.journal.chain import Chain
from replicate.journal.reader import LargeTransaction
from replicate.journal.record import read_head
from replicate.journal.walk import walk
from replicate.model.moment import iso, last_csn
from replicate.system.failpoint import hit
from replicate.system.files import read_private, replace_file
from replicate.transfer.container import SeedHeader
from replicate.transfer.seed.file import SeedReader
from replicate.transfer.seed.install import (
    Progress,
    Seeded,
    check_base,
    check_secondary,
    install_checked,
    require_all_regions,
    seed_lock,
)
from replicate.transfer.seed.install import silent as silent_copy
from update_process.replay.apply import Told
from update_process.replay.archive.files import archive_uri, local_path
from update_process.replay.backlog import Journals, is_archive, journal_directory, require_here
from update_process.replay.command import (
    SparkSessions,
    one_session,
    replay_locked,
    require_own_words,
    require_secondary,
    stage_of,
    stopped_daemons,
    target_seqno,
)
from update_process.replay.run import Summary, silent

MICROSECONDS: Final = 1_000_000
GO_ON: Final = "To bring it further from where it stands: replicate -i INSTANCE replay --journal URI. "


class Rebuilt(Struct, frozen=True):
    """`base`: what the base copy was, None where it was in its place already; `replay`: what came after it. `seqno`:
    where the secondary stands."""

    seqno: int
    base: Seeded | None
    replay: Summary


def rebuild(
    instance: Instance,
    base: Path,
    names: Sequence[str | Path],
    *,
    last_seqno: int | None = None,
    until_s: float | None = None,
    restart: bool = False,
    spark: SparkSessions | None = None,
    told: Told = silent,
    copied: Progress = silent_copy,
) -> Rebuilt:
    """Fill the secondary `instance` from the seed file `base` and bring it to transaction `last_seqno`, or to the last
    one committed until `until_s` (seconds since 1970, UTC), or (both None) to the last durable one of the journals.

    A rebuild from the same base copy that did not come to its end is gone on with, unless `restart`.

    Raises NotFoundError (a number or time outside of what there is), GapError and JournalMissingError (the journals do
    not go on where the base copy ends), what `install_file` raises but for its question whom the seed was made for, and
    what `replay` raises.
    """
    require_secondary(instance)
    require_here(names)
    with SeedReader(base) as seed:
        header = seed.header
    require_own_words(instance, names, header.primary)
    with seed_lock(instance):
        require_all_regions(header, str(base))
        check_base(instance, seed, str(base))
        goes_on = not restart and _is_begun(instance, header)
        check_secondary(instance, restart=restart or goes_on, command="rebuild", instead=GO_ON)
        with (
            stopped_daemons(instance, "rebuild") as daemons,
            stage_of(instance) as stage,
            one_session(spark, told) as get,
        ):
            journals = Journals(names, instance.content.network, stage=stage, spark=get)
            target = _target(header, journals, last_seqno, until_s)
            seeded = None
            if not goes_on:
                seeded = install_checked(
                    instance, base, progress=copied, settled=lambda: replace_file(_marker(instance), _mark(header))
                )
                hit("rebuild.installed")
                instance.reload()
            _keep_words(instance, names)
            again = "the same command without --restart" if restart else "the same command"
            done = replay_locked(instance, journals, stage, get, last_seqno=target, told=told, goes_on_by=again)
            if done.seqno > target:
                raise AlreadyExistsError(
                    f"{instance.name} stands at transaction {done.seqno} already, beyond {target}",
                    where=str(instance.path),
                    do="To replace what it holds: replicate -i INSTANCE rebuild --restart",
                )
            hit("rebuild.replayed")
            _marker(instance).unlink(missing_ok=True)
            for files in daemons:
                files.forget_failure("rebuild")
    return Rebuilt(done.seqno, seeded, done)


def _keep_words(instance: Instance, names: Sequence[str | Path]) -> None:
    """What goes on is in a filter's words where one of these journals is: ours says so, too."""
    for name in names:
        path = local_path(archive_uri(str(name)))
        if path is None or is_archive(str(name)) or not Chain(journal_directory(path)).is_partial():
            continue
        source = Instance.open(path, needs=(), copy_too=True)
        mark_partial(instance)
        through = read_content(source.run_directory)
        if through is not None:
            told = Content(source.content.uuid.hex(), source.name, through.filter)
            note_content(instance.run_directory, read_content(instance.run_directory), told)


def _marker(instance: Instance) -> Path:
    return instance.path / REBUILDING_MARKER


def _mark(header: SeedHeader) -> bytes:
    """What tells one base copy from another."""
    return f"{header.primary.hex()} {header.seqno} {header.csn}\n".encode()


def _is_begun(instance: Instance, header: SeedHeader) -> bool:
    """Whether this base copy is in its place, and a rebuild from it has not come to its end."""
    if (instance.path / SEEDING_MARKER).exists():
        return False
    try:
        return bool(instance.regions) and read_private(_marker(instance)) == _mark(header)
    except FileNotFoundError:
        return False


def _target(header: SeedHeader, journals: Journals, last_seqno: int | None, until_s: float | None) -> int:
    target = target_seqno(journals, last_seqno) if until_s is None else seqno_at(journals, header, until_s)
    if target < header.seqno:
        raise NotFoundError(
            f"the base copy stands at transaction {header.seqno}, beyond {target}",
            where=journals.where,
            do="Take an older base copy" if last_seqno is not None else "Name journals that go on after it",
        )
    journals.require(header.seqno + 1, target)
    return target


def seqno_at(journals: Journals, base: SeedHeader, until_s: float) -> int:
    """The last transaction committed until then, by the time that it bears; not before `base`.

    NotFoundError when that is before the base copy, or when the journals end before then: nobody could say what else
    was committed until then. What reading journals raises.
    """
    bound = last_csn(int(until_s * MICROSECONDS))
    if base.csn > bound:
        raise NotFoundError(
            f"the base copy is of {iso(base.csn)}, later than {iso(bound)}", do="Take an older base copy"
        )
    seqno, csn = base.seqno, base.csn
    while (one := journals.range_with(seqno + 1)) is not None and one.last_csn <= bound:
        seqno, csn = one.last_seqno, one.last_csn
    for found in journals.read(seqno + 1, journals.last_durable_seqno):
        if isinstance(found, LargeTransaction):
            heads = [read_head(found.commit_frame)]
        else:
            heads = [head for _, head in walk(found.data)]
        for head in heads:
            if head.csn > bound:
                return head.seqno - 1
            csn = max(csn, head.csn)
    raise NotFoundError(
        f"these journals end with a transaction of {iso(csn)}: what else was committed until {iso(bound)} is not known",
        where=journals.where,
        do="Name a further --journal; or ask for --to latest",
    )
