"""`replicate replay` as a function: may this instance be replayed into now, from where to where, and then the replay.

Guarantees: while it runs neither the Update Process nor the Receiver Server of the instance, nor a seed, can begin; the
answer to "up to where" is given before anything is changed.
Refuses to know: the command line.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from replicate.apply_session import ApplySession, open_apply_session
from replicate.daemon_files import DaemonFiles
from replicate.errors import AlreadyRunningError, NotFoundError, PermissionRefusedError
from replicate.instance import Instance
from replicate.journal.chain import Chain
from replicate.opening import close_door, require_seeded
from replicate.seed_install import seed_lock
from update_process.replay.apply import Told
from update_process.replay.journals import Journals, journal_directory
from update_process.replay.run import Engine, Replay, Summary, local_engine, silent

if TYPE_CHECKING:
    from update_process.replay.archive import Archived

DAEMONS: Final = (("update", "Update Process"), ("receiver", "Receiver Server"))


def replay(
    instance: Instance,
    paths: Sequence[Path],
    *,
    last_seqno: int | None = None,
    engine: Engine = local_engine,
    verify: bool = False,
    dry_run: bool = False,
    told: Told = silent,
) -> Summary:
    """Bring the secondary `instance` from its position up to `last_seqno` (None: the last durable one) of `paths`.

    Raises PermissionRefusedError (not a secondary), NotFoundError (not seeded; no journal; a number beyond them),
    AlreadyRunningError (a daemon of the instance), BusyError (a seed), WrongNetworkError, and what `Replay.run` raises.
    A position that is there already is no error: nothing is done.
    """
    if instance.role != "secondary":
        raise PermissionRefusedError(
            f"instance {instance.name} is {instance.role}: a backlog is replayed into a secondary only",
            where=str(instance.path),
        )
    require_seeded(instance)
    journals = Journals(paths, instance.content.network)
    with stopped_daemons(instance), seed_lock(instance), apply_session(instance) as session, no_collector():
        target = target_seqno(journals, last_seqno)
        if target <= session.position.last_seqno:
            done = session.position.last_seqno
            return Summary(done + 1, done, dry_run=dry_run)
        run = Replay(
            session,
            journals,
            instance.conflict_directory,
            engine=engine,
            verify=verify,
            dry_run=dry_run,
            told=told,
        )
        return run.run(target)


def target_seqno(journals: Journals, last_seqno: int | None) -> int:
    """Where to end. NotFoundError when the journals end before."""
    if last_seqno is None:
        return journals.last_durable_seqno
    if last_seqno > journals.last_seqno:
        raise NotFoundError(
            f"these journals end with transaction {journals.last_seqno}, up to {last_seqno} was asked for",
            where=", ".join(map(str, journals.directories)),
            do="Ask for less, or name a further --journal",
        )
    return last_seqno


@contextmanager
def no_collector() -> Iterator[None]:
    """Without Python's cyclic collector: millions of rows are no cycles, and looking for some takes a third of the
    time (measured)."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


@contextmanager
def stopped_daemons(instance: Instance) -> Iterator[None]:
    """Hold the locks of the daemons that must not run meanwhile. AlreadyRunningError naming the one that does."""
    with ExitStack() as stack:
        for name, title in DAEMONS:
            files = DaemonFiles(instance.path, name)
            try:
                fd = files.acquire()
            except AlreadyRunningError as error:
                running = files.probe()
                raise AlreadyRunningError(
                    f"the {title} of {instance.name} runs" + (f" (process {running.pid})" if running else ""),
                    where=str(instance.path),
                    do=f"Stop it first: replicate {name} stop",
                ) from error
            stack.callback(os.close, fd)
        yield


@contextmanager
def apply_session(instance: Instance) -> Iterator[ApplySession]:
    """The instance's apply session, its door open (and recovered) while it lasts."""
    session = open_apply_session(instance)
    try:
        with closing(session):
            yield session
    finally:
        close_door(session.door)


@contextmanager
def spark_engine(
    instance: Instance,
    paths: Sequence[Path],
    *,
    archive_uri: str | None = None,
    master: str | None = None,
    verify: bool = False,
) -> Iterator[Engine]:
    """Spark's engine, its session and stage (below the instance's directory) while it lasts.

    PrerequisiteMissingError (no Java, no Spark), WrongNetworkError, and what the archive's manifests raise.
    """
    journals = Journals(paths, instance.content.network)
    with _spark_session(master) as spark:
        from update_process.replay.archive import Archive
        from update_process.replay.spark_net import SparkEngine

        archive = None if archive_uri is None else Archive(spark, archive_uri)
        with closing(SparkEngine(spark, journals, instance.path, archive=archive, verify=verify)) as engine:
            yield engine


def archive_journal(
    path: Path, uri: str, *, master: str | None = None, verify: bool = False, told: Callable[[str], None]
) -> Archived:
    """Archive the sealed segments of the journal (or instance) at `path`. What `Archive.add` and `verify` raise."""
    chain = Chain(journal_directory(path))
    with _spark_session(master) as spark:
        from update_process.replay.archive import Archive

        archive = Archive(spark, uri)
        done = archive.add(chain, told=lambda one: told(f"archived {one.first_seqno} to {one.last_seqno}"))
        if verify:
            archive.verify()
        return done


@contextmanager
def _spark_session(master: str | None) -> Iterator[Any]:
    from update_process.replay import spark_session

    spark_session.require_java()
    with spark_session.session(master) as spark:
        yield spark
