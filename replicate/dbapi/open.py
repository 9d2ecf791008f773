"""Opening a region for an application: the instance, its door (one per process), and a session of it.

Guarantees: a failure leaves nothing open; a region that the standard library's sqlite3 has open in this process is not
opened.
Leaves to others: SQL.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from urllib.parse import quote as percent_encoded

import apsw

from replicate.dbapi import second_library
from replicate.dbapi.region_access import Named, Sites
from replicate.door.door import Door
from replicate.door.primary import RegionSession
from replicate.door.recovery.opening import close_door, open_door
from replicate.door.recovery.recovery import LOCK_TIMEOUT_S
from replicate.errors import (
    ConfigurationError,
    NotFoundError,
    NotPrimaryError,
    NotSupportedError,
    ReplicateError,
    UsageError,
)
from replicate.instance.instance import Instance
from replicate.instance.location import resolve_instance
from replicate.journal.spool import Spool
from replicate.limits import OPENING_S
from replicate.model.partitions import Partitions
from replicate.pool import control as word
from replicate.region.sqlite.bookkeeping import is_region, read_identity
from replicate.region.sqlite.functions import bring, names_brought
from replicate.region.sqlite.sql.names import quote, quote_text
from replicate.region.sqlite.sql.own_functions import names_used
from replicate.system.other_package import check_other_package


@functools.cache
def _check_package() -> None:
    """Raises as `check_other_package`. Asked once a process, unless it refuses."""
    check_other_package()


class OpenedRegion:
    """One connection's hold on an instance: opened.Opened."""

    def __init__(self, door: Door, region: str, opening_s: float = OPENING_S) -> None:
        """A session of `door` for `region`, whose file is waited for `opening_s` seconds at most. After a
        ReplicateError nothing is open, and the door is the caller's."""
        self._watched = second_library.enter(str(door.instance.region(region).path))
        try:
            self.session = RegionSession(door, region, opening_s=opening_s)
        except BaseException:
            second_library.leave(self._watched)
            raise
        self.region = region
        self.neighbours = InstanceNeighbours(self.session)

    def new_spool(self) -> Spool:
        """A spool for a large transaction, in the instance's journal directory."""
        return Spool.create(self.session.door.instance.journal_directory, self.session.door.words[word.OWN_ORIGIN])

    def partitions(self) -> Partitions:
        """Those of the instance, as they are now."""
        return self.session.door.instance.partitions_now()

    @property
    def busy_timeout_s(self) -> float:
        """application.busy_timeout_s of the instance."""
        return self.session.door.instance.config.application.busy_timeout_s

    def wait_durable(self, seqno: int) -> None:
        """Return once the journal is durable up to `seqno`."""
        self.session.door.wait_durable(seqno)

    def close(self) -> None:
        """Give the door back. The session has been closed by its user."""
        try:
            self.neighbours.close()
            second_library.leave(self._watched)
        finally:
            close_door(self.session.door)


class InstanceNeighbours:
    """What the connection of a session may attach: opened.Neighbours."""

    def __init__(self, session: RegionSession) -> None:
        self._session = session
        self._watched: dict[str, tuple[int, int] | None] = {}
        self._given: dict[str, str] | None = None
        """Functions and collations that `region.init` has given the connection so far, with their setting."""

    def region_at(self, file: str) -> str | None:
        """The region of the session's instance that is in that file, by whatever path; None if it is none.

        Raises NotFoundError if there is no such file, and what reading the instance file raises.
        """
        try:
            facts = os.stat(file)
        except (OSError, ValueError) as error:
            raise NotFoundError(
                f"no database can be attached there: {error}", where=file, do="Name an existing file; none is created"
            ) from error
        instance = self._session.door.instance
        instance.reload()  # a region may have been added since
        for entry in instance.regions:
            try:
                found = os.stat(entry.path)
            except OSError:
                continue  # it is not this one
            if (found.st_dev, found.st_ino) == (facts.st_dev, facts.st_ino):
                return entry.name
        return None

    def path_of(self, region: str) -> str:
        """Where the file of that region is. NotFoundError, and what reading the instance file raises."""
        instance = self._session.door.instance
        instance.reload()
        return str(instance.region(region).path)

    def attach(self, region: str, schema: str, run: Callable[[str], object], taken: AbstractSet[str]) -> None:
        """Open and check that region as if for itself, then attach it. Raises ReplicateErrors and what SQLite says of
        the name; nothing is attached then."""
        session = self._session
        entry = session.door.instance.region(region)
        session.refuse_second(entry)
        watched = second_library.enter(str(entry.path))
        try:
            probe = RegionSession(session.door, region)
            try:
                self._bring(probe, taken)
                session.attach(entry, schema, probe.file, run)
            finally:
                probe.close()
        except BaseException:
            second_library.leave(watched)
            raise
        self._watched[schema] = watched

    def _bring(self, probe: RegionSession, taken: AbstractSet[str]) -> None:
        """Give the connection the functions and collations that the region of `probe` needs.

        NotSupportedError if another region of the connection, or the application (`taken`), has another one of such a
        name: the connection can have one only. ConfigurationError as at opening.
        """
        session = self._session
        if self._given is None:
            self._given = names_brought(session.where)
        given, wanted = self._given, names_brought(probe.where)
        clash = {name for name, setting in wanted.items() if given.get(name, setting) != setting}
        clash |= (wanted.keys() - given.keys()) & taken
        clash |= names_used(probe.connection) & (given.keys() - wanted.keys())
        for schema in [part.schema for part in session.parts] or ["main"]:
            clash |= names_used(session.connection, schema) & (wanted.keys() - given.keys())
        if clash:
            raise NotSupportedError(
                f"region {probe.entry.name} needs another function or collation {min(clash)} than this connection has",
                where=probe.where,
                do="Open the region with a connection of its own, or name its functions otherwise in region.init",
            )
        if wanted.keys() - given.keys():
            bring(session.connection, probe.where)
            given.update(wanted)

    def attach_plain(self, file: str, schema: str, run: Callable[[str], object]) -> None:
        """Attach a plain database, or a region of another instance, for reading; it is watched from here on, as a
        region is.

        NotSupportedError for a copy of a region; what SQLite says of the file and the name. Nothing is attached then.
        """
        path = os.path.realpath(file)
        watched = second_library.enter(path)
        try:
            probe = apsw.Connection(path, flags=apsw.SQLITE_OPEN_READONLY)
            try:
                if is_region(probe) and not _is_itself(probe, path):
                    raise NotSupportedError(
                        "the file is a copy of a region: nobody keeps it up to date",
                        where=path,
                        do="Name the region's own file; a copy is made plain by: replicate region plain PATH",
                    )
            finally:
                probe.close(True)
            run(f"ATTACH {quote_text(f'file:{percent_encoded(path)}?mode=ro')} AS {quote(schema)}")
        except BaseException:
            second_library.leave(watched)
            raise
        self._watched[schema] = watched

    def detached(self, schema: str) -> None:
        """What was attached under that name is no longer."""
        second_library.leave(self._watched.pop(schema, None))
        if any(part.schema == schema for part in self._session.parts):
            self._session.detached(schema)

    def version_of(self, schema: str) -> int:
        """The schema version of an attached region as the open transaction found it."""
        return self._session.version_of(schema)

    def close(self) -> None:
        """The session is closed."""
        while self._watched:
            second_library.leave(self._watched.popitem()[1])


def _is_itself(connection: apsw.Connection, path: str) -> bool:
    """Whether a region lies where it was made one."""
    identity, found = read_identity(connection, where=path), os.stat(path)
    return (identity.device, identity.inode) == (found.st_dev, found.st_ino)


def the_primary_of(instances: Sequence[Named]) -> Named:
    """Which of several instances takes writes now; it may be another one a moment later.

    Raises UsageError (none is named), NotPrimaryError (none takes writes: each is named, with what it says of the
    primary, or why it cannot be opened) and ConfigurationError (more than one does)."""
    if not instances:
        raise UsageError("no instance is named", do="Give connect one, or a list of the sites of one network")
    found: list[Instance] = []
    others: list[str] = []
    for named in instances:
        try:
            opened = Instance.open(named, needs=())
        except ReplicateError as error:
            others.append(f"{os.fspath(named)}: {error.what}")
            continue
        if opened.takes_writes:
            found.append(opened)
        else:
            others.append(f"{opened.name} is {opened.role}" + (f": {s}" if (s := opened.content.successor) else ""))
    if not found:
        told = "; ".join(others)
        raise NotPrimaryError(f"none of these takes writes: {told}", do="Try again; status of each says more")
    if len(found) > 1:
        names = " and ".join(str(one.path) for one in found)
        raise ConfigurationError(
            f"more than one of these takes writes: {names}", do="Name the one that is meant; status of each says more"
        )
    return found[0].path


def open_region(instance: Sites, region: str, timeout_s: float | None = None) -> OpenedRegion:
    """Open `region` of `instance` (of several: of the one that takes writes), waiting for each lock at most `timeout_s`
    seconds (None: as long as recovery should take). Raises ReplicateErrors; nothing is open then."""
    _check_package()
    if not isinstance(instance, str | os.PathLike):
        instance = the_primary_of(instance)
    door = open_door(Instance.open(resolve_instance(instance)), LOCK_TIMEOUT_S if timeout_s is None else timeout_s)
    try:
        return OpenedRegion(door, region, OPENING_S if timeout_s is None else min(timeout_s, OPENING_S))
    except BaseException:
        close_door(door)
        raise
