"""`replicate replay` as a function: may this instance be replayed into now, from where to where, and then the replay.

Guarantees: while it runs neither the Update Process nor the Receiver Server of the instance, nor a seed, can begin; the
answer to "up to where" is given before anything is changed.
Leaves to others: the command line.
"""

from __future__ import annotations

import gc
import os
import shlex
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from replicate.daemon.files import DaemonFiles
from replicate.door.recovery.opening import close_door, require_seeded
from replicate.door.recovery.recovery import LOCK_TIMEOUT_S
from replicate.door.secondary import ApplySession, open_apply_session
from replicate.errors import AlreadyRunningError, FrozenError, NotFoundError, PermissionRefusedError, UsageError
from replicate.filters.whose_words import read_content
from replicate.instance.archive_mark import archived_seqno, note_archived
from replicate.instance.file import read_file, told_rows
from replicate.instance.instance import FILE_NAME as INSTANCE
from replicate.instance.instance import STAGE_DIRECTORY, Instance
from replicate.instance.writing_locks import commit_locked
from replicate.journal.chain import Chain
from replicate.journal.header import PARTIAL
from replicate.settings.load import FILE_NAME as SETTINGS
from replicate.settings.load import load
from replicate.system.failpoint import hit
from replicate.system.os_errors import io_error
from replicate.transfer.seed.install import seed_lock
from update_process.replay.apply import Progress, Told
from update_process.replay.archive.files import archive_uri, local_path
from update_process.replay.backlog import Journals, Span, is_archive, journal_directory, require_here
from update_process.replay.run import Engine, Replay, Source, Summary, local_engine, silent

if TYPE_CHECKING:
    from update_process.replay.archive.archive import Archive, Archived, Step

SparkSessions = Callable[[], AbstractContextManager[Any]]
DAEMONS: Final = (("update", "Update Process"), ("receiver", "Receiver Server"))


def replay(
    instance: Instance,
    names: Sequence[str | Path],
    *,
    last_seqno: int | None = None,
    spark: SparkSessions | None = None,
    verify: bool = False,
    dry_run: bool = False,
    told: Told = silent,
) -> Summary:
    """Bring the secondary `instance` from its position up to `last_seqno` (None: the last durable one) of the journals
    `names` (see `Journals`). `spark` gives the session whose net change is applied; None: it is found in this process.

    Raises PermissionRefusedError (not a secondary), NotFoundError (not seeded; no journal; a number beyond them),
    UsageError (a filter is between these journals and what is here), AlreadyRunningError (a daemon of the
    instance), BusyError (a seed or another replay), WrongNetworkError, PrerequisiteMissingError (no Java, no Spark),
    and what `Replay.run` raises. A position that is there already is no
    error: nothing is done.
    """
    require_secondary(instance)
    if not dry_run:
        refuse_frozen(instance)
    require_here(names)
    require_seeded(instance)
    require_own_words(instance, names)
    with (
        seed_lock(instance),  # first: another replay holds the daemons' locks too, and is none
        stopped_daemons(instance, "replay"),
        stage_of(instance) as stage,
        one_session(spark, told) as get,
    ):
        journals = Journals(names, instance.content.network, stage=stage, spark=get)
        return replay_locked(
            instance, journals, stage, get, last_seqno=last_seqno, verify=verify, dry_run=dry_run, told=told
        )


class OneSession:
    """Gives one session, made when it is first asked for."""

    def __init__(self, spark: SparkSessions, stack: ExitStack, told: Told) -> None:
        self._spark = spark
        self._stack = stack
        self._told = told
        self._made: Any = None

    def __call__(self) -> Any:
        if self._made is None:
            self._told(Progress("starting Spark", 0))
            self._made = self._stack.enter_context(self._spark())
        return self._made


@contextmanager
def one_session(spark: SparkSessions | None, told: Told = silent) -> Iterator[OneSession | None]:
    """The session of one replay; None where there is to be none. It ends with the block."""
    with ExitStack() as stack:
        yield None if spark is None else OneSession(spark, stack, told)


class _Heard:
    """Passes on what a replay tells, and between it what Spark does meanwhile."""

    def __init__(self, told: Told) -> None:
        self._told = told
        self._last = Progress("collapsing", 0)

    def __call__(self, progress: Progress) -> None:
        self._last = progress
        self._told(progress)

    def tasks(self, done: int, whole: int) -> None:
        """Spark has done so many tasks of a net change."""
        self._told(replace(self._last, what="collapsing", done=done, whole=whole))


def require_secondary(instance: Instance) -> None:
    """PermissionRefusedError when it is none."""
    if instance.role != "secondary":
        raise PermissionRefusedError(
            f"instance {instance.name} is {instance.told_role}: a backlog is replayed into a secondary only",
            where=str(instance.path),
            do="Name the secondary with -i, and this instance with --journal",
        )


def refuse_frozen(instance: Instance) -> None:
    """FrozenError: what is applied waits until it is thawed, and a command would say nothing until then."""
    if instance.content.frozen is not None:
        raise FrozenError(
            f"{instance.name} is {instance.content.frozen}: nothing is applied",
            where=str(instance.path),
            do=f"Thaw it first: replicate -i {instance.named} instance freeze off",
        )


def require_whole_journal(path: Path, made_by: bytes = b"") -> None:
    """UsageError where `path` is an instance, a copy of one, or segments of one that has some partitions, or some rows,
    only, or what a filter told: its journal would pass for a whole one. `made_by`: the instance that made the base copy
    which the journal is to go on; what a filter told that one goes on its own copy."""
    _refuse_held(path)
    if is_archive(str(path)) or not Chain(journal_directory(path)).is_partial():
        return
    if not (path / INSTANCE).is_file() or read_file(path / INSTANCE).uuid != made_by:
        raise _not_whole(path, f"that of {PARTIAL}")


def whole_journal(path: Path) -> Chain:
    """The journal at `path`, of which an archive is made: from where its instance was made primary, when that had not
    all before. UsageError as `require_whole_journal`."""
    _refuse_held(path)
    chain = Chain(journal_directory(path))
    whole = chain.whole_end()
    if whole is not chain and not whole.first_seqnos():
        raise _not_whole(path, f"that of {PARTIAL}")
    return whole


def _refuse_held(path: Path) -> None:
    told = read_file(path / INSTANCE).told_held if (path / INSTANCE).is_file() else ""
    if told:
        raise _not_whole(path, f"that of an instance which {told}")


def _not_whole(path: Path, told: str) -> UsageError:
    return UsageError(
        f"the journal is {told}", where=str(path), do="Name the journal of one that has all, or an archive of that"
    )


def require_own_words(instance: Instance, names: Sequence[str | Path], made_by: bytes = b"") -> None:
    """UsageError where what is here went through a filter, or a filter is or was set on the way from these journals:
    they have the same transactions in other words. `made_by`: as `require_whole_journal`."""
    instance.refuse_partial("a journal would bring the others, too")
    if instance.content.rows:
        raise UsageError(
            f"of {instance.name} is wanted {told_rows(instance.content.rows)}, and a journal brings all",
            where=str(instance.path),
            do=f"Let the stream bring it; or have all rows: replicate -i {instance.named} subscription filter TABLE "
            "--none",
        )
    for name in names:
        path = local_path(archive_uri(str(name)))
        if path is not None:
            require_whole_journal(path, made_by)
    content = read_content(instance.run_directory)
    if content is not None and content.filter:
        raise UsageError(
            f"what is here came from {content.name} through the filter {content.filter}, which no journal does",
            where=str(instance.path),
            do="Let the stream bring the backlog; or, where it comes without a filter again, start the Receiver Server "
            "once before",
        )
    set_in = [(instance.path, "receiver", instance.config.receiver.filter)]
    for name in names:
        path = local_path(archive_uri(str(name)))
        if path is not None and (path / SETTINGS).is_file():  # an instance, or a copy of one
            set_in.append((path, "source", load(path / SETTINGS).source.filter))
    for path, side, configured in set_in:
        if configured:
            raise UsageError(
                f"a {side}.filter is set, which tells the stream in other words, and no journal does",
                where=str(path),
                do="Let the stream bring it; or, to have the journal's words here, first: replicate -i "
                f"{shlex.quote(str(path))} config unset {side}.filter",
            )


def replay_locked(
    instance: Instance,
    journals: Journals,
    stage: Path,
    get: OneSession | None,
    *,
    last_seqno: int | None,
    told: Told,
    verify: bool = False,
    dry_run: bool = False,
    goes_on_by: str = "",
    is_of_packets: bool = False,
) -> Summary:
    """The same for one who has stopped the daemons, and holds the seed's lock, the stage and `one_session`.
    `goes_on_by`, `is_of_packets`: as `Replay`."""
    target = target_seqno(journals, last_seqno)
    with apply_session(instance) as session:
        done = session.position.last_seqno
        if target <= done:
            return Summary(done + 1, done, dry_run=dry_run)
        plan = journals.plan(done + 1, target, archived_first=get is not None)
        heard = _Heard(told)
        run = Replay(
            session,
            journals,
            instance.conflict_directory,
            engine=local_engine if get is None else _spark_engine(get(), journals, stage, verify, heard.tasks),
            verify=verify,
            dry_run=dry_run,
            told=heard,
            goes_on_by=goes_on_by,
            is_of_packets=is_of_packets,
        )
        with no_collector():
            summary = run.run(target)
        summary.sources = sources_of(plan)
        return summary


def sources_of(plan: Iterable[Span]) -> tuple[Source, ...]:
    """A plan for people: what is next to each other and from one place is one."""
    made: list[Source] = []
    for span in plan:
        if made and made[-1].where == span.where:
            made[-1] = Source(made[-1].first_seqno, span.last_seqno, span.where)
        else:
            made.append(Source(span.first_seqno, span.last_seqno, span.where))
    return tuple(made)


def _spark_engine(
    spark: Any, journals: Journals, stage: Path, verify: bool, told: Callable[[int, int], None]
) -> Engine:
    from update_process.replay.spark.net import SparkEngine

    return SparkEngine(spark, journals, stage, verify=verify, told=told)


def spark_sessions(master: str | None) -> SparkSessions:
    """Sessions at a Spark master (None: this machine). PrerequisiteMissingError (no Java, no Spark) when entered."""

    @contextmanager
    def make() -> Iterator[Any]:
        from update_process.replay.spark import session

        session.require_java()
        with session.session(master) as spark:
            yield spark

    return make


def target_seqno(journals: Journals, last_seqno: int | None) -> int:
    """Where to end. NotFoundError when the journals end before."""
    if last_seqno is None:
        return journals.last_durable_seqno
    if last_seqno > journals.last_seqno:
        raise NotFoundError(
            f"these journals end with transaction {journals.last_seqno}, up to {last_seqno} was asked for",
            where=journals.where,
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
def stopped_daemons(instance: Instance, what: str) -> Iterator[list[DaemonFiles]]:
    """Hold the locks of the daemons that must not run during `what`. AlreadyRunningError naming the one that does."""
    with ExitStack() as stack:
        held = []
        for name, title in DAEMONS:
            files = DaemonFiles(instance.path, name)
            try:
                fd = files.lock.acquire(instead=what)
            except AlreadyRunningError as error:
                running = files.lock.probe()
                if running is not None and running.instead:
                    raise
                raise AlreadyRunningError(
                    f"the {title} of {instance.name} runs" + (f" (process {running.pid})" if running else ""),
                    where=str(instance.path),
                    do=f"Stop it first: replicate -i {instance.named} {name} stop",
                ) from error
            stack.callback(os.close, fd)
            held.append(files)
        yield held


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
def stage_of(instance: Instance) -> Iterator[Path]:
    """An empty directory below the instance, for as long as it lasts; what it is in may be another volume's mount
    point, or a link to one. The seed's lock is held: what is there was left by one that was killed. JournalIOError,
    DiskFullError."""
    parent = instance.path / STAGE_DIRECTORY
    stage = parent / "stage"
    try:
        parent.mkdir(mode=0o700, exist_ok=True)
        shutil.rmtree(stage, ignore_errors=True)
        stage.mkdir(mode=0o700)
    except OSError as error:
        raise io_error(error, "the stage of a replay cannot be made", str(stage)) from error
    hit("replay.stage")
    try:
        yield stage
    finally:
        shutil.rmtree(stage, ignore_errors=True)
        with suppress(OSError):
            parent.rmdir()


def archive_journal(
    path: Path,
    uri: str,
    *,
    spark: SparkSessions,
    clean: bool = False,
    verify: bool = False,
    reached: int = 0,
    told: Callable[[Step], None],
    note: Callable[[Archive, Chain, int], None] | None = None,
) -> Archived:
    """Archive the sealed segments of the journal (or instance) at `path`. `note` is told then up to where the archive
    reaches. What `Archive.add`, `verify` and `note` raise, and UsageError where the archive would be in the
    journal's own directory: a replay takes that for one of the two."""
    chain = Chain(journal_directory(path))
    place = local_path(archive_uri(uri))
    if place is not None and place.resolve() == Path(chain.directory).resolve():
        raise UsageError("this is the journal itself", where=str(place), do="Name a directory of the archive's own")
    chain = whole_journal(path)
    with spark() as session:
        from update_process.replay.archive.archive import Archive

        archive = Archive(session, archive_uri(uri))
        done = archive.add(chain, clean=clean, reached=reached, told=told)
        if verify:
            archive.verify()
        if note is not None:
            note(archive, chain, done.last_seqno)
        return done


def archive_instance(
    instance: Instance,
    uri: str | None,
    *,
    spark: SparkSessions,
    clean: bool = False,
    verify: bool = False,
    told: Callable[[Step], None],
) -> Archived:
    """The same for an instance's own journal; `uri` None: to the archive that its configuration names. Where it is that
    one, pruning learns how far it reaches. UsageError when it names none."""
    configured = instance.config.journal.archive
    if not (uri or configured):
        raise UsageError(
            "no archive is named, and none configured",
            where=str(instance.path),
            do="Name a directory or URI, or set journal.archive",
        )
    is_it = bool(configured) and archive_uri(uri or configured) == archive_uri(configured)
    reached = (archived_seqno(instance) or 0) if is_it else 0
    return archive_journal(
        instance.path,
        uri or configured,
        spark=spark,
        clean=clean,
        verify=verify,
        reached=reached,
        told=told,
        note=partial(_note_archived, instance) if is_it else None,
    )


def _note_archived(instance: Instance, archive: Archive, chain: Chain, last_seqno: int) -> None:
    """Have pruning learn it, unless a rollback has taken the journal back meanwhile: that has lowered the number, and
    what comes in the place of what it took back is in no archive. DivergedError names that."""
    while True:
        instance.reload()
        incarnation = instance.content.incarnation
        archive.require_link(chain)
        hit("archive.before_note")
        with commit_locked(instance, LOCK_TIMEOUT_S):
            instance.reload()
            if instance.content.incarnation == incarnation:  # a rollback raises it under that lock
                note_archived(instance, last_seqno)
                return
