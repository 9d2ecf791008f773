"""An instance on disk: one directory, found by path or by name, created once, changed under its own lock.

Guarantees: after `create` every directory exists with mode 0700 and the identity is durable; `open` verifies what it
reads; a change of regions or peers is atomic and serialised over processes. Leaves to others: how transactions get
into the journal (door/primary.py), what is in a region (region/), what daemons do.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shlex
import stat
import time
import uuid
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from replicate.errors import (
    AlreadyExistsError,
    ConfigurationError,
    NotFoundError,
    PermissionRefusedError,
    ReplicateError,
    UsageError,
    WrongInstanceError,
    pasteable,
)
from replicate.instance import private_files
from replicate.instance.file import (
    Frozen,
    InstanceFile,
    PeerEntry,
    RegionEntry,
    Role,
    Successor,
    check_name,
    check_unique,
    encode,
    read_file,
)
from replicate.instance.location import elsewhere, resolve_instance
from replicate.instance.private_files import DIRECTORY_MODES, check_settings, check_whole
from replicate.limits import REGIONS_MAX
from replicate.model.partitions import Partitions
from replicate.model.subscription import Subscription
from replicate.region.sqlite.functions import set_init
from replicate.settings.load import FILE_NAME as SETTINGS_NAME
from replicate.settings.load import Config, Refused, default_text, load_what_can_be
from replicate.system.files import replace_file
from replicate.system.os_errors import io_error, mend

FILE_NAME = "instance.json"
STAGE_DIRECTORY = "replay"
"""What a replay stages; one that was killed leaves it to the next."""
REBUILDING_MARKER = "rebuilding"
"""From which base copy a rebuild is under way."""


def _inode(path: Path) -> str:
    facts = os.stat(path)
    return f"{facts.st_dev}:{facts.st_ino}"


def _read(directory: Path, *, copy_too: bool = False) -> InstanceFile:
    """The instance file, its paths as they are where the directory stands now.

    WrongInstanceError for a copy while its original is still there: both would write the same regions. `copy_too`: the
    caller writes nothing, and looks at nothing beyond the directory.
    """
    content = read_file(directory / FILE_NAME)
    home = Path(content.home)
    if home == directory:
        return content
    try:
        original = home.is_dir() and not home.samefile(directory) and read_file(home / FILE_NAME).uuid == content.uuid
    except (OSError, ReplicateError):
        original = False
    if original and not copy_too:
        raise WrongInstanceError(
            f"this is a copy of the instance in {home}, which is still there",
            where=str(directory),
            do="Use the original; or remove it first, if the copy shall take its place. Beside the original only "
            "`journal show` and `journal verify` read a copy",
        )
    regions = tuple(
        replace(entry, path=directory / entry.path.relative_to(home)) if entry.path.is_relative_to(home) else entry
        for entry in content.regions
    )
    return replace(content, home=str(directory), regions=regions)


def _settings(directory: Path) -> tuple[Config, tuple[Refused, ...]]:
    """What of them can be taken: nothing of a file that others may have written."""
    try:
        check_settings(directory)
    except PermissionRefusedError as error:
        return Config(), (Refused("", error),)
    return load_what_can_be(directory / SETTINGS_NAME)


def _make_directory(directory: Path) -> None:
    """Make it, and what is missing above it; the names stay, whatever happens to the machine. OSError."""
    named = {directory, *(one for one in directory.parents if not one.exists())}
    directory.mkdir(parents=True, mode=0o700, exist_ok=True)
    for one in named:
        with contextlib.suppress(PermissionError):  # a parent that we may enter and not read
            parent = os.open(one.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(parent)
            finally:
                os.close(parent)


AS_KNOWN: Final = (0,)
"""Of a peer that is registered again: the partitions that it may have stay as they are."""


class Instance:
    """One instance directory, opened. Immutable facts are read once; `reload` reads them again."""

    def __init__(
        self,
        path: Path,
        content: InstanceFile,
        config: Config,
        named: str | None = None,
        refused: tuple[Refused, ...] = (),
    ) -> None:
        self.path = path
        self.refused_settings = refused
        """What of the settings cannot be taken, where `open` was asked for less than all of them."""
        self.named = shlex.quote(str(path) if named is None else named)
        """How a command line names it after -i: as its opener has."""
        self.config = config
        self._seen_stamp = (0, 0)
        self._file = os.fspath(path / FILE_NAME)
        """Made once: `look_again` is called for each transaction, and making the path costs more than the stat."""
        self._take(content)

    @classmethod
    def create(
        cls,
        path: str | os.PathLike[str],
        *,
        role: Role,
        name: str | None = None,
        network: bytes | None = None,
        feed: bool = False,
    ) -> Instance:
        """Make a new instance in the directory `path` (made if missing, must be empty). Raises AlreadyExistsError
        when it is not.

        A new network is founded unless `network` (16 bytes) names the one to join; a secondary always joins one, and
        may be a data `feed`. After a failure nothing of it is left, so that the same call may be made again.
        """
        directory, named = resolve_instance(path), shlex.quote(os.fspath(path))
        name = check_name(name if name is not None else directory.name, "instance")
        if feed and role != "secondary":
            raise ConfigurationError("a data feed is a secondary", do="Leave --role primary out")
        if role == "secondary" and network is None:
            raise ConfigurationError(
                "a secondary joins the network of its primary",
                do="Give --network UUID, as 'replicate -i PRIMARY instance show' prints it on the primary",
            )
        was_there, made = os.path.exists(directory), contextlib.ExitStack()
        try:
            _make_directory(directory)
            if not was_there:
                made.callback(directory.rmdir)
            if (directory / FILE_NAME).exists():
                raise AlreadyExistsError(
                    "an instance is here already",
                    where=str(directory),
                    do=f"Use it (replicate -i {named} instance show), name another directory, or remove it: replicate "
                    f"instance remove {named}",
                )
            if not all(private_files.is_left_of_a_creation(one, default_text()) for one in directory.iterdir()):
                raise AlreadyExistsError(
                    "the directory is not empty", where=str(directory), do="Name a new or an empty directory"
                )
            directory.chmod(0o700)
            for sub in DIRECTORY_MODES:
                (directory / sub).mkdir(mode=0o700, exist_ok=True)
                made.callback((directory / sub).rmdir)
            for file in (SETTINGS_NAME, FILE_NAME):
                made.callback((directory / file).unlink, missing_ok=True)
            replace_file(directory / SETTINGS_NAME, default_text().encode())
            content = InstanceFile(
                network=network or uuid.uuid4().bytes,
                uuid=uuid.uuid4().bytes,
                name=name,
                incarnation=1,
                role=role,
                created_wall_ns=time.time_ns(),
                journal_inode=_inode(directory / "journal"),
                home=str(directory),
                is_feed=feed,
            )
            replace_file(directory / FILE_NAME, encode(content))
            made.pop_all()
        except OSError as error:
            raise io_error(error, "could not make the instance", str(directory)) from error
        finally:
            with contextlib.suppress(OSError):  # the first error counts; what is no longer empty stays
                made.close()
        return cls.open(path)

    @classmethod
    def open(
        cls, path: str | os.PathLike[str], *, needs: Collection[str] | None = None, copy_too: bool = False
    ) -> Instance:
        """Open an existing instance. NotFoundError, PermissionRefusedError, DamagedError, FormatUnknownError or
        ConfigurationError.

        `needs`: the sections of settings that the caller cannot do without (None: all). Whatever else cannot be taken
        has its default, and is in `refused_settings`: a command that only looks must not be kept out by a slip in that
        file. `copy_too`: also a copy beside its original, by a caller that reads files of this directory alone."""
        directory = resolve_instance(path)
        try:
            facts = os.stat(directory)
        except FileNotFoundError:
            raise NotFoundError(
                "there is no such instance directory",
                where=str(directory),
                do=elsewhere(path)
                or f"Name an existing one, or make it: replicate instance create {shlex.quote(os.fspath(path))}",
            ) from None
        except OSError as error:
            raise PermissionRefusedError(
                f"no access: {error.strerror}", where=str(directory), do=mend(error)
            ) from error
        if not stat.S_ISDIR(facts.st_mode):
            raise NotFoundError(
                "this is a file, and not the directory of an instance",
                where=str(directory),
                do="Name the instance; a region of it is named beside it: replicate.connect(INSTANCE, REGION). What "
                "is no region yet becomes one by: replicate -i INSTANCE region add PATH",
            )
        content = _read(directory, copy_too=copy_too)
        check_whole(directory)
        config, refused = _settings(directory)
        for one in refused:
            if needs is None or one.section in needs or (needs and not one.section):
                raise one.error
        return cls(directory, content, config, os.fspath(path), refused)

    # Facts.

    @property
    def name(self) -> str:
        """The instance's name, unique in its network."""
        return self.content.name

    @property
    def is_feed(self) -> bool:
        """A secondary that is no backup: others may have tables in its regions, and it never becomes primary."""
        return self.content.is_feed

    def refuse_feed(self, what: str) -> None:
        """PermissionRefusedError for a data feed. `what`: the end of a sentence that says what it never does."""
        if self.is_feed:
            raise PermissionRefusedError(
                f"{self.name} is a data feed, and {what}",
                where=str(self.path),
                do="Name a secondary that was made without --feed",
            )

    def refuse_supplier(self, what: str, do: str = "") -> None:
        """ConfigurationError for a supplier. `what`: why; `do`: the way out."""
        if self.is_supplier:
            raise ConfigurationError(f"{self.name} is a supplier: {what}", where=str(self.path), do=do)

    @property
    def told_held(self) -> str:
        """The end of a sentence about a secondary that has some partitions only; "" for any other."""
        return self.content.told_held

    def refuse_partial(self, what: str) -> None:
        """UsageError for a secondary that has the rows of some partitions only. `what`: the end of a sentence that
        says what it cannot do."""
        if told := self.told_held:
            raise UsageError(
                f"{self.name} {told}, and {what}",
                where=str(self.path),
                do="Name an instance that has all; or have this one get them: "
                f"{' and '.join(f'replicate -i {self.named} {one}' for one in self.content.getting_all)}, then seed it",
            )

    @property
    def role(self) -> Role:
        """`primary` or `secondary`."""
        return self.content.role

    @property
    def is_supplier(self) -> bool:
        """As in the file."""
        return self.content.is_supplier

    @property
    def told_role(self) -> str:
        """As in the file."""
        return self.content.told_role

    @property
    def receives(self) -> bool:
        """As in the file."""
        return self.content.receives

    @property
    def takes_writes(self) -> bool:
        """Whether transactions may be given numbers here: not on a secondary, nor on a primary that is superseded."""
        return self.content.takes_writes

    @property
    def regions(self) -> tuple[RegionEntry, ...]:
        """The registered regions, in region-id order (the order of locks)."""
        return self.content.regions

    @property
    def waiting(self) -> tuple[str, ...]:
        """On a secondary: regions of the primary that are not here, and wait for their seed (region_record.py)."""
        return self.content.waiting

    @property
    def peers(self) -> tuple[PeerEntry, ...]:
        """The registered consumers."""
        return self.content.peers

    @property
    def consumers(self) -> tuple[PeerEntry, ...]:
        """The peers that the journal is kept for."""
        return self.content.consumers

    @property
    def journal_directory(self) -> Path:
        """Where the segments are."""
        return self.path / "journal"

    @property
    def locks_directory(self) -> Path:
        """Where the lock files are."""
        return self.path / "locks"

    @property
    def run_directory(self) -> Path:
        """Where doorbells, pid files and daemon status files are."""
        return self.path / "run"

    @property
    def log_directory(self) -> Path:
        """Where daemons log."""
        return self.path / "log"

    @property
    def consumers_directory(self) -> Path:
        """Where the acknowledged position of every registered consumer is kept (instance/consumers.py)."""
        return self.path / "consumers"

    @property
    def conflict_directory(self) -> Path:
        """Where conflict files are written."""
        return self.path / "conflict"

    def region(self, name: str) -> RegionEntry:
        """The region of that name; NotFoundError, naming those there are."""
        for entry in self.regions:
            if entry.name == name:
                return entry
        if name in self.waiting:
            raise NotFoundError(
                f"region {name!r} is not here yet: it was added on the primary with rows, and waits for its seed",
                where=str(self.path),
                do=f"Seed this secondary: {self.way_out}",
            )
        known = ", ".join(r.name for r in self.regions) or "none yet"
        raise NotFoundError(
            f"no region {name!r}; there are: {known}",
            where=str(self.path),
            do=f"Name one of them, or add it: replicate -i {self.named} region add PATH --name {name}",
        )

    def peer(self, name: str) -> PeerEntry:
        """The peer of that name; NotFoundError, naming those there are."""
        for entry in self.peers:
            if entry.name == name:
                return entry
        known = ", ".join(p.name for p in self.peers) or "none yet"
        raise NotFoundError(
            f"no peer {name!r}; there are: {known}",
            where=str(self.path),
            do=f"Name one of them, or add it: replicate -i {self.named} peer add NAME HOST:PORT; one without a line: "
            f"replicate -i {self.named} peer add NAME --packets",
        )

    def pasteable(self, text: str) -> str:
        """A text, of a daemon too, whose commands name this instance (errors.py)."""
        return pasteable(text, self.named, str(self.path))

    @property
    def way_out(self) -> str:
        """What to do when what was lost or damaged cannot be restored, as the end of a sentence."""
        if self.is_supplier:
            steps = ("instance convert --role secondary --force", "seed --restart", "instance convert --role supplier")
            return ", then ".join(f"replicate -i {self.named} {step}" for step in steps)
        if self.role == "secondary":
            return f"replicate -i {self.named} update stop, then replicate -i {self.named} seed --restart"
        return (
            f"replicate -i {self.named} region release NAME --force for each region (the databases stay as they are), "
            f"replicate instance remove {self.named} --force, a new instance of them with --network "
            f"{uuid.UUID(bytes=self.content.network)}, and update stop and seed --restart on its secondaries"
        )

    @property
    def was_copied(self) -> bool:
        """True when the journal directory is not the one that was created here: a restored backup or a copy."""
        return self.content.journal_inode != _inode(self.journal_directory)

    # Changes.

    @contextlib.contextmanager
    def _changing(self) -> Iterator[InstanceFile]:
        with self.locked():
            yield _read(self.path)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Nobody else changes the instance file or the settings meanwhile. JournalIOError, PermissionRefusedError."""
        path = self.locks_directory / "instance.lock"
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise io_error(error, "the instance's lock cannot be opened", str(path)) from error
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)

    def _store(self, content: InstanceFile) -> None:
        check_unique(content)
        replace_file(self.path / FILE_NAME, encode(content))
        self._take(content)

    def _take(self, content: InstanceFile) -> None:
        self.content = content
        for entry in content.regions:
            set_init(entry.path, self.config.region.init, entry.name)

    def reload(self) -> None:
        """Read the instance file again."""
        self._take(_read(self.path))

    def register_region(self, name: str, region_uuid: bytes, path: Path) -> RegionEntry:
        """Enter a region. AlreadyExistsError when its name or path is taken."""
        with self._changing() as content:
            check_name(name, "region")
            for entry in content.regions:
                if entry.name == name or entry.path == path:
                    raise AlreadyExistsError(f"region {entry.name!r} is registered already", where=str(entry.path))
            used = {r.region_id for r in content.regions}
            region_id = next((i for i in range(content.next_region_id, REGIONS_MAX) if i not in used), None)
            if region_id is None:
                region_id = next((i for i in range(REGIONS_MAX) if i not in used), None)
            if region_id is None:
                raise ConfigurationError(f"an instance has at most {REGIONS_MAX} regions")
            entry = RegionEntry(region_id, name, region_uuid, path)
            regions = tuple(sorted((*content.regions, entry), key=lambda r: r.region_id))
            waiting = tuple(one for one in content.waiting if one != name)
            self._store(replace(content, regions=regions, next_region_id=region_id + 1, waiting=waiting))
        return entry

    def note_waiting(self, name: str) -> None:
        """Enter a region of the primary that is not here and waits for its seed; nothing happens when it is known as
        that. One that is here is none of ours any more. ConfigurationError when that were more than a primary can
        have."""
        with self._changing() as content:
            waiting = tuple(dict.fromkeys((*content.waiting, check_name(name, "region"))))
            if len(waiting) > REGIONS_MAX:
                raise ConfigurationError(f"an instance has at most {REGIONS_MAX} regions", where=str(self.path))
            if waiting != content.waiting:
                regions = tuple(entry for entry in content.regions if entry.name != name)
                self._store(replace(content, regions=regions, waiting=waiting))
            else:
                self._take(content)

    def forget_waiting(self) -> None:
        """No region waits any more: a seed brings them all."""
        with self._changing() as content:
            if content.waiting:
                self._store(replace(content, waiting=()))

    def move_region(self, name: str, path: Path) -> None:
        """Enter another path for a region. NotFoundError when it is not there, AlreadyExistsError when the path is
        another region's."""
        self.region(name)
        with self._changing() as content:
            for entry in content.regions:
                if entry.path == path and entry.name != name:
                    raise AlreadyExistsError(f"region {entry.name!r} is registered already", where=str(path))
            regions = tuple(replace(r, path=path) if r.name == name else r for r in content.regions)
            self._store(replace(content, regions=regions))

    def unregister_region(self, name: str) -> None:
        """Take a region out; nothing happens when it is not there."""
        with self._changing() as content:
            self._store(replace(content, regions=tuple(r for r in content.regions if r.name != name)))

    def register_peer(
        self,
        name: str,
        host: str,
        port: int,
        *,
        certificate: str | None = None,
        replace_address: bool = False,
        partitions: tuple[int, ...] | None = AS_KNOWN,
        boxes: tuple[str, str] | None = None,
    ) -> PeerEntry:
        """Enter a consumer, which may have those `partitions` at most; its outbox and inbox, and the name in its
        certificate (None: as they are; "": its own). A known one with the same facts is no error; with others it is
        AlreadyExistsError, unless `replace_address`. A running Source Server goes there with its next connection."""
        self.refuse_feed("feeds nobody: what others write there is no part of the stream")
        with self._changing() as content:
            if check_name(name, "peer") == content.name:
                raise ConfigurationError(f"{name!r} is this instance itself", where=str(self.path), do="Name another")
            known = next((p for p in content.peers if p.name == name), None)
            if partitions == AS_KNOWN:
                partitions = None if known is None else known.partitions
            passive = known is not None and known.passive
            borne = certificate if certificate is not None else "" if known is None else known.certificate
            boxes = boxes or ("" if known is None else known.outbox, "" if known is None else known.inbox)
            entry = PeerEntry(name, host, port, "" if borne == name else borne, passive, partitions, *boxes)
            if known not in (None, entry) and not replace_address:
                assert known is not None
                raise AlreadyExistsError(
                    f"peer {name} is registered already, {known.whereabouts}"
                    + ("" if known.partitions == entry.partitions else ", with other partitions")
                    + ("" if (known.outbox, known.inbox) == boxes else ", with other directories"),
                    where=str(self.path),
                    do=f"If it is to be changed, or is now {entry.whereabouts}: add --replace, and start its Source "
                    "Server again",
                )
            others = tuple(p for p in content.peers if p.name != name)
            self._store(replace(content, peers=(*others, entry)))
        return entry

    def set_mode(self, name: str, *, passive: bool, address: tuple[str, int] | None = None) -> PeerEntry:
        """Whether anything is sent to the peer from now on, and to which host and port (None: as it was). NotFoundError
        when it is not there. A running Source Server has to be told (daemon/orders.py)."""
        with self._changing() as content:
            self._take(content)
            known = self.peer(name)
            host, port = address or (known.host, known.port)
            entry = replace(known, passive=passive, host=host, port=port)
            if entry != known:
                peers = tuple(entry if p.name == name else p for p in content.peers)
                self._store(replace(content, peers=peers))
        return entry

    def unregister_peer(self, name: str) -> None:
        """Take a consumer out; NotFoundError when it is not there."""
        self.peer(name)
        with self._changing() as content:
            self._store(replace(content, peers=tuple(p for p in content.peers if p.name != name)))

    def change_role(
        self,
        role: Role,
        successor: Successor | None = None,
        *,
        is_supplier: bool = False,
        is_restoring: bool = False,
        above: int = 0,
    ) -> None:
        """Another role and the next incarnation, durable before anything is numbered in it: a process that has the
        instance open learns of both by the incarnation. `above`: a later one than that, too. A primary's peers are
        served, a secondary's are passive, but for a `successor` that has to be told. `is_restoring`: a secondary from
        now on, until it has back what it had. The caller holds the locks of all regions and the commit lock."""
        to_tell = successor.name if successor is not None and successor.is_pending else ""
        with self._changing() as content:
            peers = tuple(replace(p, passive=role == "secondary" and p.name != to_tell) for p in content.peers)
            incarnation = max(content.incarnation, above) + 1
            fence = content.fence if role == "primary" else None
            changed = replace(
                content, role=role, incarnation=incarnation, peers=peers, successor=successor, is_supplier=is_supplier
            )
            self._store(replace(changed, overruled=0 if fence is None else fence.origin, is_restored=is_restoring))

    def note_successor(self, successor: Successor) -> None:
        """Another instance has superseded this one, which is primary; or says that this supplier is gone for good: no
        transaction gets a number here from now on. Nothing happens on a secondary, or where that is known. The caller
        holds the commit lock."""
        with self._changing() as content:
            if content.role == "primary" and content.successor is None:
                self._store(replace(content, successor=successor))
            else:
                self._take(content)

    def partitions_now(self) -> Partitions:
        """As the process that changed them last has left them. Raises as `look_again`."""
        self.look_again()
        return self.content.partitions

    def look_again(self) -> None:
        """Have `content` as its last writer has left it: the same object while there was none. Raises as `reload`."""
        try:
            found = os.stat(self._file)
        except OSError:
            return  # gone, with all of the instance: what needs it says so
        stamp = (found.st_ino, found.st_mtime_ns)
        if stamp != self._seen_stamp:
            self.reload()
            self._seen_stamp = stamp

    def takes_writes_now(self) -> bool:
        """Whether it takes writes, as the process that has settled that last has left it: the file is read again only
        while it does not."""
        if not self.takes_writes:
            self.reload()
        return self.takes_writes

    def change_partitions(self, change: Callable[[Partitions], Partitions]) -> Partitions:
        """Have other partitions from now on: what `change` makes of those that are there, and what it raises."""
        with self._changing() as content:
            made = change(content.partitions)
            if made != content.partitions:
                self._store(replace(content, partitions=made))
        return made

    def change_subscription(self, change: Callable[[Subscription], Subscription]) -> Subscription:
        """Have what `change` makes of a secondary's subscription (model/subscription.py) from now on."""
        with self._changing() as content:
            made = change(content.choice)
            if made != content.choice:
                self._store(content.choosing(made))
        return made

    def set_frozen(self, frozen: Frozen | None) -> None:
        """Whether transactions are held. One that is frozen already keeps who did it, and since when. The caller holds
        the commit lock."""
        with self._changing() as content:
            if (content.frozen is None) != (frozen is None):
                self._store(replace(content, frozen=frozen))
            else:
                self._take(content)

    def fence_is_settled(self) -> None:
        """Nothing is here any more that the site which superseded this one has not. Nothing happens where there is no
        fence."""
        with self._changing() as content:
            if content.fence is not None and content.role == "secondary":
                self._store(replace(content, successor=replace(content.fence, origin=0, heard_wall_ns=0)))
            else:
                self._take(content)

    def restoring_is_over(self) -> None:
        """It has back what it had, or waits for it no more; and a supplier is not gone for good. The caller holds the
        commit lock."""
        with self._changing() as content:
            successor = None if content.is_supplier else content.successor
            self._store(replace(content, is_restored=False, successor=successor))

    def successor_is_primary(self) -> None:
        """The successor has said that it has taken the role: it is served no more. Nothing happens where none has to
        be waited for."""
        with self._changing() as content:
            known = content.successor
            if known is None or not known.is_pending:
                self._take(content)
                return
            peers = tuple(replace(p, passive=p.passive or p.name == known.name) for p in content.peers)
            self._store(replace(content, peers=peers, successor=replace(known, is_pending=False)))

    def raise_incarnation(self, *, is_restored: bool = False) -> None:
        """The next incarnation, on the disk before it is used. `is_restored`: of a backup. Under the commit lock."""
        with self._changing() as content:
            self._store(
                replace(
                    content,
                    incarnation=content.incarnation + 1,
                    journal_inode=_inode(self.journal_directory),
                    is_restored=content.is_restored or (is_restored and content.role == "primary"),
                )
            )
